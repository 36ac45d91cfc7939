"""Storage of Minari with Arrow: a folder for each episode, with one record batch.

A batch has one row more than there are steps. The last row has the final observation, and zeros in
every other column. Minari's loader reads each batch as an episode, so a whole episode is in memory
when it is written. Reading takes pieces. Folders with Parquet are read too.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cpprb_like._machine.opening import open_regular, read_bytes
from cpprb_like.datasets import _arrow
from cpprb_like.datasets._files import need, reading
from cpprb_like.datasets._images import decoded
from cpprb_like.datasets._minari_metadata import INFOS, METADATA, OF_RESET, Leaf, StoredEpisode
from cpprb_like.datasets._model import Array, Field, Place, load_json
from cpprb_like.datasets._ragged import blank

NAME = "minari-arrow"
FILE = "part-0.arrow"
LISTS = ("observations", "actions")  # columns in which Minari expects each value as a list


class ArrowOutput:
    """Writes the folders of a data set."""

    kind = "arrow"

    def __init__(self, folder: Path, columns: Mapping[Place, Field], numbers: set[Place]) -> None:
        need("pyarrow", NAME)
        self._folder, self._columns = folder, columns
        self._numbers = numbers  # columns of ``LISTS`` in which Minari expects numbers
        self._nbytes = 0

    def begin(self, number: int, n: int) -> None:
        self._number, self._n = number, n
        self._whole = {
            path: blank(field, n + 1)
            if field.is_text
            else np.zeros((n + 1, *field.shape), field.dtype)
            for path, field in self._columns.items()
        }

    def put(self, path: Place, at: int, values: Array) -> None:
        self._whole[path][at : at + len(values)] = values

    def end(self) -> None:
        pa, n = need("pyarrow", NAME), self._n
        parts: dict[str, dict[Place, Any]] = {}
        shapes: dict[Place, tuple[int, ...]] = {}
        for path, whole in self._whole.items():
            column, *rest = path
            if column == INFOS:
                shapes[tuple(rest)] = whole.shape[1:]
            if self._columns[path].is_text:
                made = _arrow.ragged_column(whole, self._columns[path])
            else:
                is_list = column in LISTS or (column == INFOS and whole.ndim > 1)
                made = _arrow.column(whole, is_flat=is_list and path not in self._numbers)
            parts.setdefault(column, {})[tuple(rest)] = made
        batch = pa.RecordBatch.from_pydict(
            {
                column: _arrow.struct(found, shapes if column == INFOS else {})
                for column, found in parts.items()
            }
        )
        self._whole = {}
        folder = self._folder / str(self._number)
        folder.mkdir()
        with (
            pa.OSFile(str(folder / FILE), "wb") as file,
            pa.ipc.new_file(file, batch.schema) as out,
        ):
            out.write_batch(batch)
        found = {"id": self._number, "total_steps": n}
        (folder / METADATA).write_text(json.dumps(found), encoding="utf-8")
        self._nbytes += batch.nbytes

    def close(self) -> int:
        """Return the size of all batches: no file is open."""
        return self._nbytes

    def abandon(self) -> None:
        """No file is open."""


class ArrowStorage:
    """Reads the folders of a data set, with files of Arrow or of Parquet."""

    def __init__(self, folder: Path, metadata: Mapping[str, Any]) -> None:
        need("pyarrow", NAME)
        self.place, self._kind = folder, str(metadata.get("data_format"))
        self.count = sum(path.is_dir() for path in folder.iterdir())

    def episode(self, number: int) -> StoredEpisode:
        """The columns of an episode. Those of Arrow files are mapped from the file."""
        pa = need("pyarrow", NAME)
        folder = self.place / str(number)
        paths = sorted(folder.glob(f"*.{self._kind}"))
        if len(paths) != 1:
            raise ValueError(f"{folder}: expected one file of {self._kind}, got {len(paths)}")
        with reading(paths[0]):
            with open_regular(paths[0]) as opened:
                if self._kind == "parquet":
                    table = need("pyarrow.parquet", NAME).ParquetFile(opened).read()
                else:
                    pages = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
                    table = pa.ipc.open_file(pa.py_buffer(pages)).read_all()
            table.validate(full=True)
        columns = {
            (column.name, *rest): ArrowColumn(table, (column.name, *rest))
            for column in table.schema
            if column.name != "episode_id"
            for rest in _arrow.parts(column)
        }
        file = folder / METADATA
        entries = load_json(read_bytes(file), str(file)) if file.is_file() else {}
        return StoredEpisode(table.num_rows - 1, columns, OF_RESET.intersection(entries))

    def close(self) -> None:
        return


class ArrowColumn:
    """A column of an episode, or a part of a nested column."""

    extra = 1  # rows in addition to the steps

    def __init__(self, table: Any, path: Place) -> None:
        self._table, self._path = table, path

    def _values(self, start: int, stop: int) -> Any:
        column, *rest = self._path
        pa, found = need("pyarrow", NAME), self._table.column(column).slice(start, stop - start)
        whole = pa.concat_arrays(found.chunks or [pa.array([], found.type)])
        return _arrow.part(whole, tuple(rest), column)

    def field(self, name: str, leaf: Leaf | None) -> Field | str:
        """The field of the column, or the reason why it makes none.

        The shape of a list comes from the space (``leaf``), or from metadata of the column.
        """
        found = self._values(0, min(2, self._table.num_rows))
        if leaf is not None and leaf.is_image and self._is_packed(found):
            return Field(name, np.dtype(np.uint8), leaf.shape)
        field = _arrow.field_of(found, name)
        if field is None:
            return str(found.type)
        if field.is_text:
            return field
        shape = _shape(self._table.schema.field(self._path[0]), self._path)
        if leaf is not None and leaf.kind != "Discrete":
            shape = leaf.shape
        if shape is not None and math.prod(shape) == math.prod(field.shape):
            field = replace(field, shape=shape)
        return field

    def read(self, start: int, stop: int, field: Field) -> Array:
        """Rows of the column; images may be JPEG."""
        found, name = self._values(start, stop), self._path[0]
        if field.dtype == np.uint8 and self._is_packed(found):
            return decoded(found.to_pylist(), field.shape, name, NAME, ("JPEG",))
        return _arrow.values_of(found, name, field, is_flat=True)

    @staticmethod
    def _is_packed(found: Any) -> bool:
        return bool(need("pyarrow", NAME).types.is_binary(found.type))


def _shape(field: Any, path: Place) -> tuple[int, ...] | None:
    """The shape of each value of a part of infos, from its metadata; None if it is not there."""
    for key in path[1:]:
        field = field.type.field(key)
    text = (field.metadata or {}).get(b"shape")
    if len(path) == 1 or text is None:
        return None
    lengths = [length for length in text.decode(errors="replace").split(",") if length]
    return tuple(int(length) for length in lengths) if all(map(str.isdigit, lengths)) else None
