"""Places of the items of rows in the memory of their axis, for files, pickles and checks.

The rule of places is that of ``_rows.item_ring``, which places the items of new rows. Here all rows
are looked at together, in memory that another program may have written. Not here: the memory
(``layout``), and whether the places of rows are sound (``buffers._checking``).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cpprb_like._core import FLAG_ABSENT, WORD_WRITTEN
from cpprb_like._fields.layout import Items, Layout
from cpprb_like._rows.item_ring import placed_items, unpacked

__all__ = [
    "LEFT",
    "Laps",
    "Places",
    "all_places_of",
    "items_in_use",
    "laps_of",
    "living_rows",
    "places_of",
]

SOME = 64  # rows whose entries are read at a time
LEFT = 7  # word with the number of rows that left because the room was full
MOST = 1 << 62  # greatest number of items that were ever placed


class Laps(NamedTuple):
    """Items that were ever placed: now, when the lap began, and when the one before began."""

    head: int
    base: int
    previous: int

    def are_sound(self, items: Items) -> bool:
        """Whether the three can be those of a memory."""
        longest = items.units
        return (
            0 <= self.previous <= self.base <= self.head < MOST
            and self.head - self.base <= longest
            and self.base - self.previous <= longest
        )

    def spans(self, first: int) -> list[tuple[int, int]]:
        """Start and stop of the units with the items from number ``first`` on, oldest first."""
        found = []
        if first < self.base:
            found.append((max(first, self.previous) - self.previous, self.base - self.previous))
        found.append((max(first, self.base) - self.base, self.head - self.base))
        return found

    @property
    def extent(self) -> int:
        """Number of units in which items of the last two laps lie."""
        return max(self.head - self.base, self.base - self.previous)


class Places(NamedTuple):
    """The entries of rows."""

    numbers: NDArray[np.int64]  # of the first item of each row among all items ever placed
    places: NDArray[np.int64]
    counts: NDArray[np.int64]
    is_moved: NDArray[np.bool_]

    def first(self, head: int) -> int:
        """Number of the oldest item of the rows; ``head`` if they have none."""
        some = self.counts > 0
        return int(self.numbers[some].min()) if some.any() else head


def laps_of(words: NDArray[np.int64]) -> Laps:
    """The laps that are valid."""
    start = 1 + 3 * (int(words[0]) & 1)
    return Laps(*words[start : start + 3].tolist())


def living_rows(layout: Layout, arena: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The ids of the rows that hold a step, ascending."""
    written = int(layout.state(arena)[WORD_WRITTEN])
    rows = np.arange(max(0, written - layout.capacity), written)
    present = layout.flags(arena)[rows % layout.capacity] & FLAG_ABSENT == 0
    living: NDArray[np.int64] = rows[present]
    return living


def places_of(
    layout: Layout, arena: NDArray[np.uint8], items: Items, rows: NDArray[np.int64], laps: Laps
) -> Places:
    """The entries of rows, by their ids. Damaged entries have places and counts below 2 ** 62."""
    return _placed(_entries(layout, arena, items, rows), laps)


def all_places_of(
    layout: Layout, arena: NDArray[np.uint8], items: Items, rows: NDArray[np.int64], laps: Laps
) -> tuple[NDArray[np.int64], Places]:
    """The rows and entries of own and of next items: see ``item_ring.placed_items``."""
    entries, following = _entries(layout, arena, items, rows), layout.following(items)
    if following is not None:
        nexts = _entries(layout, arena, following, rows)
        rows, entries = placed_items(rows, entries, nexts, layout.n_envs)
    return rows, _placed(entries, laps)


def _entries(
    layout: Layout, arena: NDArray[np.uint8], items: Items, rows: NDArray[np.int64]
) -> NDArray[np.unsignedinteger[Any]]:
    ((number, field),) = [
        (number, field)
        for number, field in enumerate(layout.schema.fields)
        if field.is_entry and field.axis == items.axis
    ]
    stored = layout.rows(arena, number)[rows % layout.capacity]
    return np.ascontiguousarray(stored).view(field.dtype).reshape(len(rows), 2)


def _placed(entries: NDArray[np.unsignedinteger[Any]], laps: Laps) -> Places:
    places, counts, is_moved = unpacked(entries)
    numbers = places + np.where(places < laps.head - laps.base, laps.base, laps.previous)
    return Places(numbers, places, counts, is_moved)


def items_in_use(layout: Layout, arena: NDArray[np.uint8], items: Items, first: int) -> int:
    """Items from the oldest one that a row has to the newest, in memory that others may write.

    Rows before ``first`` hold no step. Cost: that of the rows up to the first one with items in the
    place that ``add`` gave them, as all later rows have younger items; with next values, up to such
    a row of each environment.
    """
    laps, written = laps_of(layout.item_words(arena, items)), int(layout.state(arena)[WORD_WRITTEN])
    row, tail = max(first, written - layout.capacity), laps.head
    left = 1 if layout.following(items) is None else 2 * layout.n_envs  # entries to be found
    while row < written and left > 0:
        rows = np.arange(row, min(row + SOME, written))
        rows = rows[layout.flags(arena)[rows % layout.capacity] & FLAG_ABSENT == 0]
        _, found = all_places_of(layout, arena, items, rows, laps)
        tail = min(tail, found.first(laps.head))
        left -= int(np.count_nonzero((found.counts > 0) & ~found.is_moved))
        row += SOME
    return min(max(laps.head - tail, 0), items.room)
