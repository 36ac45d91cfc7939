"""Rules of ``update``: which stored fields can get new values, and which values.

Not here: handles of rows (``_rows.row_handles``), the writing (``_rows.gather``), and
``update`` itself (``_replay``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cpprb_like._core import Ring
from cpprb_like._fields.field import Field
from cpprb_like._fields.schema import Schema
from cpprb_like._rows.column import Column
from cpprb_like.errors import FieldNameError
from cpprb_like.samplers._prioritized import read_indexes

Updatable = dict[str, tuple[Field, Column, str | None]]


def read_update(
    known: Updatable, indexes: ArrayLike, fields: dict[str, Any]
) -> tuple[NDArray[np.int64], list[Column], list[NDArray[Any]]]:
    """Indexes of rows, columns and values for ``gather.write``; raises for wrong arguments.

    Ragged fields are left out.
    """
    unknown = [name for name in fields if name not in known]
    if unknown:
        raise FieldNameError(f"unknown fields {unknown}; this buffer has {list(known)}")
    if not fields:
        raise TypeError(f"expected new values of some of the fields {list(known)}, got none")
    chosen = [known[name] for name in fields]
    for field, _, reason in chosen:
        if reason is not None:
            raise ValueError(f"field {field.name!r} cannot be replaced: {reason}")
    rows = read_indexes(indexes)
    fixed = [
        (column, _convert(field, column, fields[field.name], len(rows)))
        for field, column, _ in chosen
        if not field.is_ragged
    ]
    return rows, [column for column, _ in fixed], [array for _, array in fixed]


def updatable_fields(schema: Schema, ring: Ring) -> Updatable:
    """Field, column, and reason why values cannot be replaced, or None, by name of the field."""
    reasons = _reasons(schema)
    return {
        field.name: (field, column, reasons.get(field.name))
        for field, column in zip(schema.fields, ring.columns, strict=True)
        if not field.is_entry
    }


def _reasons(schema: Schema) -> dict[str, str]:
    """Reason why a field cannot be replaced, by name of the field."""
    reasons = {
        stack.name: "of a stack only the newest frame is stored, and rows share them"
        for stack in schema.stacks
    }
    for name, source in schema.next_of:
        reasons[name] = f"it is stored once if it equals {source!r} of the next row"
        reasons.setdefault(source, f"{name!r} of the row before is read from it")
    for number, *_ in schema.end_fields():
        reasons[schema.names[number]] = "it says where an episode ends"
    return reasons


def _convert(field: Field, column: Column, value: object, n: int) -> NDArray[Any]:
    array: Any = column.cast(value)
    if array is None:
        array = field.convert(value, 1)
    if len(array) != n:
        raise ValueError(
            f"field {field.name!r}: expected {n} rows, one for each index, got {len(array)}"
        )
    return array  # type: ignore[no-any-return]
