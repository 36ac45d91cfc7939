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
        self.memory = self.owner = memory  # the owner makes memory usable
        self.fields = [field for field in layout.schema.declared if field.name in memory.names]
        self.counts: Numbers = np.zeros(n, np.int64)
        self.is_known: Mask = np.zeros(n, np.bool_)
        self.are_shared: Mask = np.zeros(n, np.bool_)  # with the next ones of the row before
        self.parts: list[Part] = []
        self.following: Axis | None = None  # that of next values
        self.places: Numbers = self.counts

    def share(self, is_there: Mask, lag: int) -> None:
        """Keep to the rows that are there; ``lag`` is the number of rows to the next one."""
        self.counts = np.where(is_there, self.counts, 0)
        if self.following is None:
            self.are_shared[:] = False
            return
        self.following.share(is_there, lag)
        self.are_shared[:lag] = False
        self.are_shared[lag:] &= self.counts[lag:] == self.following.counts[:-lag]
        self.are_shared &= self.counts > 0

    @property
    def each(self) -> Numbers:
        """The numbers of own and next items of each row in memory, shape ``(n, 2)``."""
        nexts = np.zeros_like(self.counts) if self.following is None else self.following.counts
        return np.stack([np.where(self.are_shared, 0, self.counts), nexts], axis=1)

    def place(self, lag: int) -> int:
        """Place the items from place 0 on, and return their number."""
        each = self.each
        places = (each.ravel().cumsum() - each.ravel()).reshape(each.shape)
        self.places = places[:, 0]
        if self.following is not None:
            self.following.places = places[:, 1]
            shared = np.flatnonzero(self.are_shared)
            self.places[shared] = places[shared - lag, 1]
        return int(each.sum())


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
        every = {
            memory.axis: self._read_counts(Axis(memory, layout, len(slots)))
            for memory in self._ring.items
        }
        is_there = ~missing & (flags[slots] & FLAG_ABSENT == 0)
        for axis in every.values():
            missing |= is_there & ~axis.is_known
            if axis.memory.following is not None:
                axis.following = every[axis.memory.following.axis]
                axis.following.owner = axis.memory
        is_there &= ~missing
        axes, lag = [axis for axis in every.values() if not axis.memory.is_next], self._ring.n_envs
        for axis in axes:
            axis.share(is_there, lag)
        starts = [self._first_that_fits(axis) for axis in axes]
        leaving: Mask = is_there & (np.arange(len(slots)) < max(starts))
        flags[slots[leaving]] |= FLAG_ABSENT
        left = self._left()
        full = axes[starts.index(max(starts))].memory.axis
        left[full] += int(np.count_nonzero(leaving))
        for axis in axes:
            axis.share(is_there & ~leaving, lag)
            total = axis.place(lag)
            lost = self._read_axis(axis)
            if axis.following is not None:
                lost_next = self._read_axis(axis.following)
                lost[lag:] |= axis.are_shared[lag:] & lost_next[:-lag]
                lost |= lost_next
            missing |= lost
            place_from_start(axis.memory, total, left[axis.memory.axis])
        for axis in every.values():
            entries = entries_of(self._ring, axis.memory.entry)
            entries[: self._ring.stored] = 0
            entries[slots, 0] = np.where(missing, 0, axis.places)
            entries[slots, 1] = np.where(missing, 0, axis.counts)
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
                found = self._salvaged(partial(_counts_of, self._disk, files))
                if found is None:
                    continue
                counts, are_shared = found
                total += int(counts.sum())
                some = slice(low - first, files.stop - first)
                if axis.is_known[some].any() or total > MOST:
                    raise DamagedError(f"{files.counts.name}: its rows are in other files too")
                axis.is_known[some] = True
                axis.counts[some] = counts[low - files.first :]
                axis.are_shared[some] = are_shared[low - files.first :]
                axis.parts.append(Part(files, counts))
        return axis

    def _first_that_fits(self, axis: Axis) -> int:
        """Number of the oldest row such that its items and those of younger rows have room."""
        each, room, n = axis.each.sum(axis=1), axis.memory.room, len(axis.counts)
        of_rows_before = np.append(0, np.where(axis.are_shared, axis.counts, 0).cumsum())
        rows = np.arange(n)  # of the first time step from such a row on, none shares items
        totals = each[::-1].cumsum()[::-1] - of_rows_before[rows]
        totals += of_rows_before[np.minimum(rows + self._ring.n_envs, n)]
        start = int(np.count_nonzero(totals > room))
        if start:
            most = each[start - 1] + axis.counts[start - 1] * axis.are_shared[start - 1]
            if most > room:
                raise ValueError(
                    f"room={{{axis.memory.axis!r}: {room}}}: a row has {most} items; expected at "
                    "least so many"
                )
        return start

    def _read_axis(self, axis: Axis) -> Mask:
        """Read the items of all rows; a mask of those whose files are damaged."""
        lost = np.zeros(len(axis.counts), np.bool_)
        for part in axis.parts:
            self._read_items(axis, part, lost)
        return lost

    def _read_items(self, axis: Axis, part: Part, lost: Mask) -> None:
        """Read the items of a segment, of the rows that have a place for them."""
        some = slice(max(part.files.first - self._first, 0), part.files.stop - self._first)
        has_items = (axis.counts[some] > 0) & ~axis.are_shared[some]
        is_read = np.zeros(len(part.counts), np.bool_)
        is_read[len(is_read) - len(has_items) :] = has_items
        places = np.zeros(len(part.counts), np.int64)
        places[len(is_read) - len(has_items) :] = axis.places[some]
        is_dense = axis.following is None and not axis.memory.is_next
        for field in axis.fields:
            number = axis.memory.names.index(field.name)
            to = Place(axis.owner, number, places, part.counts, is_read, is_dense=is_dense)
            file = part.files.values[field.name]
            file.expect(field.dtype, int(part.counts.sum()), *field.item_shape)
            if not self._salvaged(partial(self._read_file, file, to)):
                lost[some] |= has_items

    def _read_file(self, file: File, to: Place) -> bool:
        for offset, piece in _arrays.read(self._disk, file, to.memory_of):
            to.take(offset, piece)
        return True


