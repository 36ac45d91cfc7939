"""Columns with values of any length: an array of objects, with an array or a str for each row.

So pieces of rows are cut and joined as those of numbers. Not here: the lists of a file format.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from cpprb_like._arguments.arrays import Array
from cpprb_like._fields.field import Field


def column(rows: Iterable[Any], n: int) -> Array:
    """The values of n rows as a column."""
    return np.fromiter(rows, object, n)


def blank(field: Field, n: int) -> Array:
    """A column of n rows without items."""
    value = "" if field.is_text else np.zeros(field.shape, field.dtype)
    return column((value for _ in range(n)), n)


def of_batch(batch: Mapping[str, Array], field: Field) -> Array:
    """The column of a field in a padded batch of a buffer."""
    values = batch[field.name]
    if field.is_text:
        return values.astype(object)
    counts = batch[f"{field.axis}_mask"].sum(axis=1).tolist()
    before = (slice(None),) * field.axis_at
    rows = (row[(*before, slice(n))].copy() for row, n in zip(values, counts, strict=True))
    return column(rows, len(values))


def flat(values: Array, field: Field) -> tuple[Array, Array]:
    """The numbers of a column, row after row, and the number of items of each row."""
    counts = np.fromiter((row.shape[field.axis_at] for row in values), np.int64, len(values))
    numbers = np.concatenate([np.zeros(0, field.dtype), *(row.reshape(-1) for row in values)])
    return numbers, counts


def split(numbers: Array, counts: Array, field: Field) -> Array:
    """The column of the numbers and counts of ``flat``."""
    ends = np.append(0, counts.cumsum() * math.prod(field.item_shape)).tolist()
    before, after = field.shape[: field.axis_at], field.shape[field.axis_at + 1 :]
    rows = (
        numbers[start:stop].reshape(*before, n, *after)
        for (start, stop), n in zip(pairwise(ends), counts.tolist(), strict=True)
    )
    return column(rows, len(counts))


def nbytes_of(field: Field) -> int:
    """Bytes of a row in a column; of a value of any length, those of its reference."""
    return 8 if field.is_ragged else field.nbytes


def bytes_of_rows(values: Array) -> list[bytes]:
    """The bytes of each row of a column of any kind; of a text those of UTF-8."""
    return [row.encode() if isinstance(row, str) else row.tobytes() for row in values]


def items_of(values: Array, at: int) -> int:
    """The number of items of all rows: along axis ``at`` of a row, or bytes of texts."""
    if values.dtype != object:
        return len(values) * (values.shape[1 + at] if values.ndim > 1 + at else 0)
    return sum(len(row.encode()) if isinstance(row, str) else row.shape[at] for row in values)
