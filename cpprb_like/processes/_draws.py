"""How a learner's draws are divided among shards: by rows, by weight, or by copies of a sampler.

Not here: which rows a sampler draws (``samplers``), and reading them (``_learner``).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, NoReturn, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cpprb_like._c.drawn_ahead import States, state_before
from cpprb_like._core import Ring
from cpprb_like._store.followers import Followers, places_by_label
from cpprb_like._store.row_handles import without_row
from cpprb_like.buffers._entry import check_drawn
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.samplers._base import Extra, Sampler, Slots
from cpprb_like.samplers._prioritized import (
    ByPriority,
    PrioritySampler,
    read_indexes,
    read_priorities,
)
from cpprb_like.samplers._starts import Starts
from cpprb_like.samplers._starts_together import StartsTogether, divided
from cpprb_like.samplers._together import draw_uniform_together
from cpprb_like.samplers._uniform import Uniform
from cpprb_like.schedules import Schedule

__all__ = ["DrawRows", "Draws", "RowNumbers", "copied", "draws_of"]

Beta = float | Schedule | None
RowNumbers = NDArray[np.intp]
Rng = np.random.Generator
Drawn = tuple[RowNumbers, Extra]  # and further columns of a batch
DrawRows = Callable[[Rng, bool, Beta, int], Drawn]
StartsOf = Mapping[int, Starts] | None  # of each ring, where not every row is one


class Draws:
    """Draws rows of all shards as a sampler says.

    Parameters
    ----------
    sampler : Sampler
        The one of the learner.
    group : Followers
        The shards.
    """

    changes: ClassVar[bool] = True
    """Whether a draw changes anything but the generator: see ``states``."""

    def __init__(self, sampler: Sampler, group: Followers) -> None:
        self.sampler = sampler
        self.group = group

    def sampler_of(self, number: int) -> Sampler:  # noqa: ARG002 (for subclasses)
        """A sampler for the reader of a shard."""
        return Uniform()

    def opened(self, number: int, ring: Ring) -> None:
        """A shard has come."""

    def hide(self, number: int, slots: Slots) -> None:
        """Rows of a shard, which had come, can be drawn no more."""

    def draw(self, rng: Rng, replace: bool, beta: Beta, n: int, starts: StartsOf = None) -> Drawn:
        """Draw n rows, or n of the ``starts``."""
        raise NotImplementedError

    def of_all_rows(self) -> DrawRows:
        """What draws rows, whatever starts there."""
        return self.draw

    def check(self, n: int, *, replace: bool, beta: Beta) -> None:
        """Raise what a draw would raise, as far as it is known."""

    def update(
        self,
        indexes: ArrayLike,  # noqa: ARG002
        priorities: ArrayLike,  # noqa: ARG002
    ) -> None:
        """Set the priorities of rows."""
        self._refuse()

    def wrong(
        self,
        indexes: NDArray[np.int64],  # noqa: ARG002
        priorities: NDArray[np.float64],  # noqa: ARG002
    ) -> NDArray[np.intp]:
        """Which of the indexes ``update`` would refuse; it raises for the priorities."""
        self._refuse()

    def get_max_priority(self) -> float:
        """The priority that new rows get."""
        self._refuse()

    @staticmethod
    def _refuse() -> NoReturn:
        raise TypeError("there are no priorities")

    @property
    def updated(self) -> tuple[int, int]:
        """How many priorities were given, and how many came too late: their row was gone."""
        return 0, 0

    def states(self) -> States:
        """What a draw changes."""
        state = self.sampler.draw_state()
        if state:
            yield self.sampler, state

    def noted(self) -> list[tuple[object, dict[str, Any]]]:
        """What the next draw changes: see ``put_back``."""
        return list(self.states())

    @staticmethod
    def put_back(noted: list[tuple[object, dict[str, Any]]]) -> None:
        """Forget a draw whose rows could not be read: it was none. Random numbers stay used."""
        for element, state in noted:
            vars(element).update(state)

    def save(self) -> dict[int, Any]:
        """What is kept for the rows of each shard, by number: what ``go_on`` takes."""
        return {}

    def go_on(self, saved: Mapping[int, Any]) -> None:
        """Go on where others over the same rows were saved; before a shard has come."""

    def resume(self, number: int) -> None:
        """The rows of a shard have been followed for the first time."""


class UniformDraws(Draws):
    """Each row with the same probability."""

    changes = False

    def draw(self, rng: Rng, replace: bool, beta: Beta, n: int, starts: StartsOf = None) -> Drawn:
        """See ``Draws.draw``."""
        if starts is None:
            return self.of_all_rows()(rng, replace, beta, n)
        among = StartsTogether(self.group, starts)
        return among.draw(n, rng) if replace else among.draw_distinct(n, rng), {}

    def of_all_rows(self) -> DrawRows:
        """See ``Draws.of_all_rows``: without a Python frame."""
        return partial(draw_uniform_together, self.group)


class WeightedDraws(Draws):
    """By weights of rows, which one sampler keeps for all shards."""

    sampler: ByPriority

    def __init__(self, sampler: ByPriority, group: Followers) -> None:
        super().__init__(sampler, group)
        self._weights = sampler.open_together(group)
        self._saved: dict[int, Any] = {}

    def opened(self, number: int, ring: Ring) -> None:
        """See ``Draws.opened``: its rows get weights."""
        self._weights.put(number, self.sampler.weights_of(ring))

    def hide(self, number: int, slots: Slots) -> None:
        """See ``Draws.hide``."""
        self._weights.sync()  # first, so that rows that came get the greatest weight of all shards
        self._weights.weights_of(number).take_out(slots)

    def draw(self, rng: Rng, replace: bool, beta: Beta, n: int, starts: StartsOf = None) -> Drawn:
        """See ``Draws.draw``."""
        if starts is None:
            return self.sampler.draw(self.group, n, rng, replace=replace, beta=beta)
        among = StartsTogether(self.group, starts)
        return self.sampler.draw_starts(among, n, rng, replace=replace, beta=beta)

    def check(self, n: int, *, replace: bool, beta: Beta) -> None:
        """See ``Draws.check``."""
        self.sampler.check_draw(n, replace=replace, beta=beta)

    def update(self, indexes: ArrayLike, priorities: ArrayLike) -> None:
        """See ``Draws.update``."""
        self.sampler.update_priorities(indexes, priorities)

    def wrong(
        self, indexes: NDArray[np.int64], priorities: NDArray[np.float64]
    ) -> NDArray[np.intp]:
        """See ``Draws.wrong``."""
        self.sampler.read_priorities(priorities)
        return self._weights.without_row(np.ascontiguousarray(indexes))

    def get_max_priority(self) -> float:
        """See ``Draws.get_max_priority``."""
        return self.sampler.get_max_priority()

    @property
    def updated(self) -> tuple[int, int]:
        """See ``Draws.updated``."""
        return self._weights.given, self._weights.late

    def save(self) -> dict[int, Any]:
        """See ``Draws.save``: priorities."""
        found = enumerate(self._weights.save_rings())
        return {number: one for number, one in found if one is not None}

    def go_on(self, saved: Mapping[int, Any]) -> None:
        """See ``Draws.go_on``."""
        self._saved = dict(saved)

    def resume(self, number: int) -> None:
        """See ``Draws.resume``."""
        saved = self._saved.pop(number, None)
        if saved is not None:
            self._weights.weights_of(number).resume(saved)


class CopiedDraws(Draws):
    """Shards by the number of their rows, and in each by a copy of the sampler."""

    def __init__(self, sampler: Sampler, group: Followers) -> None:
        super().__init__(sampler, group)
        self._copies: dict[int, Sampler] = {}
        self._rings: dict[int, Ring] = {}

    def sampler_of(self, number: int) -> Sampler:
        """See ``Draws.sampler_of``: a copy, which starts as the sampler was given."""
        if number not in self._copies:
            self._copies[number] = copy.deepcopy(self.sampler)
        return self._copies[number]

    def opened(self, number: int, ring: Ring) -> None:
        """See ``Draws.opened``: from now on its rows can have priorities."""
        self._rings[number] = ring

    def hide(self, number: int, slots: Slots) -> None:
        """See ``Draws.hide``."""
        ring = dict(self.group.usable_rings).get(number)
        if ring is not None:
            self._copies[number].forget(slots, ring.now())

    def draw(self, rng: Rng, replace: bool, beta: Beta, n: int, starts: StartsOf = None) -> Drawn:
        """See ``Draws.draw``."""
        rings = [(number, ring) for number, ring in self.group.usable_rings if len(ring)]
        sizes = np.array(
            [len(ring) if starts is None else starts[number].count for number, ring in rings],
            np.int64,
        )
        total = int(sizes.sum())
        if total == 0 or (not replace and n > total):
            wanted = "" if total == 0 else f" {n} distinct rows"
            raise NotEnoughDataError(f"cannot sample{wanted}: there are {total} that can be drawn")
        if replace:
            parts = np.searchsorted(sizes.cumsum(), rng.integers(total, size=n), side="right")
        else:
            parts = rng.permutation(np.repeat(np.arange(len(sizes)), divided(sizes, n, rng)))
        rows = np.empty(n, np.intp)
        extra: Extra = {}
        if n == 0:
            columns = self.sampler.columns
            extra = {name: np.empty((0, *one.shape), one.dtype) for name, one in columns.items()}
        time = self.sampler.time_state()
        for part, places in places_by_label(parts):
            number, ring = rings[part]
            sampler = self._copies[number]
            vars(sampler).update(time)
            draw = self._drawing(sampler, ring, beta, None if starts is None else starts[number])
            slots, further = draw(len(places), rng, replace=replace)
            check_drawn(sampler, slots, further, len(places), (), ())
            rows[places] = self.group.number(number, slots)
            for name, values in further.items():
                own = values << self.group.bits | number if name == "indexes" else values
                extra.setdefault(name, np.empty((n, *own.shape[1:]), own.dtype))[places] = own
            vars(self.sampler).update(sampler.time_state())
        return rows, extra

    @staticmethod
    def _drawing(
        sampler: Sampler, ring: Ring, beta: Beta, starts: Starts | None
    ) -> Callable[..., tuple[Slots, Extra]]:
        options: dict[str, Any] = {} if beta is None else {"beta": beta}
        if starts is None:
            return partial(sampler.draw, ring, **options)
        return partial(sampler.draw_starts, starts, **options)

    def states(self) -> States:
        """See ``Draws.states``: of all copies too."""
        for sampler in (self.sampler, *self._copies.values()):
            state = sampler.draw_state()
            if state:
                yield sampler, state

    def save(self) -> dict[int, Any]:
        """See ``Draws.save``: the copies."""
        return {number: copied(sampler) for number, sampler in self._copies.items()}

    def go_on(self, saved: Mapping[int, Any]) -> None:
        """See ``Draws.go_on``."""
        self._copies.update(saved)


class CopiedPriorityDraws(CopiedDraws):
    """The same, of a sampler with priorities: each copy has those of its shard."""

    sampler: PrioritySampler

    def update(self, indexes: ArrayLike, priorities: ArrayLike) -> None:
        """See ``Draws.update``: each in its shard, after all were checked."""
        values = read_priorities(priorities)
        given = read_indexes(indexes, len(values))
        wrong = self.wrong(given, values)
        if len(wrong):
            raise IndexError(f"indexes[{wrong[0]}]: no row has the index {given[wrong[0]]}")
        for sampler, ring, places, own in self._parts(given):
            there = np.full(len(own), True) if sampler.check_for_update else own < ring.stored
            if there.any():
                sampler.update_priorities(own[there], values[places[there]])

    def _parts(
        self, indexes: NDArray[np.int64]
    ) -> Iterator[tuple[PrioritySampler, Ring, NDArray[np.intp], NDArray[np.int64]]]:
        """Of each shard that is there: its sampler, its ring, and which indexes are its own."""
        for number, places, own in self.group.parts(indexes):
            if number in self._rings:
                sampler = cast("PrioritySampler", self._copies[number])
                yield sampler, self._rings[number], places, own

    def wrong(
        self, indexes: NDArray[np.int64], priorities: NDArray[np.float64]
    ) -> NDArray[np.intp]:
        """See ``Draws.wrong``."""
        self.sampler.read_priorities(priorities)
        is_wrong = np.full(len(indexes), True)
        for sampler, ring, places, own in self._parts(indexes):
            if ring.clears and not sampler.check_for_update:  # slots: of rows that were cleared
                is_wrong[places] = own >= ring.capacity
            else:
                is_wrong[places] = False
                is_wrong[places[without_row(ring, own, sampler.check_for_update)]] = True
        return np.flatnonzero(is_wrong)

    def get_max_priority(self) -> float:
        """See ``Draws.get_max_priority``: as its own sampler says, which has no rows."""
        return self.sampler.get_max_priority()


def copied(sampler: Sampler) -> Sampler:
    """A copy of a sampler, as it was before batches that were drawn ahead."""
    found = copy.deepcopy(sampler)
    vars(found).update(state_before(sampler) or {})
    return found


def draws_of(sampler: Sampler, group: Followers) -> Draws:
    """How the rows of all shards are drawn by a sampler.

    What is known of a sampler here is its class, and not a hook: docs/design.md says why.
    """
    if type(sampler) is Uniform:
        return UniformDraws(sampler, group)
    if isinstance(sampler, ByPriority):
        return WeightedDraws(sampler, group)
    if isinstance(sampler, PrioritySampler):
        return CopiedPriorityDraws(sampler, group)
    return CopiedDraws(sampler, group)