class Place:
    """Where the items of a file go: those of some of its rows.

    With ``is_dense`` they lie one behind the other.
    """

    def __init__(
        self,
        memory: ItemRing,
        number: int,
        places: Numbers,
        counts: Numbers,
        is_read: Mask,
        *,
        is_dense: bool,
    ) -> None:
        self._memory, self._places = memory, places
        self._items = memory_of(memory, number)
        self._counts, self._stops = counts, np.cumsum(counts)
        self._is_read = is_read
        self._reads_all = is_dense and bool((is_read | (counts == 0)).all())

    def memory_of(self, offset: int, most: int) -> Bytes | None:
        """Memory for the next piece of a file whose items are all read."""
        if not self._reads_all:
            return None
        nbytes = self._items.shape[1]
        first = int(self._places[self._is_read.argmax()])
        start, n = first + offset // nbytes, most // nbytes
        make_usable(self._memory, start + n)
        return self._items[start : start + n].reshape(-1)

    def take(self, offset: int, piece: Bytes) -> None:
        """Take the items of a piece that are read."""
        nbytes = self._items.shape[1]
        start, stop = offset // nbytes, (offset + len(piece)) // nbytes
        rows, before, sizes = rows_between(self._counts, self._stops, start, stop)
        chosen = piece.reshape(-1, nbytes)[np.repeat(self._is_read[rows], sizes)]
        sizes = np.where(self._is_read[rows], sizes, 0)
        begins = self._places[rows] + before - (sizes.cumsum() - sizes)
        places = np.repeat(begins, sizes) + np.arange(len(chosen))
        make_usable(self._memory, int(places.max(initial=-1)) + 1)
        self._items[places] = chosen


def count_items(disk: Disk, saved: SavedRing) -> dict[str, int]:
    """Number of items of the rows of a saved ring, by axis."""
    found = {axis.name: 0 for axis in saved.layout.schema.axes}
    for segment in saved.segments:
        for files in segment.items:
            counts = _counts_of(disk, files)[0][max(0, saved.oldest - files.first) :]
            found[files.axis] += int(counts.sum())
    return found


def _counts_of(disk: Disk, files: ItemFiles) -> tuple[Numbers, Mask]:
    """Numbers of items of the rows of a file, and whether the row before has these items.

    ``DamagedError`` for numbers out of range.
    """
    n = files.stop - files.first
    counts: Numbers = _arrays.read_array(disk, files.counts.expect(COUNTS, n))
    are_shared: Mask = counts < 0
    counts = np.where(are_shared, ~counts, counts)
    if n and (counts.min() < 0 or counts.max() > MOST // n):
        raise DamagedError(f"{files.counts.name}: numbers of items are out of range")
    return counts, are_shared
