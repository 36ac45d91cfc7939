"""RLDS: a folder that TensorFlow Datasets reads, with a TFRecord record for each episode.

``steps`` has ``observation``, ``action``, ``reward``, ``is_first``, ``is_last``, ``is_terminal``
and ``discount``. The last step of an episode has the final observation, and zeros in other columns.
Values are written as bytes (``encoding: bytes``), which changes no value. Values of any length have
an unknown dimension. An extra field is a feature of its name. A whole episode is in memory when it
is written or read. Sequences, and images as PNG or JPEG, are read, and not written. Not here:
records and messages (``_tfrecord``), and images (``_images``).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cpprb_like._machine.opening import read_bytes
from cpprb_like.datasets import _tfrecord
from cpprb_like.datasets._files import converted, is_native, need
from cpprb_like.datasets._format import BOTH, Format, Reader, Steps, Writer
from cpprb_like.datasets._images import COLORS, decoded
from cpprb_like.datasets._model import (
    ENDS,
    FLAG,
    Array,
    EpisodeRecord,
    Field,
    Header,
    HeaderBuilder,
    Place,
    Rows,
    between_steps,
    episodes_of,
    load_json,
    nest,
    ragged_field,
    text_field,
)
from cpprb_like.datasets._ragged import column, split

NAME = "rlds"
FEATURES, INFO = "features.json", "dataset_info.json"
DATASET, SPLIT, VERSION = "cpprb_like", "train", "1.0.0"
CORE = "tensorflow_datasets.core.features."
FLAGS = ("is_first", "is_last", "is_terminal")
SHARD = re.compile(r"(?:.*-)?(\w+)\.tfrecord-[0-9]+(?:-of-[0-9]+)?")
NUMBER = r"[0-9]+\.[0-9]+\.[0-9]+"  # of a version
ROLES = {"observation": "obs", "action": "act", "reward": "rew"}
DISCOUNT = "discount"
IMAGE = "image"  # encoding of features that Pillow decodes
TEXT, SEQUENCE = "text", "sequence"
FLOAT = np.dtype(np.float32)


def _places(header: Header) -> dict[str, Place]:
    """Path of each field in a step. A field ``discount`` of one number is RLDS's discount."""
    has_discount = DISCOUNT in header.names and header[DISCOUNT].is_single
    return header.places(ROLES, FLAGS if has_discount else (*FLAGS, DISCOUNT))


# ---------------------------------------------------------------------- writing


def _tensor(field: Field) -> dict[str, Any]:
    if field.is_text:
        return {"pythonClassName": CORE + "text_feature.Text", "text": {}}
    lengths = [-1 if length == field.axis else length for length in field.declared_shape]
    dimensions = {"dimensions": [str(length) for length in lengths]} if lengths else {}
    return {
        "pythonClassName": CORE + "tensor_feature.Tensor",
        "tensor": {"dtype": str(field.dtype), "encoding": "bytes", "shape": dimensions},
    }


def _dict(parts: Mapping[str, Any]) -> dict[str, Any]:
    features = {
        key: part if "pythonClassName" in part else _dict(part) for key, part in parts.items()
    }
    return {
        "pythonClassName": CORE + "features_dict.FeaturesDict",
        "featuresDict": {"features": features},
    }


def _features(columns: Mapping[Place, Field]) -> dict[str, Any]:
    """The contents of ``features.json`` for these columns."""
    flags: dict[Place, Field] = {(name,): Field("", FLAG, ()) for name in FLAGS}
    made = {(DISCOUNT,): Field("", FLOAT, ()), **columns, **flags}
    steps = {
        "pythonClassName": CORE + "dataset_feature.Dataset",
        "sequence": {
            "feature": _dict(nest((path, _tensor(field)) for path, field in made.items())),
            "length": "-1",
        },
    }
    return _dict({"steps": steps, "episode_id": _tensor(Field("", np.dtype(np.int64), ()))})


