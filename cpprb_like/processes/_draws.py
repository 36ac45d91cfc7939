"""Weights and starts over several rings, with the methods of those of one ring.

A ring is drawn first, by its mass; then a row within the ring. The mass of a ring is its total
weight, or its number of rows. A number names each row of all rings: see ``Rings``. So a batch has
the distribution of one buffer with all rows. Not here: the rows of one ring (``samplers``), and the
counts of rows by ring (``Followers.draw_each``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Floats
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.processes._followers import Followers
from cpprb_like.samplers._base import Sampler
from cpprb_like.samplers._prioritized import Prioritized
from cpprb_like.samplers._rank_based import RankBased
from cpprb_like.samplers._row_weights import (
    RowWeights,
    draw_together,
    sync_together,
    update_together,
)
from cpprb_like.samplers._starts import Starts, distinct_of
from cpprb_like.samplers._uniform import Uniform

__all__ = ["RowNumbers", "StartsTogether", "WeightsTogether", "check_sampler"]

RowNumbers = NDArray[np.intp]
Rng = np.random.Generator

LARGEST = 2.0**1000  # a weight, as long as there is no ring


class StartsTogether:
    """The rows of several rings at which the items of a view can start: see ``Starts``.

    Parameters
    ----------
    ring : Followers
        The rings.
    find : callable
        ``find(number)`` gives the ``Starts`` of a ring that is there.

    Attributes
    ----------
    of : callable
        ``of(number)`` gives the same ``Starts`` at each call.
    """

    def __init__(self, ring: Followers, find: Callable[[int], Starts]) -> None:
        self.ring = ring
        self.of = cache(find)

    def _counts(self) -> list[int]:
        """The starts of each ring; none of one that is not usable."""
        counts = [0] * self.ring.width
        for number, _ in self.ring.usable_rings:
            counts[number] = self.of(number).count
        return counts

    @property
    def count(self) -> int:
        """How many starts there are."""
        return sum(self._counts())

    def tell(self, rows: RowNumbers) -> NDArray[np.int8]:
        """See ``Starts.tell``."""
        found = np.empty(len(rows), np.int8)
        for number, places, slots in self.ring.split(rows):
            found[places] = self.of(number).tell(slots)
        return found

    def slots(self) -> RowNumbers:
        """All of them: see ``Starts.slots``."""
        found = [
            self.ring.name(number, self.of(number).slots()) for number, _ in self.ring.usable_rings
        ]
        return np.concatenate([np.empty(0, np.intp), *found])

    def draw(self, n: int, rng: Rng) -> RowNumbers:
        """Draw n of them, each with the same probability: see ``Starts.draw``."""
        counts = self._counts()
        if not any(counts):
            self.refuse()
        return self.ring.draw_each(counts, lambda number, k: self.of(number).draw(k, rng), n, rng)

    def draw_distinct(self, n: int, rng: Rng) -> RowNumbers:
        """As ``draw``, n different ones: see ``Starts.draw_distinct``."""
        return distinct_of(self, n, rng)

    def refuse(self, distinct: int | None = None) -> None:
        """Raise ``NotEnoughDataError``: see ``Starts.refuse``."""
        numbers = [number for number, _ in self.ring.usable_rings]
        for number in numbers:
            if distinct is None or len(numbers) == 1:
                self.of(number).refuse(distinct)
        wanted = "" if distinct is None else f" {distinct} distinct rows"
        raise NotEnoughDataError(
            f"cannot sample{wanted}: of {len(self.ring)} rows {self.count} can be drawn"
        )


class WeightsTogether:
    """The weights of the rows of several rings: what ``RowWeights`` is for one.

    New rows get the greatest weight of all rings. ``indexes`` are handles.

    Parameters
    ----------
    ring : Followers
        The rings.
    by_rows : bool
        Whether the mass of a ring is the number of its rows and not the sum of their weights: for
        weights that say nothing outside of their ring, such as those of ranks.

    Attributes
    ----------
    members : dict of RowWeights
        The weights of each ring that is there; see ``put``.
    largest : float
        The greatest weight that a row may have.
    given, late : int
        Priorities that ``update`` was given, and how many of them were of rows that were gone.
    """

    def __init__(self, ring: Followers, by_rows: bool) -> None:
        self.ring = ring
        self.by_rows = by_rows
        self.members: dict[int, RowWeights] = {}
        self.largest = LARGEST
        self.given = self.late = 0
        self._floor = 0.0, 0.0  # that new rows get at least: a priority, and its weight

    def put(self, number: int, weights: RowWeights) -> None:
        """Have the weights of the ring of this number, too."""
        self.members[number] = weights
        self.largest = min(self.largest, weights.largest / self.ring.width)

    def raise_largest(self, priority: float, weight: float) -> None:
        """Have new rows get this priority, of this weight, if it is the greatest of all."""
        if priority > self._floor[0]:
            self._floor = priority, weight
            self._sync()

    def _sync(self) -> None:
        sync_together(list(self.members.values()), *self._floor)

    def _parts(self, *, rank: bool = False) -> list[tuple[int, RowWeights, float]]:
        """The rings that have rows of a weight: number, weights, and mass of a row of weight 1.

        Ranks that are due are sorted first if ``rank``, as weights are those of ranks then.
        """
        self._sync()
        found = []
        for number, ring in self.ring.usable_rings:
            one = self.members[number]
            if rank:
                one.rank()
            if (total := one.total) > 0.0:
                found.append((number, one, len(ring) / total if self.by_rows else 1.0))
        return found

    @property
    def largest_priority(self) -> float:
        """The greatest priority that any row was given, 1.0 at first."""
        self._sync()
        found = (one.largest_priority for one in self.members.values())
        return max(found, default=max(1.0, self._floor[0]))

    @property
    def total(self) -> float:
        """The sum of all masses."""
        return sum(one.total * scale for _, one, scale in self._parts())

    @property
    def least(self) -> float:
        """The least mass of a row, above 0; infinity if there is none."""
        return min((one.least * scale for _, one, scale in self._parts()), default=math.inf)

    def draw(
        self,
        n: int,
        rng: Rng,
        replace: bool,
        stratified: bool,
        as_handles: bool,  # noqa: ARG002 (they are)
        without: RowNumbers | None = None,
    ) -> tuple[RowNumbers, NDArray[np.int64], Floats, float, float]:
        """Draw n rows; see ``RowWeights.draw``, whose slots are numbers of rows here."""
        if replace:
            parts = self._parts(rank=self.by_rows)
            rows, masses, least, total = draw_together(parts, self.ring.bits, n, rng, stratified)
        else:
            rows, masses = self._draw_distinct(n, rng, without)
            least, total = self.least, self.total
        return rows, self.ring.handles(rows), masses, least, total

    def _draw_distinct(
        self, n: int, rng: Rng, without: RowNumbers | None
    ) -> tuple[RowNumbers, Floats]:
        """Distinct rows, one after another, each by its mass among those that are left.

        Each ring draws so by itself, as a process in time: one row comes after another at the rate
        of the mass that is left. So the first n of all rings come in the order, and with the
        probabilities, of draws from all.
        """
        passed = {} if without is None else {own[0]: own[2] for own in self.ring.split(without)}
        wanted = n + sum(map(len, passed.values()))
        found = self.count(wanted) - wanted + n
        if found < n or not self._parts():
            raise NotEnoughDataError(
                f"cannot draw {n} distinct rows: {found} have a weight above zero"
            )
        drawn, masses, times = [np.empty(0, np.intp)], [np.empty(0)], [np.empty(0)]
        for number, one, scale in self._parts(rank=self.by_rows and wanted > 0):
            own = passed.get(number)
            skipped = 0 if own is None else len(own)
            count = one.count(skipped + n) - skipped
            slots, _, weights, _, _ = one.draw(count, rng, False, False, True, own)
            total = one.total - (0.0 if own is None else float(one.get(own).sum()))
            left = np.maximum(total - weights.cumsum() + weights, weights)
            drawn.append(self.ring.name(number, slots))
            masses.append(weights * scale)
            times.append((rng.exponential(size=count) / (left * scale)).cumsum())
        order = np.argsort(np.concatenate(times), kind="stable")[:n]
        return np.concatenate(drawn)[order], np.concatenate(masses)[order]

    def check_draw(self, n: int, replace: bool) -> None:
        """Raise what ``draw`` would raise, without a draw."""
        if replace and not self._parts():
            raise NotEnoughDataError("cannot draw: there are no rows, or all weights are zero")
        if not replace and self.count(n) < n:
            raise NotEnoughDataError(f"cannot draw {n} distinct rows: there are {self.count(n)}")

    def count(self, n: int) -> int:
        """How many rows have a weight, but no more than n of them."""
        return min(n, sum(one.count(n) for _, one, _ in self._parts()))

    def get(self, rows: RowNumbers) -> Floats:
        """The masses of rows."""
        parts = {number: (one, scale) for number, one, scale in self._parts()}
        found = np.zeros(len(rows))
        for number, places, slots in self.ring.split(rows):
            if number in parts:
                one, scale = parts[number]
                found[places] = one.get(slots) * scale
        return found

    def indexes(self, rows: RowNumbers, as_handles: bool) -> NDArray[np.int64]:  # noqa: ARG002
        """What names these rows for ``update``."""
        return self.ring.handles(rows)

    def save(self) -> None:
        """Nothing: a copy of a sampler of several rings starts without priorities."""

    def save_each(self) -> dict[int, Any]:
        """The weights of each ring, by number."""
        self._sync()
        return {number: one.save() for number, one in self.members.items()}

    def update(
        self,
        indexes: NDArray[np.int64],
        priorities: Floats,
        weights: Floats,
        as_handles: bool,  # noqa: ARG002 (they are)
    ) -> None:
        """Set the weights of rows: of duplicates the last wins. Rows that are gone are skipped.

        Raises ``IndexError``, and nothing has changed, if an index names no row and never did.
        """
        late = update_together(self.members, self.ring.bits, indexes, priorities, weights)
        self.given += len(indexes)
        self.late += late


def check_sampler(sampler: Sampler) -> None:
    """Raise ``TypeError`` unless rows of several processes can be drawn by this sampler.

    Ages and orders mean nothing there, and neither does a class that this module does not know.
    """
    if type(sampler) not in (Uniform, Prioritized, RankBased):
        raise TypeError(
            "sampler: a SharedReplay draws with Uniform, Prioritized or RankBased, and with no "
            f"subclass of these; got {sampler!r}"
        )
