"""Items of named axes as they are written: packed, so that files know no places in memory.

The items of a segment lie in its files one row behind the other, beside their numbers. So a segment
does not depend on where the memory has them, nor on which of them were moved. Not here: other
values of the rows (``_ring_writer``), and loading (``_item_reader``).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Bytes
from cpprb_like._core import FLAG_ABSENT, Ring, entries_of
from cpprb_like._fields.field import Field
from cpprb_like._fields.layout import Layout
from cpprb_like._rows.item_ring import memory_of, unpacked
from cpprb_like.checkpoint._arrays import CHUNK_NBYTES

__all__ = ["SegmentItems", "item_nbytes", "rows_between"]

Numbers = NDArray[np.int64]


class SegmentItems:
    """Items of an axis of the rows from ``first`` to ``stop``: places and numbers, as of now.

    Rows without a step have no items in files. Items that are the next ones of the row before are
    in files too, and marked. The caller keeps writers waiting.
    """

    def __init__(
        self, layout: Layout, arena: Bytes, ring: Ring, axis: int, first: int, stop: int
    ) -> None:
        self._memory = ring.items[axis]
        self.axis = self._memory.axis
        self.fields = tuple(
            field for field in layout.schema.declared if field.name in self._memory.names
        )
        self.first, self.stop = first, stop
        rows = np.arange(first, stop)
        slots = rows % ring.capacity
        places, counts, _ = unpacked(entries_of(ring, self._memory.entry)[slots])
        is_empty = (layout.flags(arena)[slots] & FLAG_ABSENT != 0) | (counts == 0)
        self.counts = np.where(is_empty, 0, counts)
        self._places = np.where(is_empty, 0, places)
        self._are_shared = np.zeros(len(rows), np.bool_)
        if self._memory.following is not None:
            before = rows - ring.n_envs
            slots = before % ring.capacity
            nexts = unpacked(entries_of(ring, self._memory.following.entry)[slots])
            is_there = layout.flags(arena)[slots] & FLAG_ABSENT == 0
            is_there &= (before >= ring.written - ring.stored) & ~is_empty
            self._are_shared = is_there & (places == nexts[0]) & (counts == nexts[1])
        self._copies: dict[str, Bytes] = {}

    @property
    def total(self) -> int:
        """Number of items."""
        return int(self.counts.sum())

    @property
    def marked_counts(self) -> Numbers:
        """The numbers as they are written: ``~n`` for n items that the row before has too."""
        return np.where(self._are_shared, ~self.counts, self.counts)

    @property
    def nbytes(self) -> int:
        """Bytes of the items, and of their numbers."""
        return self.total * sum(field.item_nbytes for field in self.fields) + self.counts.nbytes

    def copy(self) -> None:
        """Copy the items, so that later rows do not change them."""
        self._copies = {
            field.name: np.concatenate([np.empty(0, np.uint8), *self._packed(field)])
            for field in self.fields
        }

    def pieces(self, field: Field) -> Iterator[Bytes]:
        """The bytes of the items of a field, in arrays of about 1 MiB."""
        if field.name not in self._copies:
            return self._packed(field)
        data = self._copies[field.name]
        return (data[at : at + CHUNK_NBYTES] for at in range(0, len(data), CHUNK_NBYTES))

    def _packed(self, field: Field) -> Iterator[Bytes]:
        """As ``pieces``, from memory. Items of rows that were overwritten since are of no use."""
        nbytes, number = field.item_nbytes, self._memory.names.index(field.name)
        step = max(1, CHUNK_NBYTES // nbytes)
        stops = np.cumsum(self.counts)
        for start in range(0, self.total, step):
            stop = min(start + step, self.total)
            rows, before, counts = rows_between(self.counts, stops, start, stop)
            out = np.empty((stop - start) * nbytes, np.uint8)
            self._memory.pack(number, self._places[rows] + before, counts, out)
            yield out


def rows_between(
    counts: Numbers, stops: Numbers, start: int, stop: int
) -> tuple[slice, Numbers, Numbers]:
    """The rows of the items from ``start`` to ``stop``, with at least one item.

    ``stops`` are the sums of ``counts``. Returns the rows, and for each row the number of its items
    before ``start``, and from there to ``stop``.
    """
    first, last = np.searchsorted(stops, [start + 1, stop]).tolist()
    rows = slice(first, last + 1)
    begins = stops[rows] - counts[rows]
    before = np.maximum(start - begins, 0)
    return rows, before, np.minimum(stops[rows], stop) - begins - before


def item_nbytes(ring: Ring) -> int:
    """Approximate bytes of the items of a row, now or when the buffer is full."""
    found = 0.0
    slots = ring.present_slots()
    for memory in ring.items:
        mean = memory.room / ring.capacity
        if len(slots):
            _, counts, _ = unpacked(entries_of(ring, memory.entry)[slots])
            mean = max(mean, float(counts.mean()))
        found += mean * sum(
            memory_of(memory, number).shape[1] for number in range(len(memory.names))
        )
    return int(found)
