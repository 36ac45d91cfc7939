"""``stack`` of every buffer: frames of several rows as one stack.

The caller decides which rows belong to a stack. Not here: added frame stacks that are stored as
single frames (``_rows.chained``), and the copying of plain bytes (``_gather_windows``).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from cpprb_like._arguments.arrays import Array, Slots
from cpprb_like._arguments.checks import as_int
from cpprb_like._arguments.foreign_arrays import read_argument
from cpprb_like._core import Ring
from cpprb_like._fields.schema import check_out
from cpprb_like._machine.aligned import aligned
from cpprb_like._machine.machine_memory import CHECKED_NBYTES, require
from cpprb_like._rows.column import Column
from cpprb_like._rows.row_handles import slots_of
from cpprb_like.views._gather_windows import COPIED_AT_ONCE, take_stacks
from cpprb_like.views._rows import read_fields

__all__ = ["read_stacks", "stack_rows", "take_stacks"]


def stack_rows(
    ring: Ring,
    consistently: Callable[[Callable[[], tuple[Slots, Array]]], Array],
    name: str,
    slots: ArrayLike,
    axis: int,
    out: Array | None,
) -> Array:
    """``ReplayBuffer.stack`` of a buffer with this ring and this ``consistently``."""
    column = _column(ring, name)
    rows = _read_slots(slots)
    ndim = len(column.shape) + 1
    at = as_int("axis", axis, -ndim, ndim - 1) % ndim
    n, depth = rows.shape
    if out is None and rows.size * column.nbytes >= CHECKED_NBYTES:
        require(rows.size * column.nbytes, f"{n} stacks of {depth} values")
    array = None
    if out is not None:
        shape = *column.shape[:at], depth, *column.shape[at:]
        (array,) = check_out({name: out}, n, {name: (column.dtype, shape)})
    is_plain = column.objects is None and column in ring.stored_columns

    is_direct = ring.span == ring.capacity  # public slots are slots
    if is_direct and is_plain and rows.size * column.nbytes < COPIED_AT_ONCE:
        stacks = take_stacks(ring, column, rows, at, array)
        return stacks if out is None else out

    def attempt() -> tuple[Slots, Array]:
        found = rows if is_direct else _slots_of(ring, rows)
        return found[found >= 0], read_stacks(ring, column, found, at, array)

    stacks = consistently(attempt)
    return stacks if out is None else out


def read_stacks(
    ring: Ring, column: Column, slots: Slots, axis: int, out: Array | None = None
) -> Array:
    """Stack the values at slots of shape (n, depth), for all fields: see ``take_stacks``."""
    is_plain = column.objects is None and column in ring.stored_columns
    return (take_stacks if is_plain else _take_others)(ring, column, slots, axis, out)


def _take_others(ring: Ring, column: Column, slots: Slots, axis: int, out: Array | None) -> Array:
    """``take_stacks`` for fields that are not plain bytes."""
    there = slots >= 0
    found = read_fields(ring, slots[there], {column.name})[column.name]
    blank = None if column.dtype.kind == "O" else np.zeros((), column.dtype)
    values = np.full((*slots.shape, *column.shape), blank, column.dtype)
    values[there] = found
    stacks = np.moveaxis(values, 1, axis + 1)
    if out is None:
        return aligned(stacks)
    out[...] = stacks
    return out


def _column(ring: Ring, name: str) -> Column:
    known = [column for column in ring.columns if not column.is_entry]
    for column in known:
        if column.name == name:
            if column.axis:
                raise TypeError(f"field {name!r}: values of any length are no frames of a stack")
            return column
    raise TypeError(f"unknown field {name!r}; this buffer has {[one.name for one in known]}")


def _slots_of(ring: Ring, public: Slots) -> Slots:
    """The slots of public slots; -1 for padding."""
    there = public >= 0
    slots = np.full(public.shape, -1, np.intp)
    slots[there] = found = slots_of(ring, public[there])
    if (found < 0).any():
        raise IndexError(f"slots: slot {public[there][found < 0][0]} holds no step")
    return slots


def _read_slots(slots: ArrayLike) -> Slots:
    """A copy of the argument ``slots``, which other threads cannot change."""
    if type(slots) is np.ndarray and slots.ndim == 2 and slots.shape[1] and slots.dtype == np.intp:
        return slots.copy()
    given = read_argument("slots", slots)
    if given.dtype.kind not in "iu" and given.size:
        raise TypeError(f"slots: expected integers, got {given.dtype}")
    if given.ndim != 2 or given.shape[1] == 0:
        raise ValueError(f"slots: expected shape (n, depth), depth at least 1, got {given.shape}")
    if given.dtype == np.uint64 and given.size and given.max() > np.iinfo(np.intp).max:
        raise IndexError(f"slots: there is no slot {given.max()}")
    return np.array(given, np.intp)
