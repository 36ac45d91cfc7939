"""Draws over several rings: first a ring by its mass, then a row within the ring.

The mass of a ring is its total weight, or its number of rows. A number names each row of all rings:
see ``Rings``. The first draw gives the count of rows from each ring, and their places in the batch.
Each ring then draws its rows for these places. So a batch has the distribution of one buffer with
all rows. Not here: the rows of one ring (``samplers``), and reading them (``_learner``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cpprb_like._arguments.arrays import Floats
from cpprb_like._core import Ring
from cpprb_like.buffers._entry import SampleOptions
from cpprb_like.errors import DamagedError, NotEnoughDataError
from cpprb_like.processes._followers import Followers
from cpprb_like.samplers._base import Extra, Sampler, Slots
from cpprb_like.samplers._prioritized import ByPriority, Prioritized
from cpprb_like.samplers._rank_based import RankBased
from cpprb_like.samplers._row_weights import (
    RowWeights,
    draw_together,
    sync_together,
    update_together,
)
from cpprb_like.samplers._starts import Starts
from cpprb_like.samplers._uniform import Uniform
from cpprb_like.samplers._uniform_draws import draw_uniform

__all__ = ["Draws", "Order", "RowNumbers", "StartsTogether", "check_sampler", "draw_rows"]

RowNumbers = NDArray[np.intp]
Rng = np.random.Generator
Drawn = tuple[RowNumbers, Extra]  # and further columns of a batch
Order = tuple[int, Callable[[int], Slots]]  # rows of an epoch, and what gives so many of them

LARGEST = 2.0**1000  # a weight, as long as there is no ring
MOST_ROWS = 1_000_000_000  # from here on ``Generator.multivariate_hypergeometric`` refuses


def draw_rows(
    group: Followers,
    counts: list[int],
    draw: Callable[[int, int], Slots],
    n: int,
    rng: Rng,
    *,
    replace: bool,
) -> RowNumbers:
    """Draw n rows, of which each ring has so many, with the same probability for each.

    ``draw(number, k)`` draws k slots of one ring, different ones without ``replace``. Then there
    are n rows, and they come in random order.
    """
    if replace:
        return group.draw_each(counts, draw, n, rng)
    total = sum(counts)
    if total < MOST_ROWS:
        taken = rng.multivariate_hypergeometric(counts, n)
    else:
        numbers = np.cumsum(counts).searchsorted(rng.choice(total, n, replace=False), "right")
        taken = np.bincount(numbers, minlength=len(counts))
    found = [group.name(number, draw(number, k)) for number, k in enumerate(taken.tolist()) if k]
    return rng.permutation(np.concatenate([np.empty(0, np.intp), *found]))


class _Members(dict[int, Starts]):
    """The starts of each ring by its number: found when they are first asked for."""

    def __init__(self, find: Callable[[int], Starts]) -> None:
        self._find = find

    def __missing__(self, number: int) -> Starts:
        self[number] = found = self._find(number)
        return found


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
        ``of(number)`` gives the same, which were found once.
    """

    def __init__(self, ring: Followers, find: Callable[[int], Starts]) -> None:
        self.ring = ring
        self.of = _Members(find).__getitem__

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
        found = np.full(len(rows), -1, np.int8)
        usable = dict(self.ring.usable_rings)
        for number, places, slots in self.ring.split(rows):
            if number in usable:
                found[places] = self.of(number).tell(slots)
        return found

    def slots(self) -> RowNumbers:
        """All of them: see ``Starts.slots``."""
        found = [
            self.ring.name(number, self.of(number).slots())
            for number, count in enumerate(self._counts())
            if count
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
        counts = self._counts()
        if n > sum(counts):
            self.refuse(n)

        def draw(number: int, k: int) -> Slots:
            return self.of(number).draw_distinct(k, rng)

        return draw_rows(self.ring, counts, draw, n, rng, replace=False)

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

    def put(self, number: int, weights: RowWeights) -> None:
        """Have the weights of the ring of this number, too."""
        self.members[number] = weights
        self.largest = min(self.largest, weights.largest / self.ring.width)

    def sync(self) -> None:
        """Bring the trees up to date: new rows get the greatest weight of all rings."""
        sync_together(list(self.members.values()))

    def _parts(self, *, rank: bool = False) -> list[tuple[int, RowWeights, float]]:
        """The rings that have rows of a weight: number, weights, and mass of a row of weight 1.

        Ranks that are due are sorted first if ``rank``, as weights are those of ranks then.
        """
        self.sync()
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
        self.sync()
        return max((one.largest_priority for one in self.members.values()), default=1.0)

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
        self.sync()
        late = update_together(self.members, self.ring.bits, indexes, priorities, weights)
        self.given += len(indexes)
        self.late += late


class Draws:
    """Draws rows of all shards as a sampler says.

    Parameters
    ----------
    sampler : Sampler
        That of the learner; see ``check_sampler``.
    group : Followers
        The shards.

    Attributes
    ----------
    is_uniform : bool
        Whether ``Followers.draw_uniform`` is tried first.
    """

    def __init__(self, sampler: Sampler, group: Followers) -> None:
        self.sampler = sampler
        self.group = group
        self.is_uniform = type(sampler) is Uniform
        self._saved: dict[int, Any] = {}
        self._weights: WeightsTogether | None = None
        if isinstance(sampler, ByPriority):
            self._weights = WeightsTogether(group, sampler.BY_ROWS)
            sampler.open_together(self._weights)

    def opened(self, number: int, ring: Ring) -> None:
        """Draw from a further shard."""
        if self._weights is not None:
            self._weights.put(number, self.priorities.weights_of(ring))

    def choose(
        self, starts: StartsTogether | None, n: int, rng: Rng, options: SampleOptions
    ) -> Drawn:
        """Draw rows: any, or only ``starts``."""
        if starts is not None:
            return self.sampler.draw_starts(cast("Any", starts), n, rng, **options.of_sampler)
        if self._weights is not None:
            return self.priorities.draw(cast("Ring", self.group), n, rng, **options.of_sampler)
        rows = self.group.draw_uniform(n, rng, options.replace)
        if rows is None:
            rings = dict(self.group.usable_rings)

            def draw(number: int, k: int) -> Slots:
                return draw_uniform(rings[number], k, rng, options.replace)

            counts = [len(rings.get(number, ())) for number in range(self.group.width)]
            rows = draw_rows(self.group, counts, draw, n, rng, replace=options.replace)
        return rows, {}

    def check(self, n: int, options: SampleOptions) -> None:
        """Raise what a draw would raise, as far as that is known."""
        if self._weights is not None:
            self.priorities.check_draw(n, **options.of_sampler)

    # ------------------------------------------------------------------ priorities

    @property
    def priorities(self) -> ByPriority:
        """The sampler, which has priorities."""
        return cast("ByPriority", self.sampler)

    def update(self, indexes: ArrayLike, priorities: ArrayLike) -> None:
        """Set the priorities of rows."""
        self.priorities.update_priorities(indexes, priorities)

    def wrong(
        self, indexes: NDArray[np.int64], priorities: NDArray[np.float64]
    ) -> NDArray[np.intp]:
        """Positions of the indexes that ``update`` would refuse; raise for the priorities."""
        self.priorities.read_priorities(priorities)
        return self.group.without_row(np.ascontiguousarray(indexes))

    @property
    def updated(self) -> tuple[int, int]:
        """How many priorities were given, and how many of them came after their row was gone."""
        assert self._weights is not None
        return self._weights.given, self._weights.late

    # ------------------------------------------------------------------ state

    def save(self) -> dict[int, Any]:
        """The priorities of the rows of each shard, by number: the argument of ``go_on``."""
        if self._weights is None:
            return {}
        self._weights.sync()
        return {number: one.save() for number, one in self._weights.members.items()}

    def go_on(self, saved: Mapping[int, Any]) -> None:
        """Go on with priorities that were saved; called before the first shard is opened."""
        self._saved = dict(saved)

    def resume(self, number: int) -> None:
        """Take the saved priorities of a shard whose rows were followed for the first time."""
        if number in self._saved and self._weights is not None:
            try:
                self._weights.members[number].restore(self._saved[number], later=True)
            except (AttributeError, LookupError, TypeError) as error:
                raise DamagedError(f"priorities of shard {number}: {error!r}") from error
            del self._saved[number]  # last: after an interrupt the next call resumes once more


def check_sampler(sampler: Sampler) -> None:
    """Raise ``TypeError`` unless rows of several processes can be drawn by this sampler.

    Ages and orders mean nothing there, and neither does a class that this module does not know.
    """
    if type(sampler) not in (Uniform, Prioritized, RankBased):
        raise TypeError(
            "sampler: a SharedReplay draws with Uniform, Prioritized or RankBased, and with no "
            f"subclass of these; got {sampler!r}"
        )