class RldsWriter(Writer):
    """Writes a folder of TensorFlow Datasets."""

    flags = (("is_terminal",), ("is_last",))

    def __init__(self, path: Path, header: Header, about: Mapping[str, Any]) -> None:
        super().__init__(header, _places(header))
        self._folder, self._about = path, dict(about)
        self._nbytes = 0
        name = f"{DATASET}-{SPLIT}.tfrecord-00000-of-00001"
        self._file = (path / name).open("xb")

    def begin(self) -> None:
        self._pieces: list[Steps] = []

    def steps(self, at: int, steps: Steps) -> None:
        self._pieces.append(steps)

    def end(self, final: Steps) -> None:
        n, pieces = self.record.length, self._pieces
        terminated, truncated = (
            np.concatenate([one[path] for one in pieces]) for path in self.flags
        )
        is_first, is_last, is_terminal = (np.zeros(n + 1, FLAG) for _ in FLAGS)
        is_first[0], is_last[n] = not self.record.is_cut, terminated[-1] or truncated[-1]
        is_terminal[n] = terminated[-1]
        found: Rows = dict(zip(FLAGS, (is_first, is_last, is_terminal), strict=True))
        found[DISCOUNT] = 1 - np.append(terminated, terminated[-1]).astype(FLOAT)
        for path, last in final.items():
            found["/".join(path)] = np.concatenate([*(one[path] for one in pieces), last])
        example = {f"steps/{name}": values for name, values in found.items()}
        data = _tfrecord.dump_example(example | {"episode_id": np.array([self.number], np.int64)})
        _tfrecord.write(self._file, data)
        self._nbytes += len(data)

    def close(self) -> None:
        self._file.close()
        info = {
            "name": DATASET,
            "version": VERSION,
            "fileFormat": "tfrecord",
            "description": "Steps of a replay buffer.",
            "moduleName": "cpprb_like.datasets",
            "splits": [
                {
                    "name": SPLIT,
                    "numBytes": str(self._nbytes),
                    "shardLengths": [str(len(self.header.episodes))],
                    "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
                }
            ],
        }
        documents = {FEATURES: _features(self.columns), INFO: {**info, **self._about}}
        for name, document in documents.items():
            (self._folder / name).write_text(json.dumps(document, indent=1), encoding="utf-8")

    def abandon(self) -> None:
        self._file.close()


# ---------------------------------------------------------------------- reading


class _Leaf(NamedTuple):
    """A feature of a step: its dtype and shape, and how it is encoded."""

    field: Field
    encoding: str


class _Span(NamedTuple):
    """Position of an episode: its record, the first step in it, and the steps of the record."""

    record: _tfrecord.Record
    start: int
    steps: int


