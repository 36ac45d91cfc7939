"""Draws of a learner from the rows of all its shards, by one sampler.

Not here: which rows of several rings are drawn (``_together``, ``samplers``), and reading them
(``_learner``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cpprb_like._core import Ring
from cpprb_like.buffers._entry import SampleOptions
from cpprb_like.errors import DamagedError
from cpprb_like.processes._followers import Followers
from cpprb_like.processes._together import StartsTogether, WeightsTogether, draw_uniform_together
from cpprb_like.samplers._base import Extra, Sampler, Slots
from cpprb_like.samplers._prioritized import ByPriority, Prioritized
from cpprb_like.samplers._rank_based import RankBased
from cpprb_like.samplers._uniform import Uniform

__all__ = ["DrawRows", "Draws", "Order", "RowNumbers", "check_sampler"]

RowNumbers = NDArray[np.intp]
Rng = np.random.Generator
Drawn = tuple[RowNumbers, Extra]  # and further columns of a batch
Order = tuple[int, Callable[[int], Slots]]  # rows of an epoch, and what gives so many of them
DrawRows = Callable[[Rng, SampleOptions, int], Drawn]


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
    changes : bool
        Whether a draw changes anything but the generator: see ``states``.
    """

    def __init__(self, sampler: Sampler, group: Followers) -> None:
        self.sampler = sampler
        self.group = group
        self._by_weight = sampler if isinstance(sampler, ByPriority) else None
        self._saved: dict[int, Any] = {}
        if self._by_weight is not None:
            self._weights = WeightsTogether(group, self._by_weight.BY_ROWS)
            self._by_weight.open_together(self._weights)
        self.changes = self._by_weight is not None

    def opened(self, number: int, ring: Ring) -> None:
        """Draw from a further shard."""
        if self._by_weight is not None:
            self._weights.put(number, self._by_weight.weights_of(ring))

    def among(self, starts: StartsTogether | None = None) -> DrawRows:
        """The function that draws rows: any, or only ``starts``."""
        if starts is not None:
            return partial(self._draw_starts, starts)
        if self._by_weight is not None:
            return self._draw
        return partial(draw_uniform_together, self.group)  # without a Python frame

    def _draw(self, rng: Rng, options: SampleOptions, n: int) -> Drawn:
        assert self._by_weight is not None
        return self._by_weight.draw(cast("Ring", self.group), n, rng, **options.of_sampler)

    def _draw_starts(
        self, starts: StartsTogether, rng: Rng, options: SampleOptions, n: int
    ) -> Drawn:
        return self.sampler.draw_starts(cast("Any", starts), n, rng, **options.of_sampler)

    def check(self, n: int, options: SampleOptions) -> None:
        """Raise what a draw would raise, as far as that is known."""
        if self._by_weight is not None:
            self._by_weight.check_draw(n, **options.of_sampler)

    # ------------------------------------------------------------------ priorities

    @property
    def priorities(self) -> ByPriority:
        """The sampler, which has priorities; ``TypeError`` if it has none."""
        if self._by_weight is None:
            raise TypeError("there are no priorities")
        return self._by_weight

    def update(self, indexes: ArrayLike, priorities: ArrayLike) -> None:
        """Set the priorities of rows."""
        (self._by_weight or self.priorities).update_priorities(indexes, priorities)

    def wrong(
        self, indexes: NDArray[np.int64], priorities: NDArray[np.float64]
    ) -> NDArray[np.intp]:
        """Positions of the indexes that ``update`` would refuse; raise for the priorities."""
        self.priorities.read_priorities(priorities)
        return self._weights.without_row(np.ascontiguousarray(indexes))

    @property
    def updated(self) -> tuple[int, int]:
        """How many priorities were given, and how many of them came after their row was gone."""
        return self._weights.given, self._weights.late

    # ------------------------------------------------------------------ state

    def noted(self) -> dict[str, Any]:
        """State of the sampler before a draw: the argument of ``put_back``."""
        return self.sampler.draw_state()

    def put_back(self, noted: dict[str, Any]) -> None:
        """Forget a draw whose rows could not be read. Its random numbers stay used."""
        vars(self.sampler).update(noted)

    def save(self) -> dict[int, Any]:
        """The priorities of the rows of each shard, by number: the argument of ``go_on``."""
        if self._by_weight is None:
            return {}
        found = enumerate(self._weights.save_rings())
        return {number: one for number, one in found if one is not None}

    def go_on(self, saved: Mapping[int, Any]) -> None:
        """Go on with priorities that were saved; called before the first shard is opened."""
        self._saved = dict(saved)

    def resume(self, number: int) -> None:
        """Take the saved priorities of a shard whose rows were followed for the first time."""
        if number in self._saved:
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
