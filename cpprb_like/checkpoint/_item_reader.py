"""Reads the items of named axes into the memory of a ring, which may have other rooms.

Items are placed anew, in the order of their rows, from place 0 on. If a room is too small, the
oldest rows leave. A file is read in pieces, and memory is made usable piece by piece, so no number
in a file sizes an allocation. Not here: other values of the rows (``_ring_reader``), and the
content of the files (``_item_writer``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Bytes
from cpprb_like._core import FLAG_ABSENT, Ring, entries_of
from cpprb_like._fields.layout import Layout
from cpprb_like._files.json_codec import MOST
from cpprb_like._rows.item_ring import ItemRing, make_usable, memory_of, place_from_start
from cpprb_like.checkpoint import _arrays
from cpprb_like.checkpoint._disk import Disk
from cpprb_like.checkpoint._item_writer import rows_between
from cpprb_like.checkpoint._state import File, ItemFiles
from cpprb_like.checkpoint._state import Ring as SavedRing
from cpprb_like.errors import DamagedError

__all__ = ["ItemReader", "count_items"]

COUNTS = np.dtype(np.int64)

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]
Salvaged = Callable[[Callable[[], Any]], Any]  # calls a function; None if a file is damaged


class Part(NamedTuple):
    """The files of the items of a segment, and the numbers of items of their rows."""

    files: ItemFiles
    counts: Numbers


class Axis:
    """An axis: its memory and fields, the numbers of items of all rows, and where they are read."""

    def __init__(self, memory: ItemRing, layout: Layout, n: int) -> None:
        self.memory = memory
        self.fields = [field for field in layout.schema.declared if field.name in memory.names]
        self.counts: Numbers = np.zeros(n, np.int64)
        self.is_known: Mask = np.zeros(n, np.bool_)
        self.parts: list[Part] = []


class ItemReader:
    """Reads the items of the rows from ``first`` on into a ring whose fixed fields were read.

    ``salvaged`` calls a function that reads; it returns None if a damaged file is skipped.
    """

    def __init__(
        self, disk: Disk, saved: SavedRing, first: int, ring: Ring, salvaged: Salvaged
    ) -> None:
        self._disk, self._saved, self._first, self._ring = disk, saved, first, ring
        self._salvaged = salvaged

    def fill(self, layout: Layout, arena: Bytes, missing: Mask) -> Mask:
        """Read items and write entries; a mask of the rows that leave, as their items do not fit.

        Rows whose files are damaged are marked in ``missing``. Rows that leave become absent.
        """
        slots = np.arange(self._first, self._saved.written) % layout.capacity
        flags = layout.flags(arena)
        axes = [self._read_counts(Axis(memory, layout, len(slots))) for memory in self._ring.items]
        is_there = ~missing & (flags[slots] & FLAG_ABSENT == 0)
        for axis in axes:
            missing |= is_there & ~axis.is_known
        is_there &= ~missing
        starts = [self._first_that_fits(axis, is_there) for axis in axes]
        leaving: Mask = is_there & (np.arange(len(slots)) < max(starts))
        flags[slots[leaving]] |= FLAG_ABSENT
        placed = []
        for axis in axes:
            counts = np.where(is_there & ~leaving, axis.counts, 0)
            places = np.cumsum(counts) - counts
            for part in axis.parts:
                self._read_items(axis, part, counts, places, missing)
            placed.append((places, counts))
        left = self._left()
        full = axes[starts.index(max(starts))].memory.axis
        left[full] += int(np.count_nonzero(leaving))
        for axis, (places, counts) in zip(axes, placed, strict=True):
            entries = entries_of(self._ring, axis.memory.entry)
            entries[: self._ring.stored] = 0
            entries[slots, 0] = np.where(missing, 0, places)
            entries[slots, 1] = np.where(missing, 0, counts)
            place_from_start(axis.memory, int(counts.sum()), left[axis.memory.axis])
        return leaving

    def _left(self) -> dict[str, int]:
        """Number of rows that left the saved ring for room, by axis."""
        axes = self._saved.layout.schema.axes
        return {axis.name: n for axis, n in zip(axes, self._saved.left, strict=True)}

    def _read_counts(self, axis: Axis) -> Axis:
        """Read the numbers of items of an axis."""
        first, total = self._first, 0
        for segment in self._saved.segments:
            for files in segment.items:
                low = max(files.first, first)
                if files.axis != axis.memory.axis or low >= files.stop:
                    continue
                counts = self._salvaged(partial(_counts_of, self._disk, files))
                if counts is None:
                    continue
                total += int(counts.sum())
                some = slice(low - first, files.stop - first)
                if axis.is_known[some].any() or total > MOST:
                    raise DamagedError(f"{files.counts.name}: its rows are in other files too")
                axis.is_known[some] = True
                axis.counts[some] = counts[low - files.first :]
                axis.parts.append(Part(files, counts))
        return axis

    def _first_that_fits(self, axis: Axis, is_there: Mask) -> int:
        """Number of the oldest row such that its items and those of younger rows have room."""
        counts, room = np.where(is_there, axis.counts, 0), axis.memory.room
        start = int(np.count_nonzero(np.cumsum(counts[::-1]) > room))
        if start and counts[start - 1] > room:
            raise ValueError(
                f"room={{{axis.memory.axis!r}: {room}}}: a row has {counts[start - 1]} items; "
                "expected at least so many"
            )
        return start

    def _read_items(
        self, axis: Axis, part: Part, counts: Numbers, places: Numbers, missing: Mask
    ) -> None:
        """Read the items of a segment; rows with a number in ``counts`` have a place."""
        start = max(part.files.first - self._first, 0)
        some = slice(start, part.files.stop - self._first)
        has_items = counts[some] > 0
        is_read = np.zeros(len(part.counts), np.bool_)
        is_read[len(is_read) - len(has_items) :] = has_items
        first = int(places[start])
        for number, field in enumerate(axis.fields):
            to = Place(axis.memory, number, first, part.counts, is_read)
            file = part.files.values[field.name]
            file.expect(field.dtype, int(part.counts.sum()), *field.item_shape)
            if not self._salvaged(partial(self._read_file, file, to)):
                missing[some] |= has_items

    def _read_file(self, file: File, to: Place) -> bool:
        for offset, piece in _arrays.read(self._disk, file, to.memory_of):
            to.take(offset, piece)
        return True


class Place:
    """Where the items of a file go: those of some of its rows, one behind the other."""

    def __init__(
        self, memory: ItemRing, number: int, first: int, counts: Numbers, is_read: Mask
    ) -> None:
        self._memory, self._next = memory, first
        self._items = memory_of(memory, number)
        self._counts, self._stops = counts, np.cumsum(counts)
        self._is_read = is_read
        self._first = first
        self._reads_all = bool((is_read | (counts == 0)).all())

    def memory_of(self, offset: int, most: int) -> Bytes | None:
        """Memory for the next piece of a file whose items are all read."""
        if not self._reads_all:
            return None
        nbytes = self._items.shape[1]
        return self._usable(self._first + offset // nbytes, most // nbytes).reshape(-1)

    def take(self, offset: int, piece: Bytes) -> None:
        """Take the items of a piece that are read."""
        nbytes = self._items.shape[1]
        start, stop = offset // nbytes, (offset + len(piece)) // nbytes
        rows, _, sizes = rows_between(self._counts, self._stops, start, stop)
        chosen = piece.reshape(-1, nbytes)[np.repeat(self._is_read[rows], sizes)]
        self._usable(self._next, len(chosen))[:] = chosen
        self._next += len(chosen)

    def _usable(self, start: int, n: int) -> Bytes:
        """The memory of n items, made usable."""
        make_usable(self._memory, start + n)
        return self._items[start : start + n]


def count_items(disk: Disk, saved: SavedRing) -> dict[str, int]:
    """Number of items of the rows of a saved ring, by axis."""
    found = dict.fromkeys(saved.layout.schema.rooms, 0)
    for segment in saved.segments:
        for files in segment.items:
            counts = _counts_of(disk, files)[max(0, saved.oldest - files.first) :]
            found[files.axis] += int(counts.sum())
    return found


def _counts_of(disk: Disk, files: ItemFiles) -> Numbers:
    """Numbers of items of the rows of a file; ``DamagedError`` for numbers out of range."""
    n = files.stop - files.first
    counts: Numbers = _arrays.read_array(disk, files.counts.expect(COUNTS, n))
    if n and (counts.min() < 0 or counts.max() > MOST // n):
        raise DamagedError(f"{files.counts.name}: numbers of items are out of range")
    return counts
