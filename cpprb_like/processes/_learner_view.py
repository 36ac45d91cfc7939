"""``LearnerView``: the rows of a learner's shards, read by layers.

Each shard has a view of its own, as a buffer would have; which rows are read is drawn from all. Not
here: what layers do (``views``, ``buffers._view``), and batches (``_sharded``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._machine.aligned import empty
from cpprb_like.buffers._entry import SampleOptions
from cpprb_like.buffers._source import Batch
from cpprb_like.buffers._view import View
from cpprb_like.processes._draws import Drawn, RowNumbers
from cpprb_like.processes._sharded import Limits, Names, Sharded
from cpprb_like.processes._shards import Reader
from cpprb_like.processes._together import StartsTogether
from cpprb_like.samplers._base import Slots
from cpprb_like.views._layer import Layer
from cpprb_like.views._sequences import ROW_INDEXES

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

    learner: Sharded
    _model: View

    def __init__(
        self,
        learner: Sharded,
        model_of: Callable[[int], Any],
        layers: Iterable[Layer],
    ) -> None:
        super().__init__(learner._shards, learner.sampler, learner._counts)
        self.learner = learner
        self.layers = tuple(layers)
        self._parts: list[ShardView | None] = [None] * len(self._shards.paths)
        options = self._shards.options
        few = min(options.size, FEW_STEPS * options.n_envs)
        try:
            self._model = View(model_of(few), self.layers)
        except ValueError:
            if few == options.size:
                raise
            self._model = View(model_of(options.size), self.layers)  # long sequences
        if self._model._now.conditions:
            raise ValueError(
                f"view: expected layers without a condition such as Among, got {self.layers!r}: a "
                "learner draws from the rows of several processes; view the buffer of one"
            )
        for name in self._model._now.further.keys() & self.sampler.columns.keys():
            raise ValueError(f"view adds the column {name!r}: {self.sampler!r} gives this one")
        self._starts: StartsTogether | None = None
        if self._model._now.starts is not None:
            self._starts = StartsTogether(self._shards.group)
        self._draw_among = self._shards.draws.among(self._starts)

    # Methods, as an attribute would make a cycle of references, and memory be freed late.

    def _check_size(self, batch_size: int) -> int:
        return self._model._read_batch_size(batch_size)[0]

    def _choose(self, rng: np.random.Generator, options: SampleOptions, n: int) -> Drawn:
        self._open_parts()
        return self._draw_among(rng, options, n)

    def _open_parts(self) -> None:
        """Open the views of the shards that have come, and set the time of all."""
        for number, reader in enumerate(self._shards.readers):
            part = self._parts[number]
            if part is not None:
                part.own.draws = self.draws
            elif reader is not None:
                part = ShardView(self, number, reader)
                if self._starts is not None and part.starts is not None:
                    self._starts.put(number, part.starts)
                self._parts[number] = part

    def _read_chosen(self, choose: Callable[[Limits], RowNumbers], names: Names) -> Batch:
        self._open_parts()
        return super()._read_chosen(choose, names)

    def _no_rows(self, names: Names, located: bool = False) -> Batch:
        found = super()._no_rows(names)
        items = self._model._now.items
        if located and items is not None:
            found[ROW_INDEXES] = empty((0, items.rows), np.dtype(np.int64))
        return found

    def _can_draw(self) -> bool:
        with self._shards.lock:
            found = len(self)
            if self._starts is None:
                return found > 0
            self._open_parts()
            return found > 0 and self._starts.count > 0

    def __repr__(self) -> str:
        layers = ", ".join(map(repr, self.layers))
        return f"LearnerView({self.learner!r}, {layers})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a view of a learner belongs to its process; hand on the SharedReplay")


class ShardView:
    """The part of a view of a learner that reads one shard: see ``Reader``."""

    def __init__(self, view: LearnerView, number: int, reader: Reader) -> None:
        self._number = number
        self._bits = view._shards.group.bits
        self._reader = reader
        self.own = View(reader, view.layers)
        self.own.draws = view.draws
        self._now = self.own._now
        self.starts = self._now.starts

    def read(self, slots: Slots, names: Names, located: bool) -> Batch | None:
        """See ``Reader.read``."""
        batch = self.own.read_at(slots, names, located=located)
        if batch is None:
            return None
        if located and ROW_INDEXES in batch:
            found = batch[ROW_INDEXES]
            batch[ROW_INDEXES] = np.where(found < 0, -1, found << self._bits | self._number)
        if self.starts is None or not self.starts.before:
            return batch
        return batch if self._reader.has_before(self.starts, slots) else None

    def order(self, rng: np.random.Generator | None) -> tuple[int, Callable[[int], Slots]]:
        """See ``Reader.order``."""
        size = len(self._reader) if self.starts is None else self.starts.count
        return size, self._now.epoch(rng)

    def can_draw(self, slots: Slots) -> NDArray[np.bool_]:
        """See ``Reader.can_draw``."""
        return np.isin(slots, self._now.drawable(slots))
