"""Arrow and Parquet: conversion of fields to columns and back, writer and reader of Parquet files.

A value of shape ``(2, 3)`` is a fixed-size list of fixed-size lists. An axis of any length is a
list, and a text is a string.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np

from cpprb_like._machine.opening import open_regular
from cpprb_like.datasets._files import is_native, need, reading
from cpprb_like.datasets._from_buffer import CHUNK_NBYTES, rows_in_chunk
from cpprb_like.datasets._model import (
    Array,
    Field,
    Header,
    Place,
    Rows,
    ragged_field,
    text_field,
)
from cpprb_like.datasets._ragged import flat as flat_numbers
from cpprb_like.datasets._ragged import split

MOST_AXES = 32
EXTENSION = b"ARROW:extension:name"  # metadata key of columns whose type is not registered


def column(values: Array, *, is_flat: bool = False) -> Any:
    """Values as an array of Arrow: numbers, or fixed-size lists of them.

    With ``is_flat`` each value is one list, of length 1 for a single number.
    """
    pa = need("pyarrow", "arrow")
    n, shape = len(values), values.shape[1:]
    if is_flat:
        shape = (int(np.prod(shape)),)
    made = pa.array(np.ascontiguousarray(values).reshape(-1))
    for length in reversed(shape):
        made = pa.FixedSizeListArray.from_arrays(made, length)
    if len(made) != n:
        raise ValueError(f"expected {n} values, got {len(made)}")
    return made


def is_number(kind: Any) -> bool:
    """Whether a type of Arrow is that of numbers or bools."""
    types = need("pyarrow", "arrow").types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def flat(found: Any, name: str) -> tuple[Array, tuple[int, ...]]:
    """The numbers of an array of Arrow as a flat array, and the shape of each value."""
    pa = need("pyarrow", "arrow")
    shape: list[int] = []
    n = len(found)
    while True:
        if found.null_count:
            raise ValueError(f"{name}: expected values only, got {found.null_count} nulls")
        kind = found.type
        if pa.types.is_fixed_size_list(kind):
            shape.append(int(kind.list_size))
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            lengths = found.value_lengths().unique().to_pylist()
            if len(lengths) > 1:
                raise ValueError(f"{name}: expected values of one length, got {lengths[:5]}")
            shape.append(int(lengths[0]) if lengths else 0)
        else:
            break
        if len(shape) > MOST_AXES:
            raise ValueError(f"{name}: expected at most {MOST_AXES} axes")
        found = found.flatten()
    if not is_number(kind):
        raise ValueError(f"{name}: expected numbers, got {kind}")
    values: Array = found.to_numpy(zero_copy_only=False)
    if len(values) != n * int(np.prod(shape, dtype=np.int64)):
        raise ValueError(f"{name}: expected {n} values of shape {tuple(shape)}")
    return values, tuple(shape)


def is_text(found: Any) -> bool:
    """Whether an array of Arrow has strings."""
    types = need("pyarrow", "arrow").types
    kind = found.type.value_type if types.is_dictionary(found.type) else found.type
    return bool(types.is_string(kind) or types.is_large_string(kind))


def ragged_column(values: Array, field: Field) -> Any:
    """Values of any length as an array of Arrow. Numbers are copied once, into one piece."""
    pa = need("pyarrow", "arrow")
    if field.is_text:
        return pa.array(values.tolist(), pa.string())
    numbers, counts = flat_numbers(values, field)
    lists = math.prod(field.shape[: field.axis_at])  # of a row, at the level of the axis
    offsets = np.append(0, np.repeat(counts, lists).cumsum())
    made = pa.array(numbers)
    for axis in reversed(range(len(field.shape))):
        if axis != field.axis_at:
            made = pa.FixedSizeListArray.from_arrays(made, field.shape[axis])
        elif offsets[-1] < 1 << 31:
            made = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), made)
        else:
            made = pa.LargeListArray.from_arrays(pa.array(offsets), made)
    return made


def list_lengths(found: Any, name: str) -> tuple[Any, list[Array]]:
    """The flat values of lists of Arrow, and the lengths of the lists of each level."""
    types, lengths = need("pyarrow", "arrow").types, []
    while True:
        if found.null_count:
            raise ValueError(f"{name}: expected values only, got {found.null_count} nulls")
        kind = found.type
        if types.is_fixed_size_list(kind):
            lengths.append(np.full(len(found), kind.list_size, np.int64))
        elif types.is_list(kind) or types.is_large_list(kind):
            lengths.append(found.value_lengths().to_numpy().astype(np.int64))
        else:
            return found, lengths
        if len(lengths) > MOST_AXES:
            raise ValueError(f"{name}: expected at most {MOST_AXES} axes")
        found = found.flatten()


def ragged_values(found: Any, name: str, field: Field) -> Array:
    """The values of a ragged field; ``ValueError`` if dtype or shape differ."""
    if field.is_text:
        if not is_text(found) or found.null_count:
            raise ValueError(
                f"{name}: expected texts, got {found.type} with {found.null_count} nulls"
            )
        return np.array(found.to_pylist(), object)
    numbers, lengths = list_lengths(found, name)
    at, values = field.axis_at, numbers.to_numpy(zero_copy_only=False)
    lists = math.prod(field.shape[:at])
    fits = len(lengths) == len(field.shape) and values.dtype == field.dtype
    counts = lengths[at][::lists] if fits else np.zeros(0, np.int64)
    for axis, of_level in enumerate(lengths if fits else ()):
        expected: Any = np.repeat(counts, lists) if axis == at else field.shape[axis]
        fits = fits and len(counts) == len(found) and bool(np.all(of_level == expected))
    if not fits:
        raise ValueError(
            f"{name}: expected {field.dtype} of shape {field.declared_shape}, got {found.type}"
            f"{' with lists of other lengths' if len(lengths) == len(field.shape) else ''}"
        )
    return split(values, counts, field)


class ListLengths:
    """The least and the greatest length of lists, by level, in the pieces of a column.

    Texts have no levels.
    """

    def __init__(self) -> None:
        self._dtype: Any = None
        self._empty: Any = None  # an array of the dtype without numbers
        self._reason: str | None = None  # why the column makes no field
        self._ranges: list[tuple[int, int]] = []

    def add(self, found: Any, name: str) -> None:
        """Note the lists of a piece."""
        try:
            numbers, lengths = list_lengths(found, name)
        except ValueError as error:
            self._reason = str(error)
            return
        self._dtype, self._empty = numbers.type, numbers.slice(0, 0)
        self._ranges = self._ranges or [(1 << 62, -1)] * len(lengths)
        self._ranges = [
            (int(of_level.min(initial=least)), int(of_level.max(initial=most)))
            for (least, most), of_level in zip(self._ranges, lengths, strict=True)
        ]

    def join(self, other: ListLengths) -> None:
        """Have one range with another column for each level, if both have the same type."""
        if (self._dtype, len(self._ranges)) == (other._dtype, len(other._ranges)):
            pairs = zip(self._ranges, other._ranges, strict=True)
            self._ranges = other._ranges = [
                (min(one[0], two[0]), max(one[1], two[1])) for one, two in pairs
            ]

    def field(self, name: str) -> Field | str | None:
        """The field, or the reason why there is none; None if all lists have the same lengths."""
        axes = [at for at, (least, most) in enumerate(self._ranges) if least < most]
        if self._reason or not axes:
            return self._reason
        if len(axes) > 1 or not is_number(self._dtype):
            return f"{self._dtype} in lists that differ in length at {len(axes)} levels"
        shape = tuple(max(0, most) for _, most in self._ranges)
        dtype = self._empty.to_numpy(zero_copy_only=False).dtype
        return ragged_field(name, dtype, shape, axes[0])


def values_of(found: Any, name: str, field: Field, *, is_flat: bool = False) -> Array:
    """The values of a field, written by ``column``; ``ValueError`` if dtype or shape differ."""
    if field.is_ragged:
        return ragged_values(found, name, field)
    values, shape = flat(found, name)
    dtype, expected = field.dtype, field.shape
    size = int(np.prod(expected, dtype=np.int64))
    if values.dtype != dtype or (shape != expected and not (is_flat and shape == (size,))):
        raise ValueError(
            f"{name}: expected {dtype} of shape {expected}, got {values.dtype} of shape {shape}"
        )
    return values.reshape(len(found), *expected)


def field_of(found: Any, name: str) -> Field | None:
    """The field of values; None if they are neither plain numbers nor texts."""
    if is_text(found) and not found.null_count:
        return text_field(name)
    try:
        values, shape = flat(found, name)
    except ValueError:
        return None
    return Field(name, values.dtype, shape) if is_native(values.dtype) else None


def rows_in_group(header: Header) -> int:
    """Rows of a group of Parquet: writing takes up to 8 bytes for each byte of a row."""
    return rows_in_chunk(header.row_nbytes, 8)


class ParquetWriter:
    """Writer of a Parquet file. Rows are collected in memory and written in groups of ``most``.

    ``metadata`` is stored in the schema. ``options`` are those of ``pyarrow.parquet``.
    """

    def __init__(
        self, path: Path, most: int, metadata: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._most, self._metadata, self._options = path, most, metadata, options
        self._waiting: list[Any] = []
        self._n = self._nbytes = 0
        self._writer: Any = None

    def add(self, columns: Mapping[str, Any]) -> None:
        """Append rows: an array of Arrow for each column."""
        table = need("pyarrow", "arrow").table(dict(columns))
        self._waiting.append(table.replace_schema_metadata(self._metadata))
        self._n, self._nbytes = self._n + len(table), self._nbytes + table.nbytes
        if self._n >= self._most or self._nbytes >= CHUNK_NBYTES:
            self._write()

    def _write(self) -> None:
        table = need("pyarrow", "arrow").concat_tables(self._waiting)
        self._waiting, self._n, self._nbytes = [], 0, 0
        if self._writer is None:
            writer = need("pyarrow.parquet", "arrow").ParquetWriter
            self._writer = writer(self._path, table.schema, **self._options)
        self._writer.write_table(table, row_group_size=self._most)

    def close(self) -> None:
        if self._n:
            self._write()
        if self._writer is not None:
            self._writer.close()

    def abandon(self) -> None:
        """Close the file after an error, which closing may repeat."""
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.close()


class ParquetFiles:
    """The rows of several Parquet files, numbered through all files.

    One file is open at a time, and one of its groups of rows is in memory.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = list(paths)
        self._number = -1
        self._opened: BinaryIO | None = None
        self._file: Any = None  # reader of the open file
        self.most = 1  # rows of the open file that are read at a time
        self._key: tuple[Any, ...] = ()  # number and columns of the group in memory

    def open(self, number: int) -> Any:
        """Open a file, as a ``pyarrow.parquet.ParquetFile``."""
        if number != self._number:
            self.close()
            with reading(self.paths[number]):
                module = need("pyarrow.parquet", "parquet")
                self._opened = open_regular(self.paths[number])
                self._file = module.ParquetFile(self._opened, pre_buffer=False)
                meta = self._file.metadata
            groups = [meta.row_group(k) for k in range(meta.num_row_groups)]
            counts = [group.num_rows for group in groups]
            self._groups = np.cumsum([0, *counts], dtype=np.int64)
            nbytes = sum(group.total_byte_size for group in groups)
            self.most = rows_in_chunk(nbytes // max(1, meta.num_rows))
            self._number = number
        return self._file

    @cached_property
    def starts(self) -> Array:
        """Number of the first row of each file; last, the number of all rows."""
        counts = [self.open(number).metadata.num_rows for number in range(len(self.paths))]
        return np.cumsum([0, *counts], dtype=np.int64)

    def read(
        self, start: int, stop: int, columns: list[str], most: int, convert: Callable[[Any], Rows]
    ) -> Iterator[Rows]:
        """The rows from ``start`` to ``stop``, converted from batches of at most ``most`` rows.

        Batches are smaller if rows of the file are large, as those of any length may be.
        """
        while start < stop:
            number = int(np.searchsorted(self.starts, start, side="right")) - 1
            if number >= len(self.paths):
                raise ValueError(f"expected row {start}, got {self.starts[-1]} rows")
            with reading(self.paths[number]):
                self.open(number)
                row = start - int(self.starts[number])
                first, group = self._group(row, columns)
                n = min(most, self.most, stop - start)
                for found in group.slice(row - first, n).to_batches():
                    yield convert(found)
                    start += len(found)

    def _group(self, row: int, columns: list[str]) -> tuple[int, Any]:
        """The number of the first row of the group that has a row, and the group as a table."""
        starts = self._groups
        group = int(np.searchsorted(starts, row, side="right")) - 1
        if group >= len(starts) - 1:
            raise ValueError(f"expected row {row}, got {starts[-1]} rows")
        if self._key != (group, *columns):
            table = self._file.read_row_group(group, columns, use_threads=False)
            if len(table) != starts[group + 1] - starts[group]:
                raise ValueError(f"expected rows up to {starts[group + 1]}, got {len(table)}")
            self._key, self._table = (group, *columns), table.combine_chunks()
        return int(starts[group]), self._table

    def close(self) -> None:
        self._key, self._table = (), None
        if self._file is not None:
            self._file.close()
        if self._opened is not None:
            self._opened.close()
        self._file, self._opened, self._number = None, None, -1


def struct(
    parts: Mapping[Place, Any],
    shapes: Mapping[Place, tuple[int, ...]] = MappingProxyType({}),
) -> Any:
    """An array of structs, made of arrays by path. A lone array of path () is returned unchanged.

    ``shapes`` are shapes of values in flat lists. They become metadata of the fields, as in Minari.
    """
    pa = need("pyarrow", "arrow")
    if () in parts:
        return parts[()]
    arrays, fields = [], []
    for name in dict.fromkeys(path[0] for path in parts):
        found, said = (
            {path[1:]: value for path, value in values.items() if path[0] == name}
            for values in (parts, shapes)
        )
        arrays.append(struct(found, said))
        shape = ",".join(map(str, said.get((), ())))
        fields.append(pa.field(name, arrays[-1].type, metadata={"shape": shape} if shape else None))
    return pa.StructArray.from_arrays(arrays, fields=fields)


def part(found: Any, path: Place, name: str) -> Any:
    """The array at a path of an array of structs."""
    pa = need("pyarrow", "arrow")
    for key in path:
        if not pa.types.is_struct(found.type) or found.type.get_field_index(key) < 0:
            raise ValueError(f"{name}: expected a struct with {key!r}, got {found.type}")
        if found.null_count:
            raise ValueError(f"{name}: expected values only, got {found.null_count} nulls")
        found = found.flatten()[found.type.get_field_index(key)]  # field() ignores slices
    return found


def parts(field: Any, path: Place = ()) -> Iterator[Place]:
    """The paths of a column's leaves. An extension that was not registered is a leaf."""
    pa = need("pyarrow", "arrow")
    kind = field.type
    is_nest = pa.types.is_struct(kind) and EXTENSION not in (field.metadata or {})
    if is_nest and len(path) < MOST_AXES:
        for k in range(kind.num_fields):
            yield from parts(kind.field(k), (*path, kind.field(k).name))
    else:
        yield path
