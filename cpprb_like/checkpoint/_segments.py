"""Segments: immutable files of consecutive rows of a ring, by row id.

Segment ``number`` has the rows from ``number * segment_rows`` on. A state needs the rows that were
in the ring. The bytes of a row are divided into *parts*: the record, each large field, the frames
of a stack, and index bytes, which locate derived values. A later save writes only the segments
with new or edited rows. Not here: the loading of segments (``_ring_reader``), and other
values of a buffer (``_values``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Bytes
from cpprb_like._core import Ring
from cpprb_like._fields.layout import Layout
from cpprb_like._rows.edits import Tracker
from cpprb_like.checkpoint._arrays import CHUNK_NBYTES
from cpprb_like.checkpoint._state import Ring as SavedRing
from cpprb_like.checkpoint._state import Segment

__all__ = ["Plan", "RowBytes", "flags_name", "flags_of", "parts_of", "plan", "record_dtype"]

SEGMENT_NBYTES = 1 << 25
WIDEST = (1 << 31) - 1  # most bytes of a dtype of NumPy
BYTE = np.dtype(np.uint8)


class RowBytes(NamedTuple):
    """Bytes of every row, at the place ``row id % len(memory)``."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]  # of a row in the file
    memory: Bytes  # (slots, bytes)
    before: int = 0  # number of rows older than the oldest one that a state also needs
    is_index: bool = False  # later rows change these bytes, so a save copies them at its start
    zeros: tuple[slice, ...] = ()  # bytes of a row that are 0 in the file

    @property
    def nbytes(self) -> int:
        """Bytes of a row in this part."""
        return int(self.memory.shape[1])

    def put(self, slots: slice, entries: Bytes) -> None:
        """Copy entries of a file to these slots."""
        _whole(self.memory)[slots] = _whole(entries)

    def frozen(self, low: int, high: int) -> RowBytes:
        """The part with a copy of the rows from ``low`` to ``high`` as its memory."""
        own = np.empty((high - low, self.nbytes), np.uint8)
        self._copy_to(own, low)
        return self._replace(memory=np.roll(own, low % (high - low), axis=0))

    def _copy_to(self, out: Bytes, low: int) -> None:
        """Copy the rows from ``low`` on, as many as ``out`` has."""
        slots = len(self.memory)
        done = 0
        while done < len(out):
            slot = (low + done) % slots
            n = min(len(out) - done, slots - slot)
            _whole(out)[done : done + n] = _whole(self.memory)[slot : slot + n]
            done += n
        for span in self.zeros:
            out[:, span] = 0

    def pieces(self, low: int, high: int, flags: RowBytes | None) -> Iterator[Bytes]:
        """The bytes of the rows from ``low`` to ``high``, in arrays of about 1 MiB.

        For records that are not a copy, ``flags`` is a copy of their flags.
        """
        step = max(1, CHUNK_NBYTES // max(1, self.nbytes))
        buffer = np.empty((min(step, high - low), self.nbytes), np.uint8)
        for start in range(low, high, step):
            piece = buffer[: min(step, high - start)]
            self._copy_to(piece, start)
            if flags is not None:
                flags._copy_to(piece[:, -1:], start)
            yield piece.reshape(-1)


def _whole(rows: Bytes) -> NDArray[Any]:
    """Rows of bytes as one value each: NumPy copies strided rows of this form faster.

    Wider rows than a dtype of NumPy can be stay rows of bytes.
    """
    nbytes = rows.shape[1]
    if not len(rows) or not 0 < nbytes <= WIDEST:
        return rows
    return rows.view(f"V{nbytes}")[:, 0]


def flags_name(names: tuple[str, ...]) -> str:
    """The name of the flags in a record: ``flags``, unless a field has this name."""
    name = "flags"
    while name in names:
        name += "_"
    return name


def record_dtype(layout: Layout) -> np.dtype[Any]:
    """The structured dtype of records in a file: fields by name, and the flags.

    Entries of named axes have no name in it.
    """
    offset, _, used = layout.record
    names, formats, offsets = [], [], []
    fields = layout.schema.fields
    in_record = [
        number
        for number in range(len(layout.offsets))
        if layout.in_record(number) and fields[number].axis is None
    ]
    # A field without bytes comes before the field at the same offset.
    for number in sorted(in_record, key=lambda one: (layout.offsets[one], fields[one].nbytes)):
        field = fields[number]
        # NumPy has no field without a name.
        names.append(field.name or flags_name((*layout.schema.names, "flags")))
        formats.append((field.dtype, field.shape))
        offsets.append(layout.offsets[number] - offset)
    names.append(flags_name(layout.schema.names))
    formats.append((BYTE, ()))
    offsets.append(used)
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": used + 1})


def parts_of(layout: Layout, arena: Bytes) -> list[RowBytes]:
    """The parts of a layout's rows; records first."""
    schema, capacity = layout.schema, layout.capacity
    dtype = record_dtype(layout)
    records = layout.records(arena)[:, : dtype.itemsize]  # without the padding
    # Places in memory are no part of a checkpoint.
    entries = tuple(
        slice(start - layout.record[0], start - layout.record[0] + field.nbytes)
        for field, start in zip(schema.fields, layout.offsets, strict=True)
        if field.is_entry
    )
    parts = [RowBytes("records", dtype, (), records, zeros=entries)]
    for number, field in enumerate(schema.fields):
        is_stored = field.name not in schema.chained and not field.dtype.hasobject
        if is_stored and not layout.in_record(number):
            rows = layout.rows(arena, number)
            parts.append(RowBytes(f"field {field.name}", field.dtype, field.shape, rows))
    fields = {field.name: field for field in schema.fields}
    for stack in schema.stacks:
        field = fields[stack.name]
        before = (stack.depth - 1) * layout.n_envs
        frames = layout.block(arena, f"frames of {stack.name}").reshape(capacity + before, -1)
        frame = (*field.shape[: stack.axis], *field.shape[stack.axis + 1 :])
        parts.append(RowBytes(f"frames of {stack.name}", field.dtype, frame, frames, before))
        runs = layout.block(arena, f"runs of {stack.name}").reshape(capacity, 1)
        parts.append(RowBytes(f"runs of {stack.name}", BYTE, (), runs, 0, True))
    for name, _ in schema.chained_next:
        marks = layout.block(arena, f"marks of {name}").reshape(capacity, 1)
        parts.append(RowBytes(f"marks of {name}", BYTE, (), marks, 0, True))
    return parts


def flags_of(layout: Layout, arena: Bytes) -> RowBytes:
    """The flags of the records as a part. Each record also ends with its flags."""
    return RowBytes("flags", BYTE, (), layout.flags(arena).reshape(-1, 1), 0, True)


class Plan(NamedTuple):
    """The segments of a save."""

    segment_rows: int
    known: list[Segment]  # segments of the previous state that stay valid
    write: list[int]  # numbers of the segments to be written


def segment_rows_of(parts: list[RowBytes], beside: int) -> int:
    """Rows of a segment: a power of two, of about 32 MiB."""
    nbytes = sum(part.nbytes for part in parts) + beside
    rows = max(1, SEGMENT_NBYTES // max(1, nbytes))
    return 1 << (rows.bit_length() - 1)


def plan(
    ring: Ring,
    parts: list[RowBytes],
    beside: int,
    previous: SavedRing | None,
    tracker: Tracker | None,
) -> Plan:
    """Decide which segments to write.

    ``beside`` is the approximate number of bytes of a row outside of the parts. ``previous`` is the
    ring's entry in the previous state, or None if its segments cannot be used. ``tracker`` has the
    slots edited since then, or is None if they are unknown.
    """
    written, oldest = ring.written, ring.written - ring.stored
    if previous is None or tracker is None:
        rows = segment_rows_of(parts, beside)
        first = max(0, oldest - max(part.before for part in parts)) // rows
        return Plan(rows, [], list(range(first, -(-written // rows))))
    rows = previous.segment_rows
    first = max(0, oldest - max(part.before for part in parts)) // rows
    tail = max(0, previous.written - ring.n_envs) // rows
    known = {segment.number: segment for segment in previous.segments}
    slots = tracker.slots()
    edited = set((ring.row_ids(slots[slots < ring.stored]) // rows).tolist())
    numbers = range(first, -(-written // rows))
    write = [n for n in numbers if n not in known or n >= tail or n in edited]
    new = {*write}
    return Plan(rows, [known[number] for number in numbers if number not in new], write)
