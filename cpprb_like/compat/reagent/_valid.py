"""Which slots of a buffer can be drawn, found from the rows, and draws from these.

Flags by slot, and a sum tree of the weights of the slots whose flag is set. So the cost of a draw
does not depend on the capacity, where ReAgent looks through all flags. Not here:
the rule (``Rows.valid``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Floats, Slots
from cpprb_like.compat.reagent._errors import InputError
from cpprb_like.compat.reagent._rows import FIRST_PRIORITY, Rows
from cpprb_like.compat.reagent._sum_tree import SumTree

__all__ = ["Priorities", "Valid"]


CHUNK = 1 << 16  # rows whose windows are in memory at once


class Priorities(SumTree):
    """Priorities of all slots; draws follow their changes, also those that users make."""

    valid: Valid

    def set_many(self, node_indices: Slots, values: Floats) -> None:
        super().set_many(node_indices, values)
        self.valid.weigh(node_indices)


class Valid:
    """Flags of the slots that can be drawn, which follow the rows.

    Parameters
    ----------
    capacity : int
        Slots.
    priorities : Priorities, optional
        The weights of slots; 1.0 each.

    Attributes
    ----------
    flags : ndarray of bool, shape (capacity,)
        To be read only.
    seen, open : int
        Rows that were written at the last ``follow``, and those of them in an open episode.
    tree : SumTree
        The weights of the slots whose flag is set.
    """

    def __init__(self, capacity: int, priorities: Priorities | None = None) -> None:
        self.flags: NDArray[np.bool_] = np.zeros(capacity, np.bool_)
        self._count: int | None = 0  # of the flags that are set; None while they change
        self.seen = self.open = 0
        self.tree = SumTree(capacity)
        self._priorities = priorities
        if priorities is not None:
            priorities.valid = self

    def slots(self, indices: Any) -> Slots:
        """Numbers of slots as an array.

        Raises ``IndexError`` if there is no such slot, ``InputError`` if it is no number of one.
        """
        given = np.asarray(indices)
        with np.errstate(invalid="ignore"):
            slots = given.astype(np.intp) if given.dtype.kind in "iuf" else given
        if slots.dtype != np.intp or (slots != given).any():
            raise InputError(f"indices: expected integers, got {indices!r}")
        if slots.size and not 0 <= slots.min() <= slots.max() < len(self.flags):
            raise IndexError(f"indices: expected 0 to {len(self.flags) - 1}, got {indices!r}")
        return slots

    def follow(self, rows: Rows | None) -> None:
        """Take in the rows that were added since the last call.

        An interrupted call is repeated by the next one.
        """
        if rows is not None and rows.ring.written != self.seen:
            rows.rows._hold(False, self._take_in, rows)

    def _take_in(self, rows: Rows) -> None:
        """``follow``, while other threads that write wait."""
        ring = rows.ring
        written, capacity = ring.written, ring.capacity
        oldest = max(0, written - capacity)
        seen, undecided = self.seen, min(rows.horizon, self.open)
        if seen > written:  # older rows were loaded
            seen = undecided = 0
        # Steps of an open episode lacked what follows; users may have set their flags.
        for start in range(max(oldest, seen - undecided), written, CHUNK):
            slots = np.arange(start, min(start + CHUNK, written)) % capacity
            valid, n = rows.valid(slots), max(0, seen - start)
            valid[:n] |= self.flags[slots[:n]]
            if self._priorities is not None:
                self._priorities.set_many(slots[n:], rows.column(FIRST_PRIORITY, slots[n:]))
            self.set(slots, valid)
        if oldest and rows.padding:
            self.set(np.arange(oldest, oldest + rows.padding) % capacity, False)  # broken stacks
        self.open = ring.episode_len(0)
        self.seen = written

    @property
    def count(self) -> int:
        """How many flags are set."""
        known = self._count
        return self._counted() if known is None else known

    def _counted(self) -> int:
        return int(np.count_nonzero(self.flags))

    def set(self, slots: Slots, flags: NDArray[np.bool_] | bool) -> None:
        """Set the flags of slots, each of which is there once."""
        count, self._count = self.count, None  # so that a call that is cut off leaves no wrong one
        count -= int(np.count_nonzero(self.flags[slots]))
        self.flags[slots] = flags
        count += int(np.count_nonzero(self.flags[slots]))
        self._count = count
        self.weigh(slots)

    def weigh(self, slots: Slots) -> None:
        """Take in weights that have changed."""
        weights = self.flags[slots].astype(np.float64)
        if self._priorities is not None:
            weights *= self._priorities.get_many(slots)
        self.tree.set_many(slots, weights)

    def probabilities(self, slots: Slots) -> Floats:
        """The probability of each of these slots in one draw by weight."""
        total = self.tree._total_priority()
        return self.tree.get_many(slots) / (total or 1.0)
