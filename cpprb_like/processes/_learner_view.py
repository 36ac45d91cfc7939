"""``LearnerView``: the rows of a learner's shards, read by layers.

Each shard has a view of its own, as a buffer would have; which rows are read is drawn from all. Not
here: what layers do (``views``, ``buffers._view``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._machine.drawn_ahead import States
from cpprb_like.buffers._source import Batch, ColumnSpec
from cpprb_like.buffers._view import View
from cpprb_like.processes._draws import RowNumbers
from cpprb_like.processes._sharded import Names, Sharded
from cpprb_like.processes._shards import Reader
from cpprb_like.samplers._base import Extra, Slots
from cpprb_like.samplers._starts import Starts
from cpprb_like.schedules import Schedule
from cpprb_like.views._layer import Layer

if TYPE_CHECKING:
    from cpprb_like.processes._learner import Learner

__all__ = ["LearnerView"]

FEW_STEPS = 4096  # of each environment, in a view that stands for those of shards


class LearnerView(Sharded):
    """The rows of all shards, read in another way: ``Learner.view``.

    Attributes
    ----------
    learner : Learner
        Whose rows these are.
    layers : tuple of Layer
        What is done with drawn rows.
    draws : int
        Batches drawn so far: the time of a schedule of a layer.
    """

    def __init__(self, learner: Learner, layers: Iterable[Layer]) -> None:
        self.learner = learner
        self.layers = tuple(layers)
        self.draws = 0
        self._views: dict[int, View] = {}
        size, n_envs = learner._options["size"], learner._options["n_envs"]
        few = min(size, FEW_STEPS * n_envs)
        try:
            self._model_view = View(learner._model_of(few), self.layers)
        except ValueError:
            if few == size:
                raise
            self._model_view = View(learner._model_of(size), self.layers)  # long sequences

    @property
    def _learner(self) -> Learner:
        return self.learner

    def _view(self, number: int) -> View:
        """The view of a shard that is there."""
        if number not in self._views:
            self._views[number] = View(self.learner._reader(number), self.layers)
        return self._views[number]

    def _draw_rows(
        self, replace: bool, beta: float | Schedule | None, n: int
    ) -> tuple[RowNumbers, Extra]:
        learner = self.learner
        return learner._draws.draw(learner.rng, replace, beta, n, self._starts())

    def _draw(
        self,
        replace: bool,
        beta: float | Schedule | None,
        n: int,
        names: Names,
        arrays: Batch | None,
        indexes: bool,
    ) -> Batch:
        return self.learner._allow(n, super()._draw, replace, beta, n, names, arrays, indexes)

    def _starts(self) -> Mapping[int, Starts] | None:
        """The rows of each shard that an item can start at, where that is not every one."""
        if self._model_view._now.starts is None:
            return None
        found = {}
        for number, ring in self.learner._group.usable_rings:
            starts = self._view(number)._now.starts
            if len(ring) and starts is not None:
                found[number] = starts
        return found

    def _read_part(
        self, number: int, reader: Reader, slots: Slots, names: Names, located: bool
    ) -> Batch | None:
        view = self._view(number)
        view.draws = self.draws

        def read() -> Batch | None:
            return view.read_at(slots, names, located=located)

        starts = view._now.starts
        batch = reader.attempt(slots, read)
        if batch is None or starts is None or starts.before == 0:
            return batch
        return batch if reader.has_before(starts, slots) else None

    def _epoch_of(
        self, number: int, reader: Reader, rng: np.random.Generator | None
    ) -> tuple[int, Callable[[int], Slots]]:
        now = self._view(number)._now
        size = len(reader.ring) if now.starts is None else now.starts.count
        return size, now.epoch(rng)

    def _there(self, number: int, slots: Slots) -> NDArray[np.bool_]:
        return np.isin(slots, self._view(number)._now.drawable(slots))

    def _count(self) -> None:
        self.draws += 1

    def _can_draw(self) -> bool:
        with self.learner._lock:
            found = len(self)
            starts = self._starts()
            return found > 0 and (starts is None or any(one.count for one in starts.values()))

    def _read_batch_size(
        self, batch_size: int, fields: str | Iterable[str] | None = None
    ) -> tuple[int, Names]:
        return self._model_view._read_batch_size(batch_size, fields)

    def _draw_states(self) -> States:
        yield self, {"draws": self.draws}
        yield from self.learner._draw_states()

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields."""
        return self.learner.fields

    def _field_specs(self, names: Names) -> dict[str, ColumnSpec]:
        return self._model_view._field_specs(names)

    def _further_specs(self) -> dict[str, ColumnSpec]:
        return {**self._model_view._further_specs(), **self.learner.sampler.columns}

    def __repr__(self) -> str:
        layers = ", ".join(map(repr, self.layers))
        return f"LearnerView({self.learner!r}, {layers})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a view of a learner belongs to its process; hand on the SharedReplay")