class RldsReader(Reader):
    """Reads a folder of TensorFlow Datasets: all of it, or one split."""

    has_final = True

    def read_fields(self) -> HeaderBuilder:
        """The features of a step that have numbers of a known shape."""
        path = self.path / FEATURES
        found = load_json(read_bytes(path), str(path))
        steps = found["featuresDict"]["features"]["steps"]["sequence"]["feature"]
        self._leaves: dict[Place, _Leaf] = {}
        for place, node in _walk(steps):
            leaf = _leaf(node)
            if leaf is None:
                self.left_out.append(f"{'/'.join(place)} ({node.get('pythonClassName')})")
                continue
            if leaf.encoding == IMAGE:
                need("PIL.Image", NAME)
            self._leaves[place] = leaf
        builder = HeaderBuilder(ROLES, self.left_out, derives_next=True, made=ENDS)
        paths = [path for path in self._leaves if path[0] not in FLAGS]
        builder.add(paths, lambda path, name: replace(self._leaves[path].field, name=name))
        return builder

    def read_episodes(self) -> Iterator[tuple[EpisodeRecord, _Span]]:
        """Episodes. A record with a first or last step in its middle has several."""
        marks: list[Place] = [("is_last",)]
        marks += [path for path in [("is_first",), ("is_terminal",)] if path in self._leaves]
        for file in _files(self.path, self.split):
            for record in _tfrecord.records(file):
                steps = self._steps(record, marks)
                flags = {
                    path[0]: values.reshape(len(values)) != 0 for path, values in steps.items()
                }
                n = len(flags["is_last"])
                is_last = flags["is_last"] | flags.get("is_terminal", np.False_)
                is_first = flags.get("is_first", np.zeros(n, np.bool_))
                is_cut = "is_first" in flags and not is_first[:1].any()
                for episode, start in episodes_of(is_first, is_last, is_cut=is_cut):
                    yield episode, _Span(record, start, n)

    def _steps(self, record: _tfrecord.Record, places: list[Place]) -> dict[Place, Array]:
        """Values of the features at these places, for all steps of an episode."""
        try:
            example = _tfrecord.load_example(_tfrecord.read_record(record))
            return {place: self._values(example, place) for place in places}
        except ValueError as error:
            raise ValueError(f"{record.path}: {error}") from None

    def _values(self, example: Mapping[str, Any], place: Place) -> Array:
        name = "/".join(("steps", *place))
        leaf = self._leaves.get(place)
        if leaf is not None and leaf.encoding == SEQUENCE:
            return _sequences(example, name, leaf.field)
        if name not in example or leaf is None:
            raise ValueError(f"{name}: expected a feature of this name, got none")
        (kind, values), (field, encoding) = example[name], leaf
        if field.is_ragged:
            return _ragged(kind, values, name, field)
        if encoding == "bytes":
            size = field.nbytes
            if kind != _tfrecord.BYTES or any(len(value) != size for value in values):
                raise ValueError(f"{name}: expected {size} bytes for each step")
            found = np.frombuffer(b"".join(values), field.dtype)
            return found.reshape(len(values), *field.shape)
        if encoding == IMAGE:
            if kind != _tfrecord.BYTES:
                raise ValueError(f"{name}: expected an image for each step, got numbers")
            return decoded([bytes(value) for value in values], field.shape, name, NAME)
        if kind == _tfrecord.BYTES:
            raise ValueError(f"{name}: expected numbers, got bytes")
        size = max(1, int(np.prod(field.shape)))
        if len(values) % size:
            raise ValueError(f"{name}: expected {size} numbers for each step, got {len(values)}")
        return converted(values, field.dtype, name).reshape(-1, *field.shape)

    def read(self, number: int, most: int, names: Collection[str]) -> Iterator[Rows]:
        n = self.header.episodes[number].length
        chained = {name: after for name, after in self.header.chained.items() if name in names}
        span = self.spans[number]
        flags: list[Place] = [("is_last",), ("is_terminal",)]
        places = {name: place for name, place in self.places.items() if name in names}
        found = self._steps(span.record, [*places.values(), *flags])
        if {len(values) for values in found.values()} != {span.steps}:
            raise ValueError(f"{self.path}: episode {number}: expected {span.steps} steps")
        steps_of_span = slice(span.start, span.start + n + 1)
        found = {place: values[steps_of_span] for place, values in found.items()}
        is_last, is_terminal = (found[place].reshape(n + 1) != 0 for place in flags)
        steps = {name: found[place] for name, place in places.items()}
        steps |= {"terminated": is_terminal, "truncated": is_last & ~is_terminal}
        for start in range(0, n, most):
            part = {name: values[start : start + most + 1] for name, values in steps.items()}
            yield between_steps(part, chained, late=ENDS)


def _ragged(kind: int, values: Any, name: str, field: Field) -> Array:
    """Texts, or values of which one dimension is unknown, each from its bytes."""
    size = field.item_nbytes
    if kind != _tfrecord.BYTES or any(len(value) % size for value in values):
        raise ValueError(f"{name}: expected a multiple of {size} bytes for each step")
    if field.is_text:
        try:
            return column((str(value, "utf-8") for value in values), len(values))
        except UnicodeDecodeError as error:
            raise ValueError(f"{name}: expected texts: {error}") from None
    shape = (*field.shape[: field.axis_at], -1, *field.shape[field.axis_at + 1 :])
    rows = (np.frombuffer(value, field.dtype).reshape(shape) for value in values)
    return column(rows, len(values))


def _sequences(example: Mapping[str, Any], name: str, field: Field) -> Array:
    """The values of a ``Sequence``: all of its numbers, and how many items each step has."""
    empty = _tfrecord.BYTES, ()
    parts = [example.get(f"{name}/ragged_{key}", empty) for key in ("flat_values", "row_lengths_0")]
    values, counts = parts[0][1], parts[1][1]
    size = int(np.prod(field.item_shape, dtype=np.int64))
    if any(kind == _tfrecord.BYTES and len(values) for kind, values in parts):
        raise ValueError(f"{name}: expected numbers, got bytes")
    counts = np.asarray(counts, np.int64)
    if np.any(counts < 0) or np.any(counts > len(values)) or counts.sum() * size != len(values):
        raise ValueError(f"{name}: expected {counts.sum()} items of {size} numbers in all steps")
    return split(converted(np.asarray(values), field.dtype, name), counts, field)


