"""Named axes of fields, and their rooms.

A shape may hold one name, such as ``("T",)`` or ``("N", 11)``. The length of a named axis differs
from row to row, and is the same for all fields of the axis. Each axis has one hidden field, the
*entry* of a row: the place of its items, and their number. The *room* of an axis is the greatest
number of items that the buffer holds. Not here: shapes of single fields (``field``), and the
memory of the items (``layout``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cpprb_like._arguments.checks import as_whole
from cpprb_like._fields.field import LEFT_OUT, Field
from cpprb_like._machine.machine_memory import format_nbytes

__all__ = [
    "ENTRY",
    "MOST_ITEMS",
    "Axis",
    "axes_of",
    "check_axes",
    "read_room",
]

ENTRY = "entry of "  # first part of the name of a hidden field
MOST_ITEMS = 2**55  # greatest room: sums of several fit into 64 bits
COLUMNS = ("mask", "offsets", "positions", "segments", "longest")  # of batches, as in "T_mask"
PROPOSED = 1000  # items of a row in a proposed room


@dataclass(frozen=True)
class Axis:
    """A named axis: its room, and the names of its fields in declared order.

    The axis of next values, such as ``next_T``, shares the room and the memory of its source.
    """

    name: str
    room: int
    fields: tuple[str, ...]
    source: str | None = dataclasses.field(default=None, metadata=LEFT_OUT)

    @property
    def entry(self) -> str:
        """Name of the hidden field with the entries."""
        return ENTRY + self.name

    @property
    def entry_dtype(self) -> np.dtype[Any]:
        """Dtype of a place and a count: places are below ``2 * room - 1``."""
        return np.dtype(np.uint32 if self.room < 2**31 else np.uint64)


def axes_of(fields: Iterable[Field]) -> dict[str, tuple[str, ...]]:
    """The axes of fields in the order of their first use, each with the names of its fields."""
    found: dict[str, tuple[str, ...]] = {}
    for field in fields:
        if field.is_ragged and field.axis is not None:
            found[field.axis] = (*found.get(field.axis, ()), field.name)
    return found


def check_axes(fields: Sequence[Field]) -> None:
    """Raise ``ValueError`` for declared fields whose axes, texts or counts are not sound.

    The fields come from ``env_dict``, or from a pickle or a file.
    """
    names = {field.name for field in fields}
    for field in fields:
        if field.name.startswith(ENTRY):
            raise ValueError(f"field {field.name!r}: names that begin with {ENTRY!r} are taken")
        if field.is_entry:
            raise ValueError(f"field {field.name!r}: expected values of the user, got entries")
        if field.axis is not None or field.is_text:
            _check_ragged(field, names)
    texts = {field.name for field in fields if field.is_text}
    for field in fields:
        if field.axis in texts and not field.is_text:
            raise ValueError(
                f"field {field.name!r}: axis {field.axis!r} is that of the text {field.axis!r}; "
                "expected another name of the axis"
            )
    axes = [axis for axis in axes_of(fields) if axis not in texts]
    taken = {f"{axis}_{kind}": axis for axis in axes for kind in COLUMNS}
    for field in fields:
        if field.name in taken:
            raise ValueError(
                f"field {field.name!r}: batches have a column of this name for axis "
                f"{taken[field.name]!r}; expected another name of the field or of the axis"
            )
        _check_counts(field, axes)


def _check_ragged(field: Field, names: Collection[str]) -> None:
    """Raise ``ValueError`` unless a field may have its named axis. ``names`` are the fields."""
    where = f"field {field.name!r}"
    if not isinstance(field.axis, str) or not (field.axis in names or field.axis.isidentifier()):
        raise ValueError(
            f"{where}: expected the name of an axis, an identifier such as 'T' or the name of a "
            f"field, got {field.axis!r}"
        )
    if not 0 <= field.axis_at < len(field.shape) or field.shape[field.axis_at] != 0:
        raise ValueError(f"{where}: axis {field.axis!r} is not in shape {field.shape}")
    if 0 in field.item_shape:
        raise ValueError(
            f"{where}: expected lengths of at least 1 beside axis {field.axis!r}, "
            f"got shape {field.declared_shape}"
        )
    if field.dtype.hasobject or field.dtype.names is not None:
        what = "Python objects" if field.dtype.hasobject else "structured values"
        raise ValueError(
            f"{where}: an axis such as {field.axis!r} takes numbers, times, bytes and texts of one "
            f"size, got {what}: {field.dtype}"
        )
    of_text = np.dtype(np.uint8), (0,), field.name
    if field.is_text and (field.dtype, field.shape, field.axis) != of_text:
        raise ValueError(f"{where}: expected a text as bytes, got {field.dtype}")


def _check_counts(field: Field, axes: Sequence[str]) -> None:
    """Raise ``ValueError`` unless ``counts`` of a field is sound."""
    if field.counts is None:
        return
    where = f"field {field.name!r}: counts={field.counts!r}"
    if field.dtype.kind not in "iu" or field.is_text:
        raise ValueError(f"{where}: expected a field of integers, got {field.declared_dtype}")
    if field.counts not in axes:
        known = f"one of the axes {list(axes)}" if axes else "an axis of a field, such as ('N', 11)"
        raise ValueError(f"{where}: expected {known}")


def read_room(room: object, fields: Sequence[Field], size: int) -> dict[str, int]:
    """The option ``room``: the greatest number of items of each axis of the fields.

    ``size`` is the number of rows, for the proposal in the message of a ``ValueError``. Raises
    ``TypeError`` or ``ValueError`` unless there is a whole number for each axis, and no other.
    """
    if room is not None and not isinstance(room, Mapping):
        raise TypeError(f"room: expected a dict such as {{'T': 1_000_000}}, got {room!r}")
    given: Mapping[Any, object] = {} if room is None else room
    axes = axes_of(fields)
    for name in given:
        if name not in axes:
            known = f"the axes are {list(axes)}" if axes else "no field has a shape such as ('T',)"
            raise ValueError(f"room: no axis {name!r}; {known}")
    rooms = {name: _read_items(name, given[name]) for name in axes if name in given}
    if len(rooms) < len(axes):
        raise ValueError(_without_room(rooms, fields, size))
    return rooms


def _read_items(name: str, room: object) -> int:
    number = as_whole(f"room[{name!r}]", room, 1)
    if number > MOST_ITEMS:
        raise ValueError(f"room[{name!r}]: expected 1 to {MOST_ITEMS} items, got {number}")
    return number


def _without_room(rooms: Mapping[str, int], fields: Sequence[Field], size: int) -> str:
    """Message for axes without a room, with a proposal for so many rows."""
    missing = [axis for axis in axes_of(fields) if axis not in rooms]
    texts = {field.name for field in fields if field.is_text}
    kinds = [
        f"bytes of text {one!r}" if one in texts else f"items of axis {one!r}" for one in missing
    ]
    proposed = {axis: rooms.get(axis, PROPOSED * size) for axis in axes_of(fields)}
    nbytes = sum(proposed[field.axis] * field.item_nbytes for field in fields if field.axis)
    said = ", ".join(f"{axis!r}: {number:_}" for axis, number in proposed.items())
    each = "bytes" if texts.issuperset(missing) else "items"
    return (
        f"room: expected the most {' and '.join(kinds)} that the buffer holds, such as "
        f"room={{{said}}} for {size} rows of {PROPOSED} {each}, {format_nbytes(nbytes)} in all; "
        f"got {rooms or 'none'}"
    )
