"""``metadata.json`` of a Minari data set: its storage, name, spaces and environment.

A buffer knows dtypes and shapes, not bounds: spaces are as wide as the dtype unless the caller
gives them. They are written as ``minari.serialization`` reads them. Not here: the rows
(``_minari_hdf5``, ``_minari_arrow``).
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cpprb_like._arguments.checks import warn
from cpprb_like._machine.opening import read_bytes
from cpprb_like.datasets._files import need
from cpprb_like.datasets._model import Field, Header, Place, load_json, nest

METADATA = "metadata.json"
INFOS = "infos"
OF_RESET = frozenset({"seed", "options"})  # arguments of a reset; a buffer cannot hold them
ENDS = (("terminations",), ("truncations",))
STORAGES = "hdf5", "arrow", "parquet"
VERSION = "0.5.4"  # version of Minari that defines this layout
ROOT = "MINARI_DATASETS_PATH"
ID = re.compile(r"(?:[-\w]+/)*[-\w]+-v[0-9]+")
IMAGE_LEAST = 32  # Minari stores smaller arrays as numbers
SPACES = "observation_space", "action_space"
ENVIRONMENTS = ("env_spec", "eval_env_spec")
OWN = {  # entries that an export writes itself
    "minari_version",
    "total_episodes",
    "total_steps",
    "data_format",
    "jpeg_encoding",
    "dataset_size",
}


class StoredEpisode(NamedTuple):
    """An episode in a storage."""

    length: int  # number of steps
    columns: Mapping[Place, Any]
    of_reset: frozenset[str]  # entries of ``OF_RESET`` in its metadata


def load(path: Path) -> tuple[Path, dict[str, Any]] | None:
    """The folder with the file, which is ``path`` or ``path/data``, and the entries of the file.

    None if there is no file, or its storage is unknown.
    """
    for folder in (path, path / "data"):
        file = folder / METADATA
        if file.is_file():
            found = load_json(read_bytes(file), str(file))
            is_known = isinstance(found, dict) and storage_of(found) in STORAGES
            return (folder, found) if is_known else None
    return None


def storage_of(found: Mapping[str, Any]) -> str:
    """The storage that the entries of the file name; one of ``STORAGES`` if it is known."""
    return str(found.get("data_format", "hdf5"))


def root() -> Path:
    """The folder of Minari's local data sets."""
    return Path(os.environ.get(ROOT) or Path("~/.minari/datasets").expanduser()).absolute()


# ---------------------------------------------------------------------- what is written


