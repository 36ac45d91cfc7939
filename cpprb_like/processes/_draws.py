"""Draws from the rows of several rings as from one: a ring by its mass, and its rows by itself.

A ring is a part, and a row is called by its number: see ``Rings``. Each ring that is drawn gives as
many rows as it was drawn, and these are put in the places of these draws. So a batch has the
distribution of one buffer with all rows. Not here: the rows of one ring (``samplers``), and reading
them (``_learner``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cpprb_like._core import Ring
from cpprb_like.buffers._entry import SampleOptions
from cpprb_like.errors import DamagedError, NotEnoughDataError
from cpprb_like.processes._followers import Followers
from cpprb_like.processes._together import WeightsTogether
from cpprb_like.samplers._base import Extra, Sampler, Slots
from cpprb_like.samplers._prioritized import ByPriority, Prioritized
from cpprb_like.samplers._rank_based import RankBased
from cpprb_like.samplers._starts import Starts
from cpprb_like.samplers._uniform import Uniform
from cpprb_like.samplers._uniform_draws import draw_uniform

__all__ = ["Draws", "Order", "RowNumbers", "StartsTogether", "check_sampler", "draw_rows"]

RowNumbers = NDArray[np.intp]
Rng = np.random.Generator
Drawn = tuple[RowNumbers, Extra]  # and further columns of a batch
Order = tuple[int, Callable[[int], Slots]]  # rows of an epoch, and what gives so many of them

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


class StartsTogether:
    """The rows of several rings at which the items of a view can start: see ``Starts``.

    Parameters
    ----------
    ring : Followers
        The rings.
    find : callable
        ``find(number)`` gives the ``Starts`` of a ring that is there.
    """

    def __init__(self, ring: Followers, find: Callable[[int], Starts]) -> None:
        self.ring = ring
        self._find = find
        self._members: dict[int, Starts] = {}

    def of(self, number: int) -> Starts:
        """The starts of one ring."""
        if number not in self._members:
            self._members[number] = self._find(number)
        return self._members[number]

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
        return draw_rows(
            self.ring, counts, lambda number, k: self.of(number).draw(k, rng), n, rng, replace=True
        )

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
        found = enumerate(self._weights.save_rings())
        return {number: one for number, one in found if one is not None}

    def go_on(self, saved: Mapping[int, Any]) -> None:
        """Go on with priorities that were saved; called before the first shard is opened."""
        self._saved = dict(saved)

    def resume(self, number: int) -> None:
        """Take the saved priorities of a shard whose rows were followed for the first time."""
        if number in self._saved and self._weights is not None:
            try:
                self._weights.weights_of(number).restore(self._saved[number], later=True)
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
