"""The rows of a ring as segments: files of so many rows by row id, which are never changed.

A segment has the rows ``number * segment_rows`` and up; of these, a state needs those that were in
the ring. What a row has is divided into *parts*: the records, each large field, the frames of a
stack, and a byte or two about where derived values are. A save that follows another one writes the
segments that have new or edited rows. Not here: reading them back (``_ring_reader``), the rest of a
buffer (``_values``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Bytes
from cpprb_like._core import Ring
from cpprb_like._fields.schema import Layout
from cpprb_like._rows.edits import Tracker
from cpprb_like.checkpoint._arrays import CHUNK_NBYTES
from cpprb_like.checkpoint._state import Ring as SavedRing
from cpprb_like.checkpoint._state import Segment

__all__ = [
    "Index",
    "Part",
    "Plan",
    "flags_name",
    "parts_of",
    "plan",
    "record_dtype",
]


SEGMENT_NBYTES = 1 << 25
BYTE = np.dtype(np.uint8)


class Part(NamedTuple):
    """Something that each row has: bytes at ``row id % len(memory)``."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]  # of a row, in the file
    memory: Bytes  # (slots, bytes)
    before: int = 0  # rows older than the oldest one that are needed as well
    is_index: bool = False  # changes with later rows, so it is copied when a save begins

    @property
    def nbytes(self) -> int:
        """Bytes of a row."""
        return int(self.memory.shape[1])

    def put(self, slots: slice, entries: Bytes) -> None:
        """Set the rows in these slots to entries of a file."""
        _whole(self.memory)[slots] = _whole(entries)

    def range(self, first: int, stop: int, oldest: int) -> tuple[int, int]:
        """The rows from ``first`` to ``stop`` that a state with this oldest row needs."""
        low = max(first, oldest - self.before, 0)
        return low, max(low, stop)

    def copy(self, low: int, high: int) -> Bytes:
        """The bytes of the rows from ``low`` to ``high``."""
        out = np.empty((high - low, self.nbytes), np.uint8)
        self._copy_to(out, low)
        return out

    def frozen(self, low: int, high: int) -> Part:
        """The part with memory of its own, for the rows from ``low`` to ``high``."""
        own = np.roll(self.copy(low, high), low % (high - low), axis=0)
        return self._replace(memory=own)

    def _copy_to(self, out: Bytes, low: int) -> None:
        slots = len(self.memory)
        done = 0
        while done < len(out):
            slot = (low + done) % slots
            n = min(len(out) - done, slots - slot)
            _whole(out)[done : done + n] = _whole(self.memory)[slot : slot + n]
            done += n

    def pieces(self, low: int, high: int, index: Index) -> Iterator[Bytes]:
        """The bytes of the rows from ``low`` to ``high``, in arrays of some MiB."""
        step = max(1, CHUNK_NBYTES // max(1, self.nbytes))
        buffer = np.empty((min(step, high - low), self.nbytes), np.uint8)
        for start in range(low, high, step):
            piece = buffer[: min(step, high - start)]
            self._copy_to(piece, start)
            index.put(self, piece, start)
            yield piece.reshape(-1)


def _whole(rows: Bytes) -> NDArray[Any]:
    """Rows of bytes as one value each, which NumPy copies faster where they are apart in memory."""
    nbytes = rows.shape[1]
    return rows.view(f"V{nbytes}")[:, 0] if nbytes and len(rows) else rows


def flags_name(names: tuple[str, ...]) -> str:
    """The name of the flags in a record: ``flags``, unless a field is called so."""
    name = "flags"
    while name in names:
        name += "_"
    return name


def record_dtype(layout: Layout) -> np.dtype[Any]:
    """The records in a file as a structured dtype: fields under their names, and the flags."""
    offset, _, used = layout.record
    names, formats, offsets = [], [], []
    in_record = [number for number in range(len(layout.offsets)) if layout.in_record(number)]
    fields = layout.schema.fields
    # A field without bytes is before the one that shares its place.
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


def parts_of(layout: Layout, arena: Bytes) -> list[Part]:
    """The parts of a layout's rows; records first."""
    schema, capacity = layout.schema, layout.capacity
    dtype = record_dtype(layout)
    records = layout.records(arena)[:, : dtype.itemsize]  # without their padding
    parts = [Part("records", dtype, (), records)]
    for number, field in enumerate(schema.fields):
        is_stored = field.name not in schema.chained and not field.dtype.hasobject
        if is_stored and not layout.in_record(number):
            rows = layout.rows(arena, number)
            parts.append(Part(f"field {field.name}", field.dtype, field.shape, rows))
    fields = {field.name: field for field in schema.fields}
    for stack in schema.stacks:
        field = fields[stack.name]
        before = (stack.depth - 1) * layout.n_envs
        frames = layout.block(arena, f"frames of {stack.name}").reshape(capacity + before, -1)
        frame = (*field.shape[: stack.axis], *field.shape[stack.axis + 1 :])
        parts.append(Part(f"frames of {stack.name}", field.dtype, frame, frames, before))
        runs = layout.block(arena, f"runs of {stack.name}").reshape(capacity, 1)
        parts.append(Part(f"runs of {stack.name}", BYTE, (), runs, 0, True))
    for name, _ in schema.next_of:
        marks = layout.block(arena, f"marks of {name}").reshape(capacity, 1)
        parts.append(Part(f"marks of {name}", BYTE, (), marks, 0, True))
    return parts


class Index:
    """Copies of what later rows change: flags of records, and where derived values are.

    They are taken at the moment of a save, while writers wait, of the rows that it will write.
    """

    def __init__(self, layout: Layout, arena: Bytes, parts: list[Part]) -> None:
        self._flags = Part("flags", BYTE, (), layout.flags(arena).reshape(-1, 1))
        self._records = parts[0]
        self._indexes = [part for part in parts if part.is_index]
        self._ranges: list[tuple[int, int, dict[str, Bytes]]] = []

    def take(self, low: int, high: int) -> None:
        """Copy what the rows from ``low`` to ``high`` have."""
        found = {part.name: part.copy(low, high) for part in (self._flags, *self._indexes)}
        self._ranges.append((low, high, found))

    def put(self, part: Part, piece: Bytes, start: int) -> None:
        """Set the copies in the bytes of the rows from ``start`` on."""
        if not (part is self._records or part.is_index):
            return
        name, to = ("flags", piece[:, -1:]) if part is self._records else (part.name, piece)
        stop = start + len(piece)
        for low, high, found in self._ranges:
            first, end = max(low, start), min(high, stop)
            if first < end:
                to[first - start : end - start] = found[name][first - low : end - low]


class Plan(NamedTuple):
    """The segments of a save: those of the previous state, and those to be written."""

    segment_rows: int
    known: list[Segment]  # of the previous state
    write: list[int]  # numbers


def segment_rows_of(parts: list[Part], beside: int) -> int:
    """Rows of a segment: a power of two, of some 32 MiB."""
    nbytes = sum(part.nbytes for part in parts) + beside
    rows = max(1, SEGMENT_NBYTES // max(1, nbytes))
    return 1 << (rows.bit_length() - 1)


def plan(
    ring: Ring,
    parts: list[Part],
    beside: int,
    previous: SavedRing | None,
    tracker: Tracker | None,
) -> Plan:
    """Decide which segments to write.

    A row has about ``beside`` bytes in no part. ``previous`` is the ring in the previous state, if
    that has the same rows; ``tracker`` has the slots that were edited since.
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