def of_new(path: Path, header: Header, about: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a new data set at a path, without those of ``OWN``.

    Warns if ``about`` lacks a space. Raises ``ValueError`` or ``TypeError`` if ``about`` has an
    entry of ``OWN``, or an entry that does not fit the fields.
    """
    own = sorted(OWN & about.keys())
    if own:
        raise ValueError(f"about: expected none of {own}, which export says itself")
    found = {"dataset_id": _id_of(path), **about}
    if not isinstance(found["dataset_id"], str) or not ID.fullmatch(found["dataset_id"]):
        raise ValueError(
            f"about: dataset_id: expected a name as 'cartpole/random-v0', got "
            f"{found['dataset_id']!r}"
        )
    parts = dict(zip(SPACES, (header.observations, header.actions), strict=True))
    for key in SPACES:
        found[key] = json.dumps(_space(header, parts[key], about.get(key), key))
    for key in ENVIRONMENTS:
        if found.get(key) is None:
            found.pop(key, None)
        elif not isinstance(found[key], str):
            found[key] = _spec(found[key], key)
    unknown = [key for key in SPACES if about.get(key) is None]
    if unknown:
        example = ", ".join(f"{key!r}: env.{key}" for key in unknown)
        warn(
            f"{path}: the buffer does not know the {' and the '.join(unknown)}: a Box as wide as "
            f"the dtype stands for each field; about={{{example}}} says them, and 'env_spec': "
            "env.spec the environment",
            UserWarning,
        )
    return found


def about_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that are not specific to one data set: those that ``export`` takes."""
    return {key: value for key, value in found.items() if key not in {*OWN, "dataset_id"}}


def _id_of(path: Path) -> str:
    """The name of a data set. In Minari's own folder, it must be the path within the folder."""
    place, folder = path.absolute(), root().resolve()
    place = place.parent.resolve() / place.name
    if place.is_relative_to(folder):
        name = place.relative_to(folder).as_posix()
        if not ID.fullmatch(name):
            raise ValueError(
                f"{path}: expected a name as 'cartpole/random-v0' in Minari's folder {folder}, "
                f"got {name!r}"
            )
        return name
    if ID.fullmatch(place.name):
        return place.name
    word = "".join(letter if letter.isalnum() else "-" for letter in place.name).strip("-")
    return f"{word or 'data'}-v0"


def _spec(spec: Any, key: str) -> str:
    """The JSON of an environment's ``EnvSpec``."""
    kind = need("gymnasium.envs.registration", "minari").EnvSpec
    if not isinstance(spec, kind):
        raise TypeError(f"about: {key}: expected an EnvSpec or its JSON, got {spec!r}")
    return str(spec.to_json())


def write(
    folder: Path, header: Header, storage: str, nbytes: int, about: Mapping[str, Any]
) -> None:
    """Write the file of a new data set."""
    found = {
        "minari_version": VERSION,
        "total_episodes": len(header.episodes),
        "total_steps": header.rows,
        "data_format": storage,
        "jpeg_encoding": False,
        "dataset_size": round(nbytes / 1e6, 1),
        **about,
    }
    (folder / METADATA).write_text(json.dumps(found), encoding="utf-8")


def _space(header: Header, parts: Mapping[str, Place], given: Any, key: str) -> dict[str, Any]:
    """The JSON of the space of some fields: parts of the given space, or Boxes without one."""
    if given is None:
        if texts := [name for name in parts if header[name].is_text]:
            raise ValueError(
                f"about: {key}: expected the space, as the characters of the text {texts[0]!r} are "
                "not known: give a Text space"
            )
        return _nested(nest((path, _leaf(header[name])) for name, path in parts.items()))
    text = given if isinstance(given, str) else json.dumps(_node(given, key))
    known = leaves(text, f"about: {key}")
    for name, path in parts.items():
        field, leaf = header[name], known.get(path)
        got = None if leaf is None else (leaf.kind, leaf.shape)
        fits = leaf is not None and (leaf.kind == "Text") == field.is_text
        if leaf is None or not fits or leaf.shape != field.declared_shape:
            kind = "Text space" if field.is_text else f"space of shape {field.shape}"
            raise ValueError(
                f"about: {key}: expected a {kind} for the field {name!r}"
                f"{' at ' + '.'.join(path) if path else ''}, got {got or 'none'}"
            )
    return _nested(nest((path, known[path].node) for path in parts.values()))


def _node(space: Any, key: str) -> dict[str, Any]:
    """The JSON of a space of Gymnasium, in Minari's form."""
    spaces = need("gymnasium.spaces", "minari")
    kind, dtype = type(space).__name__, {"dtype": str(getattr(space, "dtype", ""))}
    if isinstance(space, spaces.Dict):
        parts = {name: _node(part, key) for name, part in space.spaces.items()}
        return {"type": kind, "subspaces": parts}
    if isinstance(space, spaces.Tuple):
        return {"type": kind, "subspaces": [_node(part, key) for part in space.spaces]}
    if isinstance(space, spaces.Box):
        bounds = {"low": space.low.tolist(), "high": space.high.tolist()}
        return {"type": "Box", **dtype, "shape": list(space.shape), **bounds}
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", **dtype, "start": int(space.start), "n": int(space.n)}
    if isinstance(space, spaces.MultiDiscrete):
        start, nvec = space.start.tolist(), space.nvec.tolist()
        return {"type": "MultiDiscrete", **dtype, "nvec": nvec, "start": start}
    if isinstance(space, spaces.MultiBinary):
        n = list(space.n) if isinstance(space.n, (tuple, list, np.ndarray)) else int(space.n)
        return {"type": "MultiBinary", "n": n}
    if isinstance(space, spaces.Text):
        lengths = {"max_length": space.max_length, "min_length": space.min_length}
        return {"type": "Text", **lengths, "charset": space.characters}
    raise TypeError(
        f"about: {key}: expected a space of numbers or texts, as Minari has no others, or its "
        f"JSON; got {space!r}"
    )


def _nested(node: Any) -> dict[str, Any]:
    if "type" in node and not isinstance(node["type"], dict):
        return dict(node)
    if is_tuple(node):
        return {"type": "Tuple", "subspaces": [_nested(node[str(k)]) for k in range(len(node))]}
    return {"type": "Dict", "subspaces": {key: _nested(part) for key, part in node.items()}}


def is_tuple(node: Mapping[str, Any]) -> bool:
    """Whether the keys of a nest are numbers from 0 on."""
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


class Leaf:
    """A space without parts, from its JSON in Minari's form, ``node``."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        self.node = dict(found)
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
        return (
            self.kind == "Box"
            and self.dtype == "uint8"
            and len(self.shape) in (2, 3)
            and min(self.shape[:2]) >= IMAGE_LEAST
        )


def leaves(text: Any, name: str) -> dict[Place, Leaf]:
    """The leaves of a space in the metadata, by path; none if ``text`` is no string."""
    if not isinstance(text, str):
        return {}
    try:
        return dict(_leaves(load_json(text, name), ()))
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError) as error:
        raise ValueError(f"{name}: expected a space as Minari writes it: {error!r}") from None


def _leaves(node: Any, path: Place) -> Iterator[tuple[Place, Leaf]]:
    if node.get("type") == "Dict":
        for key, part in node["subspaces"].items():
            yield from _leaves(part, (*path, str(key)))
    elif node.get("type") == "Tuple":
        for k, part in enumerate(node["subspaces"]):
            yield from _leaves(part, (*path, str(k)))
    else:
        yield path, Leaf(node)
