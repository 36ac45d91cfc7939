"""Minari with Arrow: a folder for each episode, with one batch of its steps.

One row more than there are steps: the last has the final observation, and zeros in every other
column. Minari's loader takes each batch for an episode, so an episode is written at once and takes
its memory; it is read in pieces. Folders with Parquet are read too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cpprb_like.datasets import _arrow, _minari_metadata
from cpprb_like.datasets._files import need, reading
from cpprb_like.datasets._minari_metadata import Leaf
from cpprb_like.datasets._minari_storage import (
    ENDS,
    INFOS,
    SEED,
    MinariWriter,
    Storage,
    StoredEpisode,
    info_of_reset,
)
from cpprb_like.datasets._model import Array, EpisodeRecord, Field, Header, Rows, load_json
from cpprb_like.datasets._model import Path as Parts

__all__ = ["ArrowStorage", "ArrowWriter"]

NAME = "minari-arrow"
FILE = "part-0.arrow"
METADATA = "metadata.json"
FLAT = ("observations", "actions")  # Minari reads a list of each value


class ArrowWriter(MinariWriter):
    """Writes the folders."""

    def __init__(self, path: Path, header: Header, about: Mapping[str, Any]) -> None:
        need("pyarrow", NAME)
        super().__init__(path, header, about)
        self._numbers = set()  # fields that Minari reads as numbers, and not as lists
        parts = header.observations, header.actions
        for key, named in zip(_minari_metadata.SPACES, parts, strict=True):
            known = _minari_metadata.leaves(about[key], key)
            self._numbers |= {
                name for name, path in named.items() if known[path].kind == "Discrete"
            }
        self._nbytes = 0

    def episode(self, number: int, record: EpisodeRecord, chunks: Iterator[Rows]) -> None:
        """Write the folder of an episode."""
        pa = need("pyarrow", NAME)
        header, n = self._header, record.length
        pieces = [{name: values.copy() for name, values in rows.items()} for rows in chunks]
        rows = {name: np.concatenate([piece[name] for piece in pieces]) for name in header.names}
        columns: dict[str, dict[Parts, Any]] = {}
        shapes: dict[Parts, tuple[int, ...]] = {}
        for name, (column, *path) in self._places.items():
            values, field = rows[name], header.stored(name)
            last = rows[header.chained[name]][-1:] if name in header.chained else values[:1] * 0
            if column == INFOS:
                shapes[tuple(path)] = field.shape
                values, last = info_of_reset(header[name]), values
            whole = np.concatenate([values, last]).astype(field.dtype, copy=False)
            whole = whole.reshape(n + 1, *field.shape)
            is_flat = column in FLAT or (column == INFOS and whole.ndim > 1)
            made = _arrow.column(whole, is_flat=is_flat and name not in self._numbers)
            columns.setdefault(column, {})[tuple(path)] = made
        arrays = {
            column: _arrow.struct(found, shapes if column == INFOS else {})
            for column, found in columns.items()
        }
        flags = header.last_flags(rows, n, record, is_last=True)
        for column, marks in zip(ENDS, flags, strict=True):
            arrays[column] = pa.array(np.append(marks, False))
        folder = self._folder / str(number)
        folder.mkdir()
        batch = pa.RecordBatch.from_pydict(arrays)
        with (
            pa.OSFile(str(folder / FILE), "wb") as file,
            pa.ipc.new_file(file, batch.schema) as out,
        ):
            out.write_batch(batch)
        found = {"id": number, "total_steps": n}
        seed = self._seed_in(rows)
        if seed is not None and self._count_seed(seed):
            found[SEED] = seed
        (folder / METADATA).write_text(json.dumps(found), encoding="utf-8")
        self._nbytes += batch.nbytes

    def close(self) -> None:
        """Write the metadata."""
        _minari_metadata.write(self._folder, self._header, "arrow", self._nbytes, self._about)


class ArrowStorage(Storage):
    """The folders of a data set, with files of Arrow or of Parquet."""

    def __init__(self, folder: Path, metadata: Mapping[str, Any]) -> None:
        super().__init__()
        need("pyarrow", NAME)
        self.place, self.kind = folder, str(metadata.get("data_format"))
        self.count = sum(path.is_dir() for path in folder.iterdir())

    def episode(self, number: int) -> StoredEpisode:
        """The folder of an episode."""
        pa = need("pyarrow", NAME)
        folder = self.place / str(number)
        paths = sorted(folder.glob(f"*.{self.kind}"))
        if len(paths) != 1:
            raise ValueError(f"{folder}: expected one file of {self.kind}, got {len(paths)}")
        with reading(paths[0]):
            if self.kind == "parquet":
                table = need("pyarrow.parquet", NAME).ParquetFile(paths[0]).read()
            else:
                table = pa.ipc.open_file(pa.memory_map(str(paths[0]))).read_all()
            table.validate(full=True)
        return _Folder(self, folder, table)


class _Folder(StoredEpisode):
    """The folder of an episode, with its steps in memory that belongs to the file."""

    def __init__(self, storage: ArrowStorage, folder: Path, table: Any) -> None:
        self._storage, self._table = storage, table
        self.length = table.num_rows - 1
        path = folder / METADATA
        found = load_json(path.read_bytes(), str(path)) if path.is_file() else {}
        seed = found.get(SEED) if isinstance(found, dict) else None
        self.seed = seed if type(seed) is int else None

    def paths(self) -> Iterator[Parts]:
        """The paths of all values."""
        for column in self._table.schema:
            if column.name != "episode_id":
                yield from ((column.name, *path) for path in _arrow.parts(column))

    def field(self, path: Parts, name: str, leaf: Leaf | None) -> Field | str:
        """The field that a column makes, or the reason why it makes none."""
        found = self._values(path, 0, min(2, self._table.num_rows))
        if leaf is not None and leaf.is_image and need("pyarrow", NAME).types.is_binary(found.type):
            self._storage.images[path] = leaf
            return Field(name, np.dtype(np.uint8), leaf.shape)
        field = _arrow.field_of(found, name)
        if field is None:
            return str(found.type)
        shape = _shape(self._table.schema.field(path[0]), path)
        if leaf is not None and leaf.kind != "Discrete":
            shape = leaf.shape
        if shape is not None and int(np.prod(shape)) == int(np.prod(field.shape)):
            field = replace(field, shape=shape)
        return field

    def extra(self, path: Parts) -> int:
        """Rows of a column beyond one for each step."""
        del path
        return 1

    def _values(self, path: Parts, start: int, stop: int) -> Any:
        column, *rest = path
        if column not in self._table.column_names:
            raise ValueError(f"{column}: expected a column of this name, got none")
        pa, found = need("pyarrow", NAME), self._table.column(column).slice(start, stop - start)
        whole = pa.concat_arrays(found.chunks or [pa.array([], found.type)])
        return _arrow.part(whole, tuple(rest), column)

    def read(self, path: Parts, start: int, stop: int, field: Field) -> Array:
        """Rows of a column."""
        found = self._values(path, start, stop)
        if path not in self._storage.images:
            return _arrow.values_of(found, path[0], field, is_flat=True)
        return np.stack([self._storage.decoded(value.as_py() or b"", path) for value in found])

    def is_set(self, path: Parts) -> bool:
        """Whether the flag of the last step is set."""
        column = path[0]
        there = column in self._table.column_names
        return there and bool(self._table.column(column)[self.length - 1].as_py())


def _shape(field: Any, path: Parts) -> tuple[int, ...] | None:
    """The shape of each value, where Minari says it of a field of infos."""
    for key in path[1:]:
        field = field.type.field(key)
    said = (field.metadata or {}).get(b"shape")
    if len(path) == 1 or said is None:
        return None
    lengths = [text for text in said.decode(errors="replace").split(",") if text]
    return tuple(int(text) for text in lengths) if all(map(str.isdigit, lengths)) else None
