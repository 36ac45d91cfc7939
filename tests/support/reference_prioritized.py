"""The slow, obvious twin of prioritized replay: one weight per row, set when the row is added."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from reference_tree import ReferenceTree

from cpprb_like import NotEnoughDataError

Floats = npt.NDArray[np.float64]


@dataclass(eq=False)
class WeightedRow:
    """One row ever written: what it weighs, and whether a draw came after it."""

    weight: float
    absent: bool
    older_than_a_draw: bool = False


@dataclass
class ReferencePrioritized:
    """Priorities of a ring of ``capacity`` rows; a row's slot is its place in ``history``."""

    capacity: int
    alpha: float = 0.6
    eps: float = 1e-4
    check_for_update: bool = False
    history: list[WeightedRow] = field(default_factory=list)
    greatest: float = 1.0  # priority so far
    draws: int = 0

    # ---- writing -------------------------------------------------------------------------

    def weigh(self, priority: float) -> float:
        """What a row of this priority weighs."""
        return float((priority + self.eps) ** self.alpha)

    def add(
        self, n: int, priorities: list[float] | None = None, present: list[bool] | None = None
    ) -> None:
        """Append the ``n`` rows of one call."""
        new_weight = self.new_weight
        for i in range(n):
            if present is not None and not present[i]:
                self.history.append(WeightedRow(0.0, absent=True))
            elif priorities is None:
                self.history.append(WeightedRow(new_weight, absent=False))
            else:
                self.history.append(WeightedRow(self.weigh(priorities[i]), absent=False))
                self.greatest = max(self.greatest, priorities[i])

    def delete(self, rows: list[int]) -> None:
        """Hide rows, by their place in ``history``."""
        for row in rows:
            self.history[row].absent = True

    def clear(self) -> None:
        self.history = []
        self.greatest = 1.0

    def row_of_index(self, slot: int) -> WeightedRow:
        """The row in a slot; ``IndexError`` if it holds no step."""
        if slot not in self.steps():
            raise IndexError(slot)
        return self.steps()[slot]

    def update_slots(self, slots: list[int], priorities: list[float]) -> None:
        """Set the priorities of slots, unless new rows came there since the last draw."""
        rows = [self.row_of_index(slot) for slot in slots]
        drawn_before = any(row.older_than_a_draw for row in self.history)
        for row, priority in zip(rows, priorities, strict=True):
            if not self.check_for_update or row.older_than_a_draw or not drawn_before:
                self._set(row, priority)

    def update_rows(self, rows: list[WeightedRow], priorities: list[float]) -> None:
        """Set the priorities of those rows that are still there."""
        living = list(self.slots().values())
        for row, priority in zip(rows, priorities, strict=True):
            if any(row is other for other in living) and not row.absent:
                self._set(row, priority)

    def _set(self, row: WeightedRow, priority: float) -> None:
        row.weight = self.weigh(priority)
        self.greatest = max(self.greatest, priority)

    # ---- reading -------------------------------------------------------------------------

    def slots(self) -> dict[int, WeightedRow]:
        """The living rows by slot, absent ones included."""
        first = max(0, len(self.history) - self.capacity)
        return {i % self.capacity: self.history[i] for i in range(first, len(self.history))}

    def steps(self) -> dict[int, WeightedRow]:
        """The living rows that hold a step, by slot."""
        return {slot: row for slot, row in self.slots().items() if not row.absent}

    @property
    def weights(self) -> Floats:
        """The weight of each slot; 0 where there is no step."""
        weights = np.zeros(self.capacity)
        for slot, row in self.steps().items():
            weights[slot] = row.weight
        return weights

    @property
    def new_weight(self) -> float:
        """What the next row weighs."""
        return self.weigh(self.greatest)

    @property
    def least(self) -> float:
        """The least weight that is not 0."""
        return float(min(self.weights[self.weights > 0], default=np.inf))

    # ---- drawing -------------------------------------------------------------------------

    def draw(
        self, n: int, rng: np.random.Generator, *, replace: bool, stratified: bool
    ) -> list[int]:
        """The slots that hold the targets in the running sum of the weights."""
        if not self.steps() or not self.weights.any():
            raise NotEnoughDataError("nothing to draw")
        if replace:
            targets = rng.random(n)
            targets = (np.arange(n) + targets) / n if stratified and n else targets
            running = np.cumsum(self.weights)
            slots: list[int] = np.searchsorted(running, targets * running[-1], "right").tolist()
        else:
            if n > np.count_nonzero(self.weights):
                raise NotEnoughDataError("not enough rows")
            tree = ReferenceTree(self.capacity)
            tree.weights[:] = self.weights
            slots = tree.draw_distinct(n, rng)
        for row in self.history:
            row.older_than_a_draw = True
        self.draws += 1
        return slots

    def importance(self, slots: list[int], beta: float, among: str = "all") -> Floats:
        """The weights of a batch, by the formula of the paper."""
        total = self.weights.sum()
        p = self.weights[slots] / total
        least = self.least / total if among == "all" else p.min(initial=np.inf)
        return np.asarray((p / least) ** -beta, np.float64)
