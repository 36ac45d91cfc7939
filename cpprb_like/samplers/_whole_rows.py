"""``WholeRows``: values of the rows of a ring that rules are told of, each as of one moment.

Other threads and processes write rows meanwhile. A rule may keep what it is told of for good, such
as the group of a row. So no rule is told of values that are half old and half new, or of a row
that another one has replaced. Not here: what rules make of the values (``_rules``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from cpprb_like._arguments.arrays import Slots

CHUNK = 1 << 14  # rows whose values are read at a time
NONE = np.empty(0, np.intp)
Places = slice | Slots
# Places of rows that are whole, their values, and places of rows that are being overwritten.
Part = tuple[Places, Any, Slots]


class RowsChangedError(ValueError):
    """Another process has edited rows since they were followed: the draw is repeated."""


class WholeRows:
    """The rows of a ring that this process writes."""

    def __init__(self, ring: Any) -> None:
        self.ring = ring

    def follows(self) -> int:
        """How often the rows of another process were followed."""
        return 0

    def edits(self) -> object:
        """A value that changes when another process edits rows."""
        return None

    def bound(self) -> int | None:
        """The oldest row that another process does not overwrite; None: this one writes them."""
        return None

    def parts(self, slots: Slots, read: Callable[[Places], Any]) -> Iterator[Part]:
        """The rows in ``slots``, oldest first, in parts; ``read(places)`` returns their values.

        A part that was overwritten during its read is read once more, in smaller parts. Raises
        ``RowsChangedError`` if another process has edited or cleared rows since they were followed.
        """
        ring, start, size = self.ring, 0, CHUNK
        while start < len(slots):
            moment, bound = ring.now(), self.bound()
            places: Places = slice(start, start + size)
            gone = NONE
            if bound is not None and bound > ring.written - ring.capacity:
                is_whole = ring.row_ids(slots[places]) >= bound
                places, gone = start + np.flatnonzero(is_whole), start + np.flatnonzero(~is_whole)
            values = None
            try:
                values = read(places)
            except (ValueError, IndexError):
                if ring.holds(moment, slots[places]):
                    raise
            if values is not None and ring.holds(moment, slots[places]):
                yield places, values, gone
                start, size = start + size, min(2 * size, CHUNK)
            elif not ring.holds(ring.now(), NONE):
                raise RowsChangedError("rows were edited while rules read them")
            else:
                size = max(size // 2, 1)
