"""How a learner's draws are divided among shards: by rows, or by weight.

Not here: which rows a sampler draws (``samplers``), and reading them (``_learner``).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cpprb_like._core import Ring
from cpprb_like._machine.drawn_ahead import States, state_before
from cpprb_like.processes._followers import Followers
from cpprb_like.processes._starts_together import StartsTogether
from cpprb_like.processes._together import WeightsTogether, draw_uniform_together
from cpprb_like.samplers._base import Extra, Sampler
from cpprb_like.samplers._prioritized import ByPriority, Prioritized
from cpprb_like.samplers._rank_based import RankBased
from cpprb_like.samplers._starts import Starts
from cpprb_like.samplers._uniform import Uniform
from cpprb_like.schedules import Schedule

__all__ = ["DrawRows", "Draws", "RowNumbers", "check_sampler", "copied", "draws_of"]

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

    def opened(self, number: int, ring: Ring) -> None:
        """A shard has come."""

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
        self._weights = WeightsTogether(group, sampler.BY_ROWS)
        sampler.open_together(self._weights)
        self._saved: dict[int, Any] = {}

    def opened(self, number: int, ring: Ring) -> None:
        """See ``Draws.opened``: its rows get weights."""
        self._weights.put(number, self.sampler.weights_of(ring))

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
        if number in self._saved:
            self._weights.weights_of(number).resume(self._saved[number])
            del self._saved[number]  # last: after an interrupt the next call resumes once more


def copied(sampler: Sampler) -> Sampler:
    """A copy of a sampler, as it was before batches that were drawn ahead."""
    found = copy.deepcopy(sampler)
    vars(found).update(state_before(sampler) or {})
    return found


def check_sampler(sampler: Sampler) -> None:
    """Raise ``TypeError`` unless rows of several processes can be drawn by this sampler.

    Ages and orders mean nothing there, and neither does a class that this module does not know.
    """
    if type(sampler) not in (Uniform, Prioritized, RankBased):
        raise TypeError(
            "sampler: a SharedReplay draws with Uniform, Prioritized or RankBased, and with no "
            f"subclass of these; got {sampler!r}"
        )


def draws_of(sampler: Sampler, group: Followers) -> Draws:
    """How the rows of all shards are drawn by a sampler, which was checked."""
    if isinstance(sampler, ByPriority):
        return WeightedDraws(sampler, group)
    return UniformDraws(sampler, group)