def _walk(node: Any, path: Place = ()) -> Iterator[tuple[Place, Any]]:
    if "featuresDict" in node and len(path) < 32:
        for key, part in node["featuresDict"]["features"].items():
            yield from _walk(part, (*path, str(key)))
    else:
        yield path, node


def _leaf(node: Any) -> _Leaf | None:
    """The feature of a node of ``features.json``; None unless it has images, numbers or texts."""
    if node.get("text") == {}:
        return _Leaf(text_field(""), TEXT)
    if "sequence" in node and str(node["sequence"].get("length")) == "-1":
        inner = _leaf(node["sequence"]["feature"])
        if inner is None or inner.encoding != "none" or inner.field.is_ragged:
            return None
        return _Leaf(ragged_field("", inner.field.dtype, (0, *inner.field.shape), 0), SEQUENCE)
    found = node.get("tensor", node.get("image"))
    if found is None:
        return None
    lengths = [str(length) for length in found.get("shape", {}).get("dimensions", [])]
    try:
        dtype = np.dtype(str(found["dtype"]))
    except TypeError:
        return None
    encoding = str(found.get("encoding", "none")).lower()
    at = lengths.index("-1") if "tensor" in node and encoding == "bytes" and "-1" in lengths else -1
    shape = [text if k != at else "0" for k, text in enumerate(lengths)]
    if len(shape) > 32 or not all(text.isdigit() and len(text) < 10 for text in shape):
        return None
    field = Field("", dtype, tuple(int(text) for text in shape))
    if at >= 0:
        field = ragged_field("", dtype, field.shape, at)
    if "tensor" not in node:
        return _Leaf(field, IMAGE) if _is_image(field) else None
    return _Leaf(field, encoding) if encoding in ("none", "bytes") and is_native(dtype) else None


def _is_image(field: Field) -> bool:
    """Whether Pillow decodes images of this dtype and shape without changing a value."""
    is_colors = len(field.shape) == 3 and field.shape[2] in COLORS
    return field.dtype == np.uint8 and is_colors


def _files(path: Path, split: str | None) -> list[Path]:
    """The files of a split, or all files if no split is named and there is at most one split."""
    files = sorted(path.glob("*.tfrecord*"))
    named = [match[1] if (match := SHARD.fullmatch(found.name)) else "" for found in files]
    splits = sorted({name for name in named if name})
    if split is not None:
        if split not in splits:
            raise ValueError(f"{path}: split: expected one of {splits}, got {split!r}")
        return [found for found, name in zip(files, named, strict=True) if name == split]
    if len(splits) > 1:
        raise ValueError(
            f"{path}: expected the files of one split, got those of {splits}: say split="
        )
    return files


class Rlds(Format):
    """See ``Format``."""

    name = NAME
    reader, writer = RldsReader, RldsWriter
    has_splits = True
    keys = ("description", "citation")
    lacks = (BOTH,)
    library = "tensorflow_datasets"

    def holds(self, field: Field) -> bool:
        """Whether the values of a field can be written: TensorFlow decodes no uint32."""
        return super().holds(field) and field.dtype != np.uint32

    def matches(self, path: Path) -> bool:
        return path.is_dir() and (path / FEATURES).is_file() and any(path.glob("*.tfrecord*"))

    def root(self) -> Path:
        return Path(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()

    def names(self) -> list[str]:
        found = (self.root().glob("*/" * depth + FEATURES) for depth in (2, 3))
        return [file.parent.relative_to(self.root()).as_posix() for one in found for file in one]

    def find(self, name: str) -> Path | None:
        """Path of a local data set: of the newest version, and of the default config, by default.

        A name is ``name``, ``name/config``, ``name:1.0.0`` or ``name/1.0.0``.
        """
        name, _, version = name.partition(":")
        path = self.root() / name
        default = path / ".config" / "metadata.json"
        if default.is_file():
            metadata = load_json(read_bytes(default), str(default))
            path /= str(metadata.get("default_config_name"))
        versions = [one for one in path.glob("*.*.*") if re.fullmatch(NUMBER, one.name)]
        versions.sort(key=lambda one: [int(part) for part in one.name.split(".")])
        choices = [path / version] if version else [path, *versions]
        return next((one for one in reversed(choices) if self.matches(one)), None)

    def download(self, library: Any, name: str) -> None:
        library.builder(re.sub(rf"/({NUMBER})$", r":\1", name)).download_and_prepare()


FORMAT = Rlds()
