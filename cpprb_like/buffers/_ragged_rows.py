"""Rows with values of any length: calls of ``add`` that need Python.

The values of a call are all checked before a row is written. Rows whose items do not fit into the
rooms at once are added in parts. Not here: rows that C can read (``_entry``), reading of values
(``_fields.entries``), and the memory of the items (``_rows.item_ring``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Slots
from cpprb_like._core import Ring, entries_of
from cpprb_like._fields.axes import Axis
from cpprb_like._fields.entries import Entries, check_counts, check_ranges, read_entries
from cpprb_like._fields.field import Field
from cpprb_like._fields.schema import Schema
from cpprb_like._rows.column import Column
from cpprb_like._rows.gather import write
from cpprb_like._rows.item_copies import counts_of, take_items
from cpprb_like._rows.row_handles import find_handles

__all__ = ["add_items", "update_items"]

Counts = NDArray[np.int64]


class RaggedRows:
    """The values of n rows: dense arrays of fixed fields, and entries of ragged ones, by name."""

    def __init__(self, schema: Schema, given: dict[str, Any], n_envs: int) -> None:
        self.schema = schema
        self.fixed: dict[str, NDArray[Any]] = {}
        self.entries: dict[str, Entries] = {}
        lengths: dict[str, int] = {}
        for field in schema.declared:
            value = given[field.name]
            if field.is_ragged:
                found = self.entries[field.name] = read_entries(field, value, n_envs)
                lengths[field.name] = len(found.counts)
                continue
            array = field.convert(value, n_envs)
            lead = array.ndim - len(field.shape)
            rows = math.prod(array.shape[:lead])
            array = self.fixed[field.name] = array.reshape(rows, *array.shape[lead:])
            lengths[field.name] = len(array)
        self.n = next(iter(lengths.values()))
        self.mask = np.ones(self.n, np.bool_)  # rows that hold a step
        if set(lengths.values()) != {self.n}:
            said = ", ".join(f"{name!r} has {n}" for name, n in lengths.items())
            raise ValueError(f"fields disagree on the number of steps: {said}")

    def leave_out(self, mask: NDArray[np.bool_]) -> None:
        """Give the rows that are not in the mask no items."""
        self.mask = mask
        for name, (values, counts) in self.entries.items():
            kept = np.where(mask, counts, 0)
            self.entries[name] = Entries(values[np.repeat(mask, counts)], kept)

    def check(self) -> None:
        """Raise ``ValueError`` unless lengths agree, and values that count items are in range."""
        self.counts = check_counts(self.entries, self.schema.axes)
        for field in self.schema.declared:
            if field.counts is not None:
                values = self.entries.get(field.name)
                if values is None:
                    each = np.where(self.mask, math.prod(field.shape), 0)
                    values = Entries(self.fixed[field.name][self.mask].ravel(), each)
                check_ranges(field, values, self.counts[field.counts])

    def parts(self, n_envs: int, capacity: int) -> Iterator[tuple[int, int]]:
        """First row and end of each part whose items fit into the rooms, of whole steps.

        Raises ``ValueError`` if one step has more items than a room.
        """
        steps, rooms = np.arange(0, self.n, n_envs), self.schema.rooms if self.n else {}
        totals = {axis: np.zeros(len(steps), np.int64) for axis in rooms}
        fields: dict[str, list[str]] = {axis: [] for axis in rooms}
        for axis in self.schema.axes if self.n else ():
            room_of = axis.source or axis.name
            totals[room_of] += np.add.reduceat(self.counts[axis.name], steps)
            fields[room_of] += axis.fields
        for name, room in rooms.items():
            most = int(totals[name].argmax())
            if totals[name][most] > room:
                whose = f"row {most}" if n_envs == 1 else f"the {n_envs} rows of step {most}"
                raise ValueError(
                    f"{' and '.join(map(repr, fields[name]))}: expected at most "
                    f"room={{{name!r}: {room}}} items, got {totals[name][most]} in {whose}"
                )
        start = 0
        while start < self.n or start == 0:
            stop = min(self.n, start + capacity // n_envs * n_envs)
            for name, room in rooms.items():
                first = start // n_envs
                fits = int(np.searchsorted(totals[name][first:].cumsum(), room, "right"))
                stop = min(stop, start + fits * n_envs)
            yield start, stop
            if stop == self.n:
                return
            start = stop

    def arguments(
        self, start: int, stop: int
    ) -> tuple[list[NDArray[Any] | None], list[Counts], dict[int, NDArray[Any]]]:
        """Values, counts and items of some rows, as ``BufferBase._publish_items`` takes them."""
        some = slice(start, stop)
        fixed: list[NDArray[Any] | None] = []
        items: dict[int, NDArray[Any]] = {}
        for number, field in enumerate(self.schema.declared):
            if not field.is_ragged:
                fixed.append(self.fixed[field.name][some])
                continue
            fixed.append(None)
            items[number] = self.entries[field.name].rows(start, stop).values
        counted = [self.counts[axis.name][some].copy() for axis in self.schema.axes]
        return fixed, counted, items


def add_items(buffer: Any, given: dict[str, Any], mask: NDArray[np.bool_] | None) -> int | None:
    """``add`` of a buffer with ragged fields, or ``add_where`` with a ``mask``."""
    ring, schema, n_envs = buffer.ring, buffer.schema, buffer.n_envs
    takes_priorities = buffer.has_priorities or buffer._takes_priorities
    given = dict(given)
    priorities = given.pop("priorities", None) if takes_priorities else None
    schema.check_names(given)
    beside = None if priorities is None else buffer._read_priorities(priorities)
    rows = RaggedRows(schema, given, n_envs)
    present = None if mask is None else mask.reshape(-1)
    if mask is not None and present is not None:
        if len(present) != rows.n:
            raise ValueError(
                f"expected {'one step' if mask.ndim == 1 else 'a block'} of {n_envs} environments, "
                f"{len(present)} rows as in present, got {rows.n}"
            )
        rows.leave_out(present)
    if beside is not None and beside.n != rows.n:
        raise ValueError(f"priorities: expected {rows.n}, one for each step, got {beside.n}")
    rows.check()
    parts = list(rows.parts(n_envs, ring.capacity))
    if len(parts) > 1 and priorities is not None:
        priorities = np.asarray(priorities, np.float64).reshape(rows.n)
    calls = []  # made before the first one writes rows, as this may fail
    for start, stop in parts:
        if len(parts) > 1 and priorities is not None:
            beside = buffer._read_priorities(priorities[start:stop])
        some = None if present is None else np.ascontiguousarray(present[start:stop])
        calls.append((ring, stop - start, *rows.arguments(start, stop), some, beside))
    slots = [buffer._publish_items(*call) for call in calls]
    return next((slot for slot in slots if slot is not None), None)


def update_items(
    buffer: Any, indexes: NDArray[np.int64], fixed: dict[str, Any], given: dict[str, Any]
) -> None:
    """``update`` of fields of which ``given`` are ragged; ``fixed`` are those of fixed shape."""
    ring, schema, n = buffer.ring, buffer.schema, len(indexes)
    if n == 0:
        return
    fields = {field.name: field for field in schema.declared}
    entries = {name: read_entries(fields[name], value, 1) for name, value in given.items()}
    for name, found in entries.items():
        if len(found.counts) != n:
            raise ValueError(
                f"field {name!r}: expected {n} rows, one for each index, got {len(found.counts)}"
            )
    changed = {axis.name: axis for axis in schema.axes if entries.keys() & set(axis.fields)}
    counts = check_counts(entries, [*changed.values()])
    for axis in changed.values():
        if n and counts[axis.name].sum() > axis.room:
            raise ValueError(
                f"{' and '.join(map(repr, axis.fields))}: expected at most "
                f"room={{{axis.name!r}: {axis.room}}} items, got {counts[axis.name].sum()}"
            )
    buffer._hold(False, _update, buffer, ring, indexes, fixed, entries, changed, counts)


def _update(
    buffer: Any,
    ring: Ring,
    indexes: NDArray[np.int64],
    fixed: dict[str, Any],
    entries: dict[str, Entries],
    changed: dict[str, Axis],
    counts: dict[str, Counts],
) -> None:
    if buffer.ring is not ring:
        raise RuntimeError("the buffer was initialised anew while a value was read")
    while True:
        moment = ring.now()
        slots, rows, places = find_handles(ring, indexes)  # slots mean the rows of now
        stored = {memory.axis: entries_of(ring, memory.entry)[slots] for memory in ring.items}
        before = {axis: counts_of(ring, axis, found) for axis, found in stored.items()}
        if ring.holds(moment, slots):
            break
    if len(rows) == 0:  # all are gone
        return
    columns = [column for column in ring.columns if column.name in fixed]
    arrays = [np.ascontiguousarray(fixed[column.name][places]) for column in columns]
    chosen = {name: _of_rows(found, places) for name, found in entries.items()}
    after = before | {name: found[places] for name, found in counts.items()}
    _check_update(buffer.schema, chosen, fixed, places, changed, before, after)
    stays = np.full(len(rows), buffer._files is None)  # a kill may leave half of what is in place
    for name in changed:
        stays &= before[name] == after[name]
    by_name = {column.name: column for column in ring.columns}
    kept = tuple((by_name[name], *_only(found, stays)) for name, found in chosen.items())
    if stays.all() or not changed:
        write(ring, rows, columns, arrays, kept)
        return
    taken = [
        np.where(stays, 0, after[axis.name] if axis.name in changed else 0)
        for axis in buffer.schema.axes
    ]
    dense: dict[int, NDArray[Any]] = {}
    for number, field in enumerate(buffer.schema.declared):
        if not field.is_ragged:
            continue
        found = Entries(np.empty((0, *field.item_shape), field.dtype), taken[0])
        if field.name in chosen:
            found = _only(chosen[field.name], ~stays)
        elif field.axis in changed:
            each = np.where(stays, 0, before[field.axis])
            old = stored[field.axis], before[field.axis]
            found = Entries(_stored(ring, slots, by_name[field.name], *old, field), each)
            found = Entries(found.values[np.repeat(~stays, before[field.axis])], each)
        dense[number] = found.values
    moved = [place for place, axis in enumerate(buffer.schema.axes) if axis.name in changed]
    stay = stays.view(np.uint8)
    buffer._move_items(ring, rows, columns, arrays, taken, dense, moved, kept, stay)


def _only(entries: Entries, some: NDArray[np.bool_]) -> Entries:
    """The entries of some rows; the others have none."""
    values = entries.values if some.all() else entries.values[np.repeat(some, entries.counts)]
    return Entries(np.ascontiguousarray(values), np.where(some, entries.counts, 0))


def _of_rows(entries: Entries, places: Slots) -> Entries:
    """The entries of some rows."""
    if len(places) == len(entries.counts):
        return entries
    chosen = np.zeros(len(entries.counts), np.bool_)
    chosen[places] = True
    return Entries(entries.values[np.repeat(chosen, entries.counts)], entries.counts[places])


def _stored(
    ring: Ring,
    slots: Slots,
    column: Column,
    entries: NDArray[Any],
    counts: Counts,
    field: Field,
) -> NDArray[Any]:
    """The dense items that a column has at entries of some rows; the axis comes first."""
    total, at = int(counts.sum()), field.axis_at
    shape = (*field.item_shape[:at], total, *field.item_shape[at:])
    found = np.empty(shape, field.dtype)
    starts = np.cumsum(counts) - counts
    take_items(ring, slots, entries, column, found, starts, 0, total)
    return np.ascontiguousarray(np.moveaxis(found, at, 0))


def _check_update(
    schema: Schema,
    chosen: dict[str, Entries],
    fixed: dict[str, Any],
    places: Slots,
    changed: dict[str, Axis],
    before: dict[str, Counts],
    after: dict[str, Counts],
) -> None:
    """Raise ``ValueError`` if an update of rows leaves their values in contradiction."""
    for name, axis in changed.items():
        differ = np.flatnonzero(before[name] != after[name])
        missing = [field for field in axis.fields if field not in chosen]
        if missing and len(differ):
            k = int(differ[0])
            raise ValueError(
                f"update: the row at indexes[{int(places[k])}] has {before[name][k]} items of axis "
                f"{name!r}, got {after[name][k]}; with another number give {missing} too"
            )
    for field in schema.declared:
        if field.counts is None:
            continue
        limits = after[field.counts]
        if field.name in chosen:
            check_ranges(field, chosen[field.name], limits)
        elif field.name in fixed:
            array = np.asarray(fixed[field.name])[places]
            each = np.full(len(places), math.prod(field.shape), np.int64)
            check_ranges(field, Entries(array.ravel(), each), limits)
        elif (limits < before[field.counts]).any():
            raise ValueError(
                f"update: rows get fewer items of axis {field.counts!r}, which values of "
                f"{field.name!r} count: give {field.name!r} too"
            )
