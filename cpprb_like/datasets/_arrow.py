"""What the formats of Arrow share: fields as columns, and the rows of Parquet files in any order.

A value of shape ``(2, 3)`` is a fixed-size list of fixed-size lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from cpprb_like.datasets._files import is_native, need
from cpprb_like.datasets._model import Array, Field

__all__ = [
    "Cursor",
    "column",
    "field_of",
    "flat",
    "opened",
    "part",
    "parts",
    "reading",
    "struct",
    "values_of",
]

MOST_AXES = 32


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Whatever pyarrow says of a damaged file, as a ``ValueError`` that names it."""
    try:
        yield
    except (FileNotFoundError, IsADirectoryError, PermissionError, MemoryError):
        raise
    except ValueError as error:  # ArrowInvalid is one
        if str(error).startswith(str(path)):
            raise
        raise ValueError(f"{path}: {error}") from error
    except (OSError, KeyError, TypeError, AttributeError, NotImplementedError, IndexError) as error:
        raise ValueError(f"{path}: expected a sound file of Arrow: {error}") from error


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


def flat(found: Any, name: str) -> tuple[Array, tuple[int, ...]]:
    """The numbers of an array of Arrow, one after the other, and the shape of each value."""
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
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise ValueError(f"{name}: expected numbers, got {kind}")
    values: Array = found.to_numpy(zero_copy_only=False)
    if len(values) != n * int(np.prod(shape, dtype=np.int64)):
        raise ValueError(f"{name}: expected {n} values of shape {tuple(shape)}")
    return values, tuple(shape)


def values_of(found: Any, name: str, field: Field, *, is_flat: bool = False) -> Array:
    """The values of a field, as ``column`` wrote them; ``ValueError`` if they are others."""
    values, shape = flat(found, name)
    dtype, expected = field.dtype, field.shape
    size = int(np.prod(expected, dtype=np.int64))
    if values.dtype != dtype or (shape != expected and not (is_flat and shape == (size,))):
        raise ValueError(
            f"{name}: expected {dtype} of shape {expected}, got {values.dtype} of shape {shape}"
        )
    return values.reshape(len(found), *expected)


def field_of(found: Any, name: str) -> Field | None:
    """The field that values make; None if they are no plain numbers."""
    try:
        values, shape = flat(found, name)
    except ValueError:
        return None
    return Field(name, values.dtype, shape) if is_native(values.dtype) else None


def opened(path: Path) -> Any:
    """A Parquet file."""
    parquet = need("pyarrow.parquet", "parquet")
    with reading(path):
        return parquet.ParquetFile(path, pre_buffer=False)


class Cursor:
    """Rows of a Parquet file: fast where they follow those that were read before.

    Holds one batch, of at most ``most`` rows.
    """

    def __init__(self, path: Path, file: Any, columns: list[str], most: int) -> None:
        self._path, self._file, self._columns, self._most = path, file, columns, most
        counts = [file.metadata.row_group(k).num_rows for k in range(file.metadata.num_row_groups)]
        self._starts = np.cumsum([0, *counts], dtype=np.int64)
        self._batches: Iterator[Any] = iter(())
        self._group = -1
        self._batch: Any = None
        self._start = self._stop = 0  # of the batch

    def read(self, start: int, stop: int) -> Iterator[Any]:
        """Batches that have the rows from ``start`` to ``stop``, in order."""
        while start < stop:
            if not self._start <= start < self._stop:
                self._go_to(start)
            n = min(stop, self._stop) - start
            with reading(self._path):
                yield self._batch.slice(start - self._start, n)
            start += n

    def _go_to(self, row: int) -> None:
        """Read on to the batch of a row, in the group of rows that has it and in no other."""
        group = int(np.searchsorted(self._starts, row, side="right")) - 1
        if group >= len(self._starts) - 1:
            raise ValueError(f"{self._path}: expected row {row}, got {self._starts[-1]} rows")
        with reading(self._path):
            if group != self._group or row < self._start:
                self._batch = None
                self._batches = self._file.iter_batches(
                    self._most, [group], self._columns, use_threads=False
                )
                self._group, self._stop = group, int(self._starts[group])
            while self._stop <= row:
                self._batch = next(self._batches, None)
                if self._batch is None or len(self._batch) == 0:
                    raise ValueError(f"expected row {row}, got {self._stop} rows")
                self._start, self._stop = self._stop, self._stop + len(self._batch)


def struct(
    parts: Mapping[tuple[str, ...], Any],
    shapes: Mapping[tuple[str, ...], tuple[int, ...]] = MappingProxyType({}),
) -> Any:
    """Arrays by path as an array of structs; that of path () as it is.

    ``shapes`` are those of values that are flat lists: metadata of their fields, as Minari has it.
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


def part(found: Any, path: tuple[str, ...], name: str) -> Any:
    """The array at a path of an array of structs."""
    pa = need("pyarrow", "arrow")
    for key in path:
        if not pa.types.is_struct(found.type) or found.type.get_field_index(key) < 0:
            raise ValueError(f"{name}: expected a struct with {key!r}, got {found.type}")
        if found.null_count:
            raise ValueError(f"{name}: expected values only, got {found.null_count} nulls")
        found = found.flatten()[found.type.get_field_index(key)]  # which heeds a slice
    return found


def parts(kind: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of a type's leaves."""
    pa = need("pyarrow", "arrow")
    if pa.types.is_struct(kind) and len(path) < MOST_AXES:
        for k in range(kind.num_fields):
            yield from parts(kind.field(k).type, (*path, kind.field(k).name))
    else:
        yield path
