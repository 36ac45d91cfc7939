"""Items of a batch: values of any length, read after the rows that say where they lie.

Rows hold an entry for each named axis, which is read like any value. A plan then puts the items
into arrays: padded rows, or rows packed one behind the other. Not here: the options of these
layouts (``_item_layouts``), the copies (``_rows.item_copies``), and the rows (``_rows``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Array, Batch, Slots
from cpprb_like._core import Ring
from cpprb_like._fields.field import Field
from cpprb_like._fields.schema import ColumnSpec, Schema, check_out
from cpprb_like._machine.aligned import aligned, empty
from cpprb_like._machine.machine_memory import require
from cpprb_like._machine.of_thread import OfThread
from cpprb_like._rows.column import Column
from cpprb_like._rows.gather import new_array
from cpprb_like._rows.item_copies import (
    bounds_of,
    counts_of,
    fill_mask,
    fill_positions,
    fill_segments,
    take_items,
)
from cpprb_like._rows.rings import Rings
from cpprb_like.views._rows import read_fields

__all__ = [
    "ItemPlan",
    "LaidItems",
    "PackedItems",
    "PaddedItems",
    "RaggedFields",
    "StoredFields",
    "TakeItems",
    "drawing_pieces",
]

Counts = NDArray[np.int64]
# Dtype of the texts of a batch: strings of any length in NumPy 2, Python's strings before.
TEXT: np.dtype[Any] = getattr(np.dtypes, "StringDType", lambda: np.dtype(object))()
# Dtypes that are cast during the copy; others, such as float16, are cast afterwards.
CAST = {np.dtype(code) for code in "?bhilqBHILQfd"}
NOTHING: Mapping[str, Any] = MappingProxyType({})
PLANS = 8  # sets of fields whose plans are kept
TEXT_NBYTES = 4  # memory for a byte of a text: read, joined, as a string, and in an array
LARGE_NBYTES = 2**16  # least array that uses memory of the ring's pool
BYTE = Column("bytes", np.dtype(np.uint8), (), 0, 0, 1)


_room = OfThread["Mapping[str, int] | None"]()


def drawing_pieces(lock: Any, room: Mapping[str, int] | None) -> AbstractContextManager[None]:
    """Let this thread draw pieces of batches, for ``ItemPlan.join_pieces``; None: whole ones.

    For each axis pieces have one column, numbers of items in place of masks or offsets. Packed
    pieces have no filler, and arrays with at least as many places by axis as ``room`` has, so that
    rows can be put behind theirs without a copy. The thread holds the lock, a reentrant one.
    """
    return _room.holding(lock, room)


class RaggedFields:
    """The ragged fields of a ring, and the columns of their entries."""

    def __init__(self, ring: Ring | Rings, schema: Schema) -> None:
        self.ring: Any = ring  # Any: a moment of either has a type of its own
        self.declared = schema.declared
        self.fields = {field.name: field for field in schema.declared if field.is_ragged}
        self.texts = {name for name, field in self.fields.items() if field.is_text}
        self.columns = {column.name: column for column in ring.columns}
        self.entries = {column.axis: column for column in ring.columns if column.is_entry}
        # Columns of the ring that are no columns of a batch until the items are read.
        self.hidden = frozenset(self.fields) | {column.name for column in self.entries.values()}

    @classmethod
    def of(cls, ring: Ring | Rings, schema: Schema) -> RaggedFields | None:
        """The ragged fields of a ring; None if it has none."""
        return cls(ring, schema) if schema.axes else None

    def axes_of_first_only(self, names: Collection[str], counted: Collection[str]) -> list[str]:
        """The axes whose fields are all among ``names``, and read of the first row of an item.

        ``counted`` are fields that move with the items that they count. Raises ``ValueError`` if
        only some fields of an axis are among ``names``, as the entry is that of one row.
        """
        found = []
        for axis in self.entries:
            own = [
                field.name
                for field in self.declared
                if field.axis == axis or (field.counts == axis and field.name in counted)
            ]
            others = [name for name in own if name not in names]
            if others and len(others) < len(own):
                raise ValueError(
                    f"first_only: expected all fields of axis {axis!r} or none, as their lengths "
                    f"are those of one row; {others} are missing"
                )
            found += [] if others else [axis]
        return found


@dataclass(slots=True)
class PlacedItems:
    """The items of an axis in a batch: how many each row has, and their places along the axis."""

    counts: Counts  # items of each row
    starts: Counts  # place of the first item of each row
    lead: tuple[int, ...]  # axes of the batch before those of a field: none if rows are packed
    length: int  # places along the axis
    used: int  # places with items: of all packed rows, or of the shortest padded row
    bounds: Counts  # of packed rows: their begins, the end of the last one, that of the filler
    longest: int  # most items of a row


class LaidItems:
    """A layout over the ragged fields of a ring: base class of padded and of packed items."""

    is_packed = False
    totals: Mapping[str, int] = NOTHING  # places of each batch, by axis
    kind_of_plan: type[ItemPlan]

    def __init__(
        self,
        ragged: RaggedFields,
        dtypes: Mapping[str, np.dtype[Any]],
        counted: Mapping[str, str],
        values: Mapping[str, Any],
    ) -> None:
        self.ragged = ragged
        self.counted = counted  # axes of fields whose values move with the items that they count
        self.dtypes = {field.name: field.dtype for field in ragged.declared} | dict(dtypes)
        # Fields whose items are cast when they have been copied, as C does not cast their dtypes.
        self.cast_later = {
            name
            for name, field in ragged.fields.items()
            if self.dtypes[name] != field.dtype and {self.dtypes[name], field.dtype} - CAST
        }
        # Values of places without items, of the dtypes of the copies.
        self.values: Batch = {
            name: values.get(name, np.zeros((), field.dtype)).astype(self.dtype_of_copy(field))
            for name, field in ragged.fields.items()
        }
        # Greatest number of items that each field can count.
        self.most = {name: np.iinfo(self.dtypes[name]).max + 1 for name in counted}
        # Dtypes and shapes of ragged fields, with the names of axes, and of further columns.
        self.specs = {name: self._spec_of(field) for name, field in ragged.fields.items()}
        self.marks: dict[str, ColumnSpec] = {}
        self.names_of_marks: dict[str, list[str]] = {}  # by axis
        # Bytes of a place of each field, its cast included, and of the further columns of an axis.
        self.nbytes = {name: self._nbytes_of(field) for name, field in ragged.fields.items()}
        self.mark_nbytes = dict.fromkeys(ragged.entries, 0)
        for axis in ragged.entries:
            marks = {} if axis in ragged.texts else self.marks_of(axis)
            self.names_of_marks[axis] = [*marks]
            for name, spec in marks.items():
                self.marks[name] = spec = ColumnSpec(dtypes.get(name, spec.dtype), spec.shape)
                self.mark_nbytes[axis] += spec.dtype.itemsize * len(spec.shape)  # none of offsets

    def dtype_of_copy(self, field: Field) -> np.dtype[Any]:
        """Dtype into which the items of a field are copied."""
        return field.dtype if field.name in self.cast_later else self.dtypes[field.name]

    def _nbytes_of(self, field: Field) -> int:
        if field.is_text:
            return TEXT_NBYTES
        nbytes = self.dtypes[field.name].itemsize
        nbytes += field.dtype.itemsize if field.name in self.cast_later else 0
        return nbytes * math.prod(field.item_shape)

    def _spec_of(self, field: Field) -> ColumnSpec:
        dtype = TEXT if field.is_text else self.dtypes[field.name]
        return ColumnSpec(dtype, field.declared_shape)

    def plan(self, names: Collection[str], replaced: Collection[str] = ()) -> ItemPlan:
        """The plan that reads some fields, of which layers replace some."""
        return self.kind_of_plan(self, names, replaced)

    def marks_of(self, axis: str) -> dict[str, ColumnSpec]:
        """Dtypes and shapes of the further columns of an axis."""
        raise NotImplementedError

    def place(self, axis: str, lead: tuple[int, ...], counts: Counts) -> PlacedItems:
        """Places of the items of rows."""
        raise NotImplementedError

    def mark(self, axis: str, items: PlacedItems) -> Batch:
        """The further columns of an axis."""
        raise NotImplementedError

    def blank(
        self,
        name: str,
        placed: Mapping[str, PlacedItems],  # noqa: ARG002 (of packed rows)
    ) -> Array:
        """The value of a field at places without items."""
        return self.values[name]

    def join(
        self, plan: ItemPlan, parts: Sequence[Batch], batch: Batch, *, are_pieces: bool = False
    ) -> Batch:
        """Items and further columns of a batch of several parts: see ``ItemPlan.join``."""
        raise NotImplementedError

    def counts_in(self, axis: str, piece: Batch) -> Counts:
        """Numbers of items of the rows of a piece."""
        return piece[self.names_of_marks[axis][0]]

    def mark_rows(self, axis: str, items: PlacedItems, lead: tuple[int, ...]) -> Batch:
        """The further columns of an axis, or its column of a piece, of the shape ``lead``."""
        if _room.get() is None:
            return self.mark(axis, items)
        return {self.names_of_marks[axis][0]: items.counts.reshape(lead)}

    def places_of(self, axis: str, counts: Counts) -> Counts:
        """Places along an axis that the first item of a batch takes, the first two, and so on.

        ``counts`` has the shape (items of the batch, rows of each).
        """
        raise NotImplementedError

    def split(self, plan: ItemPlan, piece: Batch, stop: int) -> tuple[Batch, Batch]:
        """The columns of two pieces of a piece that are not one value for each item of it."""
        raise NotImplementedError

    @property
    def options(self) -> tuple[Any, ...]:
        """Values that are the same in layouts that give the same batches."""
        raise NotImplementedError

    def check_out(
        self, out: object, n: int, wanted: Mapping[str, tuple[np.dtype[Any], tuple[Any, ...]]]
    ) -> list[Array]:
        """The checked arrays of ``out``; lengths of named axes are checked with the items."""
        shapes = {}
        for name, (dtype, item) in wanted.items():
            shape = (n, *item) if named_axis(item) is None or not self.is_packed else item
            given = getattr(out.get(name), "shape", ()) if isinstance(out, dict) else ()
            if len(given) == len(shape):
                pairs = zip(shape, given, strict=True)
                shape = tuple(own if isinstance(one, str) else one for one, own in pairs)
            shapes[name] = dtype, shape
        return check_out(out, None, shapes)

    def put_out(
        self,
        batch: Batch,
        out: Batch,
        arrays: Sequence[Array],
        wanted: Mapping[str, tuple[np.dtype[Any], tuple[Any, ...]]],
    ) -> Batch:
        """The batch in the arrays that ``check_out`` returned.

        Raises ``ValueError`` if one has another length than the batch, and writes nothing then.
        Arrays may be longer if rows are packed; then ``out`` keeps them as they are.
        """
        parts = {}
        for (name, (_, item)), array in zip(wanted.items(), arrays, strict=True):
            values, part, at = batch[name], array, named_axis(item)
            if self.is_packed and at is not None:
                part = within(array, at, 0, values.shape[at])
            if part.shape != values.shape:
                least = "" if part is array else " or more along the axis"
                raise ValueError(
                    f"out[{name!r}]: expected shape {values.shape}{least} for the items of this "
                    f"batch, got {array.shape}"
                )
            parts[name] = part
        for name, part in parts.items():
            part[...] = batch[name]
        if self.is_packed:
            return batch | parts
        out.update({name: values for name, values in batch.items() if name not in parts})
        return out


class PaddedItems(LaidItems):
    """Rows padded to one length.

    ``values`` are those of the padding by field, ``lengths`` and ``multiples`` numbers of places by
    axis. The padding of the axes ``left`` comes first.
    """

    def __init__(
        self,
        ragged: RaggedFields,
        *,
        left: Collection[str] = (),
        values: Mapping[str, Any] = NOTHING,
        lengths: Mapping[str, int] = NOTHING,
        multiples: Mapping[str, int] = NOTHING,
        dtypes: Mapping[str, np.dtype[Any]] = NOTHING,
    ) -> None:
        self.left = frozenset(left)
        self.lengths, self.multiples = lengths, multiples
        super().__init__(ragged, dtypes, NOTHING, values)

    @property
    def options(self) -> tuple[Any, ...]:
        values = {name: value.tolist() for name, value in self.values.items()}
        multiples = {axis: n for axis, n in self.multiples.items() if n > 1}
        columns = self.marks, self.dtypes
        return "Padded", *columns, self.left, values, self.lengths, multiples

    def marks_of(self, axis: str) -> dict[str, ColumnSpec]:
        return {f"{axis}_mask": ColumnSpec(np.dtype(np.bool_), (axis,))}

    def place(self, axis: str, lead: tuple[int, ...], counts: Counts) -> PlacedItems:
        _, longest, least = bounds_of(counts)
        length = self.lengths.get(axis)
        if length is None:
            length = round_up(longest, self.multiples.get(axis, 1))
        elif longest > length:
            raise ValueError(
                f"Padded: length: expected at most {length} items of axis {axis!r}, got {longest} "
                f"in row {int(counts.argmax())} of the batch"
            )
        starts = length - counts if axis in self.left else np.zeros(len(counts), np.int64)
        return PlacedItems(counts, starts, lead, length, least, starts, longest)

    def mark(self, axis: str, items: PlacedItems) -> Batch:
        mask = new_items(self.ragged.ring, (*items.lead, items.length), np.dtype(np.bool_))
        fill_mask(items.starts, items.counts, mask)
        (name,) = self.names_of_marks[axis]
        dtype = self.marks[name].dtype
        return {name: mask if dtype == mask.dtype else aligned(mask.astype(dtype))}

    def places_of(self, axis: str, counts: Counts) -> Counts:
        longest, multiple = np.maximum.accumulate(counts.max(axis=1)), self.multiples.get(axis, 1)
        length = self.lengths.get(axis, -(-longest // multiple) * multiple)
        rows = counts.shape[1] * np.arange(1, len(counts) + 1)
        places: Counts = np.maximum(rows * length, rows)
        return places

    def split(self, plan: ItemPlan, piece: Batch, stop: int) -> tuple[Batch, Batch]:  # noqa: ARG002
        return {}, {}

    def join(
        self,
        plan: ItemPlan,
        parts: Sequence[Batch],
        batch: Batch,  # noqa: ARG002 (of packed rows)
        *,
        are_pieces: bool = False,
    ) -> Batch:
        found: Batch = {}
        marks: Batch = {}
        lengths: dict[str, int] = {}
        for axis in plan.axes if are_pieces or _room.get() is not None else ():
            counts = np.concatenate([self.counts_in(axis, part) for part in parts])
            items = self.place(axis, counts.shape, counts.reshape(-1))
            lengths[axis], marks = items.length, marks | self.mark_rows(axis, items, counts.shape)
        for field in plan.items:
            at, is_left = field.axis_at - len(field.shape), field.axis in self.left
            arrays, length = [part[field.name] for part in parts], lengths.get(str(field.axis))
            blank = self.values[field.name]
            found[field.name] = self._join(arrays, at, blank, length, is_left=is_left)
        for name, spec in () if marks else plan.marks.items():
            arrays, is_left = [part[name] for part in parts], spec.shape[0] in self.left
            found[name] = self._join(arrays, -1, False, None, is_left=is_left)
        return found | marks

    def _join(
        self, arrays: Sequence[Array], at: int, blank: Any, length: int | None, *, is_left: bool
    ) -> Array:
        """A column of several parts, padded to a length; the axis counts from the end.

        The length is that of the longest row if it is None. Parts that are longer end in padding.
        """
        at += arrays[0].ndim
        length = max(array.shape[at] for array in arrays) if length is None else length
        shape = (sum(map(len, arrays)), *arrays[0].shape[1:at], length, *arrays[0].shape[at + 1 :])
        joined = new_items(self.ragged.ring, shape, arrays[0].dtype)
        joined[...] = blank
        stop = 0
        for array in arrays:
            start, stop = stop, stop + len(array)
            part, whole = joined[start:stop], array.shape[at]
            n = min(whole, length)
            to, of = (length - n, whole - n) if is_left else (0, 0)
            within(part, at, to, to + n)[...] = within(array, at, of, of + n)
        return joined


class PackedItems(LaidItems):
    """Rows packed one behind the other.

    ``totals`` and ``multiples`` are numbers of places by axis, ``positions`` and ``segments`` the
    axes that have these columns, ``values`` those of the filler by field.
    """

    is_packed = True

    def __init__(
        self,
        ragged: RaggedFields,
        *,
        offsets: np.dtype[Any],
        dtypes: Mapping[str, np.dtype[Any]],
        positions: Collection[str],
        segments: Collection[str],
        totals: Mapping[str, int],
        multiples: Mapping[str, int],
        values: Mapping[str, Any] = NOTHING,
    ) -> None:
        self.offsets, self.positions, self.segments = offsets, positions, segments
        self.totals, self.multiples = totals, multiples
        counted = {one.name: one.counts for one in ragged.declared if one.counts}
        super().__init__(ragged, dtypes, counted, values)
        numbers = [spec.dtype for spec in self.marks.values()]
        self.most_items = min((int(np.iinfo(one).max) for one in numbers), default=0)
        for axis, total in totals.items():
            self._check_length(axis, total)

    @property
    def options(self) -> tuple[Any, ...]:
        columns = self.marks, self.dtypes, self.counted
        values = {name: value.tolist() for name, value in self.values.items()}
        return "Packed", *columns, self.totals, self.multiples, values

    def marks_of(self, axis: str) -> dict[str, ColumnSpec]:
        found = {f"{axis}_offsets": ColumnSpec(self.offsets, ())}
        if axis in self.positions:
            found[f"{axis}_positions"] = ColumnSpec(self.offsets, (axis,))
        if axis in self.segments:
            found[f"{axis}_segments"] = ColumnSpec(self.offsets, (axis,))
        return found | {f"{axis}_longest": ColumnSpec(np.dtype(np.int64), ())}

    def _has_filler(self, axis: str) -> bool:
        is_rounded = axis in self.totals or self.multiples.get(axis, 1) > 1
        return is_rounded and _room.get() is None

    def place(
        self,
        axis: str,
        lead: tuple[int, ...],  # noqa: ARG002 (packed rows have no axis of their own)
        counts: Counts,
    ) -> PlacedItems:
        items = pack(counts)
        if self._has_filler(axis):
            length = self.totals.get(axis, round_up(items.used, self.multiples.get(axis, 1)))
            if items.used > length:
                raise ValueError(
                    f"Packed: total: expected at most {length} items of axis {axis!r}, got "
                    f"{items.used} in the {len(counts)} rows of the batch; draw fewer rows, or "
                    "give a greater total"
                )
            items.bounds, items.length = np.append(items.bounds, length), length
        elif (room := _room.get()) is not None:
            items.length = max(items.used, room.get(axis, 0))
        self._check_length(axis, items.length)
        return items

    def _check_length(self, axis: str, length: int) -> None:
        if length > self.most_items:
            raise ValueError(
                f"Packed: offsets: {self.offsets} has no number for {length} items of axis "
                f"{axis!r}; expected offsets=np.int64, or fewer items"
            )

    def mark(self, axis: str, items: PlacedItems) -> Batch:
        first, *numbers, last = self.names_of_marks[axis]
        offsets = empty(items.bounds.shape, self.marks[first].dtype)
        offsets[...] = items.bounds
        found: dict[str, Any] = {first: offsets}
        for name in numbers:
            found[name] = empty((items.length,), self.marks[name].dtype)
            fill = fill_positions if name.endswith("_positions") else fill_segments
            fill(offsets, found[name])
        found[last] = np.int64(max(items.longest, items.length - items.used))  # that of the filler
        return found

    def blank(self, name: str, placed: Mapping[str, PlacedItems]) -> Array:
        if name not in self.counted:
            return self.values[name]
        others = placed[self.counted[name]]  # the first item of the filler, if there is one
        return np.asarray(others.used if others.used < others.length else 0)

    def places_of(self, axis: str, counts: Counts) -> Counts:  # noqa: ARG002
        items = counts[:, 0] if counts.shape[1] == 1 else counts.sum(axis=1)
        places: Counts = np.maximum(items, 1).cumsum()
        return places

    def split(self, plan: ItemPlan, piece: Batch, stop: int) -> tuple[Batch, Batch]:
        first: Batch = {}
        rest: Batch = {}
        ends: dict[str | None, tuple[int, int]] = {}  # of the places of the rest
        for axis in plan.axes:
            counts = self.counts_in(axis, piece)
            begin = int(counts[:stop].sum())
            ends[axis] = begin, begin + int(counts[stop:].sum())
        for field in plan.items:
            # With the places behind its rows, for those of other pieces.
            first[field.name] = piece[field.name]
            values = within(piece[field.name], field.axis_at, *ends[field.axis]).copy()
            if field.name in self.counted:
                values -= values.dtype.type(ends[self.counted[field.name]][0])
            rest[field.name] = values
        for field in plan.moved:
            axis = self.counted[field.name]
            first[field.name] = piece[field.name][:stop]
            values = rest[field.name] = piece[field.name][stop:].copy()
            counts = self.counts_in(axis, piece)[stop:].reshape(-1)
            move(values, field, counts, np.full(len(counts), -ends[axis][0]))
        return first, rest

    def join(
        self, plan: ItemPlan, parts: Sequence[Batch], batch: Batch, *, are_pieces: bool = False
    ) -> Batch:
        found: Batch = {}
        placed: dict[str, PlacedItems] = {}
        ends: dict[str, list[int]] = {}  # by axis: ends of the parts, from 0 on
        leads: dict[str, tuple[int, ...]] = {}
        are_pieces = are_pieces or _room.get() is not None
        for axis in plan.axes:
            each = [part[self.names_of_marks[axis][0]] for part in parts]
            if not are_pieces:
                each = [np.diff(offsets) for offsets in each]
                each = [counts[:-1] for counts in each] if self._has_filler(axis) else each
            counts = np.concatenate(each, dtype=np.int64)
            leads[axis] = counts.shape
            items = placed[axis] = self.place(axis, (), counts.reshape(-1))
            ends[axis] = items.bounds[[0, *accumulate(one.size for one in each)]].tolist()
        plan.check_moves(placed)
        for field in plan.items:
            items, at = placed[str(field.axis)], field.axis_at
            shape = *field.shape[:at], items.length, *field.shape[at + 1 :]
            array = parts[0][field.name][: items.length] if are_pieces and at == 0 else None
            is_there = array is not None and len(array) == items.length
            if array is None or not is_there:
                array = new_items(self.ragged.ring, shape, self.dtypes[field.name])
            if items.used < items.length:
                within(array, at, items.used, items.length)[...] = self.blank(field.name, placed)
            for k, (start, stop) in enumerate(pairwise(ends[str(field.axis)])):
                if is_there and k == 0:
                    continue
                rows = within(array, at, start, stop)
                rows[...] = within(parts[k][field.name], at, 0, stop - start)
                if field.name in self.counted:
                    rows += ends[self.counted[field.name]][k]
            found[field.name] = aligned(array)  # as that of a piece may not be
        for field in plan.moved:
            axis = self.counted[field.name]
            number = np.searchsorted(ends[axis], placed[axis].starts, "right") - 1
            shifts = np.array(ends[axis])[np.minimum(number, len(parts) - 1)]
            move(batch[field.name], field, placed[axis].counts, shifts)
        for axis, items in placed.items():
            found |= self.mark_rows(axis, items, leads[axis])
        return found


class FieldItems:
    """Reads the items of a field in a layout."""

    def __init__(self, laid: LaidItems, field: Field) -> None:
        at, name = field.axis_at, field.name
        self.laid = laid  # its ring is another one for each answer of a cluster
        self.name, self.at, self.axis = name, at, str(field.axis)
        self.column, self.counted = laid.ragged.columns[name], laid.counted.get(name)
        self.before, self.behind = field.shape[:at], field.shape[at + 1 :]
        self.outer = math.prod(self.before)
        self.dtype, self.dtype_of_copy = laid.dtypes[name], laid.dtype_of_copy(field)

    def read(self, slots: Slots, entries: Array, placed: Mapping[str, PlacedItems]) -> Array:
        """The array of the items of rows."""
        laid, items, ring = self.laid, placed[self.axis], self.laid.ragged.ring
        shape = (*items.lead, *self.before, items.length, *self.behind)
        copy = new_items(ring, shape, self.dtype_of_copy)
        blank = laid.blank(self.name, placed) if items.used < items.length else None
        if blank is not None and laid.is_packed:
            within(copy, self.at, items.used, items.length)[...] = blank
            blank = None
        take_items(
            ring,
            slots,
            entries,
            self.column,
            copy,
            items.starts,
            self.outer * items.length if items.lead else 0,
            items.length,
            None if self.counted is None else placed[self.counted].starts,
            blank,
        )
        if self.dtype is self.dtype_of_copy:
            return copy
        array = new_items(ring, shape, self.dtype)
        array[...] = copy
        return array


class ItemPlan:
    """Plan that reads the ragged fields of a batch of some fields.

    ``columns`` are those of the rows, with entries in place of ragged fields. A ragged field that a
    layer replaces is read by this layer.
    """

    def __init__(self, laid: LaidItems, names: Collection[str], replaced: Collection[str]) -> None:
        ragged = laid.ragged
        wanted = [field for field in ragged.declared if field.name in names]
        own = [field for field in wanted if field.name not in replaced]
        self.laid = laid
        self.order = [field.name for field in wanted]
        self.fields = {field.name: field for field in own if field.is_ragged}
        self.items = [field for field in self.fields.values() if not field.is_text]
        self.readers = [FieldItems(laid, field) for field in self.items]
        self.texts = [field for field in self.fields.values() if field.is_text]
        # Fixed fields whose values move with the items that they count.
        self.moved = [one for one in own if one.name in laid.counted and not one.is_ragged]
        axes = {field.axis for field in self.fields.values()}
        axes |= {laid.counted.get(field.name) for field in own}
        self.entries = {axis: one for axis, one in ragged.entries.items() if axis in axes}
        fixed = set(self.order) - set(self.fields)
        self.columns = (
            *(column for name, column in ragged.columns.items() if name in fixed),
            *self.entries.values(),
        )
        # Fields that count items of these axes, and the most items that their dtypes can count.
        self.counts = [
            (name, axis, laid.most[name])
            for name, axis in laid.counted.items()
            if name in self.order and axis in self.entries
        ]
        # Dtypes and shapes of the further columns of these axes.
        self.marks = {
            name: laid.marks[name] for axis in self.entries for name in laid.names_of_marks[axis]
        }
        self.axes = [axis for axis in self.entries if axis not in ragged.texts]
        # Columns of a batch that are not one value for each item of it.
        self._ragged = {*self.marks} | {field.name for field in self.items}
        # By axis: bytes of a place in all arrays.
        self.item_nbytes = {axis: laid.mark_nbytes[axis] for axis in self.entries}
        for name, field in self.fields.items():
            self.item_nbytes[str(field.axis)] += laid.nbytes[name]

    def put(self, batch: Batch, slots: Slots) -> Batch:
        """The batch with items in place of entries. ``slots`` are the rows that were drawn.

        The caller has checked that the rows still hold, as the counts of entries size arrays.
        """
        laid, ring = self.laid, self.laid.ragged.ring
        placed, entries, found, nbytes = {}, {}, {}, 0
        for axis, column in self.entries.items():
            entry = entries[axis] = batch.pop(column.name)
            counts = counts_of(ring, axis, entry)
            if axis in laid.ragged.texts:
                placed[axis] = pack(counts)
            else:
                placed[axis] = laid.place(axis, entry.shape[:-1], counts)
            nbytes += self.item_nbytes[axis] * placed[axis].length * math.prod(placed[axis].lead)
        require(nbytes, f"a batch of {len(slots)} rows and their items")
        self.check_moves(placed)
        for reader in self.readers:
            found[reader.name] = reader.read(slots, entries[reader.axis], placed)
        for field in self.texts:
            entry = entries[field.name]
            found[field.name] = self._read_texts(field, slots, entry, placed[field.name])
        for field in self.moved:
            items = placed[laid.counted[field.name]]
            move(batch[field.name], field, items.counts, items.starts)
        found = {name: found[name] if name in found else batch.pop(name) for name in self.order}
        for axis, items in placed.items():
            if axis not in laid.ragged.texts:
                found |= laid.mark_rows(axis, items, entries[axis].shape[:-1])
        found |= batch
        return found

    def split(self, piece: Batch, stop: int) -> tuple[Batch, Batch]:
        """The first items of a piece, in its memory, and a copy of the others."""
        first, rest = self.laid.split(self, piece, stop)
        for name, values in piece.items():
            if name not in first:
                first[name], rest[name] = values[:stop], values[stop:].copy()
        return first, rest

    def join_pieces(self, parts: Sequence[Batch]) -> Batch:
        """A batch of pieces. It has the memory of the first piece if that has room for all."""
        fixed = {
            name: aligned(np.concatenate([part[name] for part in parts]))
            for name in parts[0]
            if name not in self._ragged and name not in self.fields
        }
        joined = self.join(parts, fixed, are_pieces=True)
        return joined | {name: fixed[name] for name in fixed if name not in joined}

    def join(self, parts: Sequence[Batch], batch: Batch, *, are_pieces: bool = False) -> Batch:
        """The whole batch of some parts. ``batch`` has its fixed fields, whose values may move."""
        found = self.laid.join(self, parts, batch, are_pieces=are_pieces)
        for field in self.texts:
            found[field.name] = np.concatenate([part[field.name] for part in parts])
        names = [name for name in self.order if name in batch or name in found]
        ordered = {name: found.pop(name) if name in found else batch[name] for name in names}
        return ordered | found

    def check_moves(self, placed: Mapping[str, PlacedItems]) -> None:
        """Raise ``ValueError`` if a dtype has no number for items that a field counts."""
        for name, axis, most in self.counts:
            if placed[axis].used > most:
                raise ValueError(
                    f"field {name!r}: {self.laid.dtypes[name]} has no number for "
                    f"{placed[axis].used} items of axis {axis!r} in a batch; draw fewer rows, or "
                    f"give dtypes={{{name!r}: np.int64}}"
                )

    def _read_texts(self, field: Field, slots: Slots, entries: Array, items: PlacedItems) -> Array:
        """The texts of the rows."""
        ring, column = self.laid.ragged.ring, self.laid.ragged.columns[field.name]
        values = np.empty(items.length, np.uint8)
        take_items(ring, slots, entries, column, values, items.starts, 0, items.length)
        memory = values.tobytes()
        texts = [memory[start:stop].decode() for start, stop in pairwise(items.bounds.tolist())]
        found = np.empty(len(texts), TEXT)
        found[...] = texts
        return found.reshape(entries.shape[:-1])


LaidItems.kind_of_plan = ItemPlan


class TakeItems:
    """Reads batches of rows and their items, as ``RowReader.take`` reads batches of fixed fields.

    ``read`` is that method. The plan has the columns.
    """

    def __init__(self, plan: ItemPlan, read: Callable[..., Batch]) -> None:
        self._plan, self._read = plan, read
        self._ring = plan.laid.ragged.ring

    def __call__(
        self,
        slots: Slots,
        arrays: None = None,
        steps: Slots | None = None,
        columns: tuple[Column, ...] | None = None,  # noqa: ARG002 (those of the plan)
    ) -> Batch | None:
        """The batch; None if rows were overwritten before their items were read."""
        moment = self._ring.now()
        batch = self._read(slots, arrays, steps, self._plan.columns)
        return self._plan.put(batch, slots) if self._ring.holds(moment, slots) else None


class StoredFields:
    """Reads fields of rows as they were added, ragged ones padded by zeros."""

    def __init__(self, ragged: RaggedFields) -> None:
        self._ring, self._entries = ragged.ring, ragged.entries
        self._plan_of = lru_cache(PLANS)(PaddedItems(ragged).plan)

    def read(self, slots: Slots, names: Collection[str]) -> Batch:
        """The fields, with the masks of their axes; the caller checks ``Ring.holds`` afterwards.

        Rows that were overwritten meanwhile have no items.
        """
        plan, moment = self._plan_of(frozenset(names)), self._ring.now()
        values = read_fields(self._ring, slots, {column.name for column in plan.columns})
        if not self._ring.holds(moment, slots):  # entries may be torn: none sizes an array
            for column in plan.entries.values():
                values[column.name][...] = 0
        return plan.put(values, slots)

    def counts(self, slots: Slots, axis: str) -> Counts:
        """Numbers of items of rows, shape ``(n,)``: see ``read``."""
        if axis not in self._entries:
            raise KeyError(f"{axis!r} is none of the axes {list(self._entries)}")
        name, moment = self._entries[axis].name, self._ring.now()
        entries = read_fields(self._ring, slots, {name})[name]
        if not self._ring.holds(moment, slots):
            entries[...] = 0
        return counts_of(self._ring, axis, entries)


# ---------------------------------------------------------------------- arrays


def new_items(ring: Ring | Rings, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An uninitialised array; a large one uses memory of the ring's pool."""
    nbytes = dtype.itemsize * math.prod(shape)
    if nbytes < LARGE_NBYTES:
        return empty(shape, dtype)
    # Batches differ in size, and the pool lends memory again for the size that it was lent for.
    return np.ndarray(shape, dtype, new_array(ring, BYTE, 1 << (nbytes - 1).bit_length()))


def named_axis(shape: tuple[Any, ...]) -> int | None:
    """The place of the named axis in the shape of a column; None without one."""
    return next((place for place, length in enumerate(shape) if type(length) is str), None)


def within(array: Array, at: int, start: int, stop: int) -> Array:
    """A view of places along an axis."""
    part: Array = (
        array[start:stop] if at == 0 else array[(slice(None),) * at + (slice(start, stop),)]
    )
    return part


def pack(counts: Counts) -> PlacedItems:
    """Places of rows one behind the other."""
    bounds, longest, _ = bounds_of(counts)
    total = int(bounds[-1])
    return PlacedItems(counts, bounds[:-1], (), total, total, bounds, longest)


def move(values: Array, field: Field, counts: Counts, shifts: Counts) -> None:
    """Add a shift to the values of each row that has items to count."""
    lead = values.shape[: values.ndim - len(field.shape)]
    shifts = np.where(counts > 0, shifts, 0).reshape(*lead, *(1,) * len(field.shape))
    np.add(values, shifts, out=values, casting="unsafe")


def round_up(count: int, multiple: int) -> int:
    """The least multiple that is at least ``count``."""
    return -(-count // multiple) * multiple
