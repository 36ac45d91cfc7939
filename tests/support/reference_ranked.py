"""The slow, obvious twin of rank-based replay: a dict of priorities, sorted when it is due."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


def paper_weights(priorities: dict[int, float], alpha: float) -> dict[int, float]:
    """``rank ** -alpha`` of each slot; equal priorities share the mean of theirs."""
    order = sorted(priorities.values(), reverse=True)
    weights = np.arange(1.0, len(order) + 1) ** -alpha
    return {
        slot: float(weights[[other == priority for other in order]].mean())
        for slot, priority in priorities.items()
    }


@dataclass
class ReferenceRanked:
    """Priorities and weights of a ring of ``capacity`` rows, by slot.

    Ranks differ by their first ``bits + 1`` binary digits: the *cells* are the ranks 1, 2,
    3, ... one by one, then pairs of ranks, then fours, and so on.
    """

    capacity: int
    alpha: float = 0.7
    bits: int = 6
    priorities: dict[int, float] = field(default_factory=dict)
    settled: dict[int, float] = field(default_factory=dict)  # weights at the last draw
    changed: set[int] = field(default_factory=set)  # slots since then
    bottoms: list[float] = field(default_factory=list)  # least priority of each group but the last
    ordered: int = 0  # rows at the last sort
    changes: int = 0  # of priorities since
    written: int = 0
    greatest: float = 1.0

    # ---- writing -------------------------------------------------------------------------

    def add(
        self, n: int, priorities: list[float] | None = None, present: list[bool] | None = None
    ) -> None:
        """Append the ``n`` rows of one call."""
        given = priorities or [self.greatest] * n
        for k in range(n):
            slot = self.written % self.capacity
            self.written += 1
            if present is not None and not present[k]:
                self.drop(slot)
            else:
                self.set(slot, given[k])

    def update(self, slots: list[int], priorities: list[float]) -> None:
        """Set the priorities of rows."""
        for slot, priority in zip(slots, priorities, strict=True):
            self.set(slot, priority)

    def clear(self) -> None:
        fresh = ReferenceRanked(self.capacity, self.alpha, self.bits)
        self.__dict__.update(fresh.__dict__)

    def drop(self, slot: int) -> None:
        """A slot has no row any longer."""
        if slot in self.priorities:
            del self.priorities[slot]
            self.changed.add(slot)

    def set(self, slot: int, priority: float) -> None:
        """A slot has a row of this priority."""
        self.greatest = max(self.greatest, priority)
        self.priorities[slot] = priority
        self.changed.add(slot)

    @property
    def weights(self) -> dict[int, float]:
        """Slots that changed since the last draw have the mean weight of their group's ranks."""
        groups = {slot: self.group(priority) for slot, priority in self.priorities.items()}
        found = {}
        for slot, group in groups.items():
            before = sum(other < group for other in groups.values())
            ranks = range(before + 1, before + [*groups.values()].count(group) + 1)
            mean = float(np.mean([self.rank_weight(rank) for rank in ranks]))
            found[slot] = mean if slot in self.changed else self.settled[slot]
        return found

    # ---- ranks ---------------------------------------------------------------------------

    def group(self, priority: float) -> int:
        """How many groups have greater priorities only."""
        return sum(priority < bottom for bottom in self.bottoms)

    def cells(self) -> list[tuple[int, int]]:
        """The first and the last rank of each cell."""
        found, last = [], 0
        while last < self.capacity:
            width = 1
            while last // width >= 2 ** (self.bits + 1):
                width *= 2
            found.append((last + 1, last + width))
            last += width
        return found

    def rank_weight(self, rank: int) -> float:
        """That of the rank in the middle of its cell."""
        for first, last in self.cells():
            if first <= rank <= last:
                return float(((first + last) / 2) ** -self.alpha)
        raise AssertionError(rank)

    def sort(self) -> None:
        """Give every row the weight of its rank, and a group to the rows of each cell."""
        self.settled = paper_weights(self.priorities, self.alpha)
        order = sorted(self.priorities.values(), reverse=True)
        lowest = [
            order[min(last, len(order)) - 1] for first, last in self.cells() if first <= len(order)
        ]
        self.bottoms = sorted(set(lowest), reverse=True)[:-1]
        self.ordered, self.changes = len(order), 0

    def draw(self) -> None:
        """What a draw does before it draws: it sorts if as many have changed as were sorted.

        Or a quarter of these, and all rows weigh a quarter more than all ranks, or less.
        """
        if not self.priorities:
            return
        self.settled = self.weights
        self.changes += len(self.changed)
        self.changed = set()
        if self.changes == 0 or 4 * self.changes < self.ordered:
            return
        total = sum(self.settled.values())
        expected = sum(self.rank_weight(rank) for rank in range(1, len(self.settled) + 1))
        strays = total >= 1.25 * expected or expected >= 1.25 * total
        if self.changes >= self.ordered or strays:
            self.sort()
