"""``metadata.json`` of a Minari data set: which storage it has, its spaces, and our own metadata.

Spaces are written as ``minari.serialization`` reads them, from the fields: a buffer knows dtypes
and shapes, not bounds, so they are as wide as the dtype. Not here: the rows (``_minari``,
``_minari_arrow``).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cpprb_like.datasets._model import Field, Header, load_json, nest
from cpprb_like.datasets._model import Path as Parts

__all__ = ["METADATA", "Leaf", "data_folder", "find", "leaves", "read", "write"]

METADATA = "metadata.json"
OURS = "cpprb_like"
VERSION = "0.5.4"  # of Minari, whose layout this is
ROOT = "MINARI_DATASETS_PATH"
IMAGE_LEAST = 32  # less is no image to Minari


def data_folder(path: Path) -> Path | None:
    """The folder that has ``metadata.json``: this one, or ``data`` in it; None if there is none."""
    for folder in (path, path / "data"):
        if (folder / METADATA).is_file():
            return folder
    return None


def storage_of(path: Path) -> str | None:
    """``"hdf5"``, ``"arrow"`` or ``"parquet"``; None if this is no data set of Minari's."""
    folder = data_folder(path)
    if folder is None:
        return None
    found = load_json((folder / METADATA).read_bytes(), str(folder / METADATA))
    storage = found.get("data_format", "hdf5") if isinstance(found, dict) else None
    return storage if storage in ("hdf5", "arrow", "parquet") else None


def find(name: str) -> Path | None:
    """Where Minari keeps a local data set of this name, if it does."""
    root = os.environ.get(ROOT) or Path("~/.minari/datasets").expanduser()
    path = Path(root, name)
    return path if data_folder(path) else None


def write(
    folder: Path, header: Header, storage: str, nbytes: int, about: Mapping[str, Any]
) -> None:
    """Write the file."""
    found = {
        "dataset_id": f"{OURS}/{_word(folder)}-v0",
        "minari_version": VERSION,
        "total_episodes": len(header.episodes),
        "total_steps": header.rows,
        "data_format": storage,
        "jpeg_encoding": False,
        "dataset_size": round(nbytes / 1e6, 1),
        "observation_space": json.dumps(_space(header, header.observations)),
        "action_space": json.dumps(_space(header, header.actions)),
        **about,
        OURS: header.to_json(),
    }
    (folder / METADATA).write_text(json.dumps(found), encoding="utf-8")


def _word(folder: Path) -> str:
    """A word for the name of a data set."""
    name = folder.parent.name.strip(".").partition(".")[0]
    return "".join(letter if letter.isalnum() else "-" for letter in name) or "data"


def _space(header: Header, parts: Mapping[str, Parts]) -> dict[str, Any]:
    leaves = nest((path, _leaf(header[name])) for name, path in parts.items())
    return _nested(leaves)


def _nested(node: Any) -> dict[str, Any]:
    if "type" in node and not isinstance(node["type"], dict):
        return dict(node)
    if is_tuple(node):
        return {"type": "Tuple", "subspaces": [_nested(node[str(k)]) for k in range(len(node))]}
    return {"type": "Dict", "subspaces": {key: _nested(part) for key, part in node.items()}}


def is_tuple(node: Mapping[str, Any]) -> bool:
    """Whether the parts of a nest are numbered."""
    return set(node) == {str(k) for k in range(len(node))}


def _leaf(field: Field) -> dict[str, Any]:
    dtype, shape = field.dtype, list(field.shape)
    low: float
    high: float
    if dtype.kind == "b":
        low, high = False, True
    elif dtype.kind == "f":
        low, high = -math.inf, math.inf
    else:
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    return {
        "type": "Box",
        "dtype": str(dtype),
        "shape": shape,
        "low": np.full(shape, low, object).tolist(),
        "high": np.full(shape, high, object).tolist(),
    }


def read(folder: Path) -> tuple[dict[str, Any], Header | None]:
    """What the file says, and our own metadata if it has them."""
    path = folder / METADATA
    found = load_json(path.read_bytes(), str(path))
    if not isinstance(found, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(found).__name__}")
    if OURS not in found:
        return found, None
    try:
        return found, Header.from_json(found[OURS])
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


class Leaf:
    """A space that has no parts.

    Attributes
    ----------
    kind : str
        Its type, as ``"Box"``.
    shape : tuple of int
    is_image : bool
        Whether Minari writes its values as JPEG, if it may.
    """

    def __init__(self, found: Mapping[str, Any]) -> None:
        self.kind = str(found.get("type"))
        self.dtype = str(found.get("dtype", ""))
        shape = found.get("shape", [])
        if self.kind == "MultiBinary":
            n = found.get("n", [])
            shape = n if isinstance(n, list) else [n]
        elif self.kind == "MultiDiscrete":
            shape = np.shape(found.get("nvec", []))
        self.shape = tuple(int(length) for length in shape)
        if any(length < 0 for length in self.shape):
            raise ValueError(f"space: expected lengths of at least 0, got {self.shape}")

    @property
    def is_image(self) -> bool:
        """Whether it is what Minari takes for an image."""
        return (
            self.kind == "Box"
            and self.dtype == "uint8"
            and len(self.shape) in (2, 3)
            and min(self.shape[:2]) >= IMAGE_LEAST
        )


def leaves(text: Any, name: str) -> dict[Parts, Leaf]:
    """The leaves of a space in the metadata, by path; none if it is not there."""
    if not isinstance(text, str):
        return {}
    try:
        return dict(_leaves(load_json(text, name), ()))
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError) as error:
        raise ValueError(f"{name}: expected a space as Minari writes it: {error!r}") from None


def _leaves(node: Any, path: Parts) -> Iterator[tuple[Parts, Leaf]]:
    if node.get("type") == "Dict":
        for key, part in node["subspaces"].items():
            yield from _leaves(part, (*path, str(key)))
    elif node.get("type") == "Tuple":
        for k, part in enumerate(node["subspaces"]):
            yield from _leaves(part, (*path, str(k)))
    else:
        yield path, Leaf(node)
