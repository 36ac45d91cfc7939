"""``LearnerView``: the rows of a learner's shards, read by layers.

It is a view whose buffer is the learner. Not here: what layers do (``views``, ``buffers._view``),
and how rows are drawn again that were written over (``_learner``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cpprb_like.buffers._entry import SampleOptions
from cpprb_like.buffers._epochs import EpochOrder
from cpprb_like.buffers._reading import Choose, Opened, ReadPlan, chunks
from cpprb_like.buffers._source import Batch
from cpprb_like.buffers._view import View
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.processes._draws import Order, RowNumbers, StartsTogether
from cpprb_like.processes._followed import FollowedShards
from cpprb_like.processes._words import DRAWN
from cpprb_like.samplers._base import Extra, Slots
from cpprb_like.samplers._starts import choose_rows
from cpprb_like.samplers._uniform_draws import Epoch
from cpprb_like.views._layer import Items, Layer
from cpprb_like.views._sequences import PartOfBatch, SequenceReader

__all__ = ["LearnerView"]


class OpenedShards(Opened):
    """The layers of a view over the rows of all shards, which are called by their numbers."""

    starts: StartsTogether | None  # type: ignore[assignment]

    def __init__(self, learner: Any, layers: tuple[Layer, ...]) -> None:
        self._shards: FollowedShards = learner._shards
        super().__init__(learner, layers)
        if self.conditions:
            raise ValueError(
                f"view: expected layers without a condition such as Among, got {layers!r}: a "
                "learner draws from the rows of several processes; view the buffer of one"
            )

    def _open_items(self, items: Items) -> SequenceReader:
        readers, group = self._shards.readers, self._shards.group
        shapes = StartsTogether(
            group,
            lambda number: cast("Any", readers[number])._starts(
                rows=items.rows, least=1, across=items.across, stride=1
            ),
        )

        def split(rows: RowNumbers) -> list[PartOfBatch]:
            if len(rows) == 0:  # of whatever shard there is
                known = next(k for k, reader in enumerate(readers) if reader is not None)
                return [(shapes.of(known), rows, rows)]
            return [(shapes.of(number), own, places) for number, places, own in group.split(rows)]

        return SequenceReader(self._shards.group, items, split)

    def draw(self, n: int, options: SampleOptions) -> tuple[RowNumbers, Extra]:
        """See ``Opened.draw``."""
        return self._shards.choose(self.starts, n, options)

    def others(self, slots: RowNumbers, strategy: int) -> RowNumbers:
        """See ``Opened.others``: rows of the same shard."""
        shards = self._shards
        found = np.empty(len(slots), np.intp)
        for number, places, own in shards.group.split(slots):
            chosen = choose_rows(shards.reader(number)._episodes, own, shards.rng, strategy)
            found[places] = shards.group.name(number, chosen)
        return found

    def are_starts(self, rows: RowNumbers) -> NDArray[np.bool_]:
        """Which rows can be drawn, of those that are not absent; also of a shard in an edit."""
        found = np.full(len(rows), True)
        if self.starts is not None:
            for number, places, own in self._shards.group.split(rows):
                found[places] = self.starts.of(number).tell(own) == 1
        return found

    def all_drawable(self, slots: RowNumbers) -> bool:
        """See ``Opened.all_drawable``: the rows before them, which are read too, are there."""
        for number, _, _ in self._shards.group.split(slots):
            self._shards.reader(number).leave_out()
        lost = np.flatnonzero(~self.are_starts(slots))
        if len(lost):
            self._shards.group.late = int(slots[lost[0]]) & self._shards.group.mask
        return len(lost) == 0

    def order(self, number: int, rng: np.random.Generator | None) -> Order:
        """The rows of a shard in the order of an epoch, and how many these are."""
        if self.starts is None:
            ring = self._shards.reader(number).ring
            return len(ring), Epoch(ring, rng).take
        slots: Slots = self.starts.of(number).slots()
        return len(slots), chunks(slots if rng is None else rng.permutation(slots))


class LearnerView(View):
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

    _OPENED = OpenedShards

    def __init__(self, learner: Any, layers: Iterable[Layer]) -> None:
        self.learner = learner
        self._shards: FollowedShards = learner._shards
        super().__init__(learner, layers)

    def _draw(
        self, plan: ReadPlan, choose: Choose, n: int | None, arrays: Batch | None, located: bool
    ) -> Batch:
        if n is None:  # of an epoch, which no limiter counts
            return self._draw_held(plan, choose, n, arrays, located)
        try:
            gate = self.learner._at_gate
            batch: Batch = gate(n, self._draw_held, plan, choose, n, arrays, located)
        except NotEnoughDataError as error:
            raise self._shards.explained(error) from None
        return batch

    def _draw_held(
        self, plan: ReadPlan, choose: Choose, n: int | None, arrays: Batch | None, located: bool
    ) -> Batch:
        """As ``_draw``, by one thread at a time."""
        with self._shards.lock:
            batch = super()._draw(plan, choose, n, arrays, located)
        self.learner._counts[DRAWN] += n or 0
        return batch

    def _begin_epoch(
        self, fields: tuple[str, ...] | None, shuffle: bool, rng: np.random.Generator | None
    ) -> EpochOrder | None:
        now: Any = self._now
        columns = self.learner.ring.columns
        plan = self._all
        if fields is not None:
            plan = now.plan(tuple(column for column in columns if column.name in fields))

        def can_draw(rows: RowNumbers) -> NDArray[np.bool_]:
            there: NDArray[np.bool_] = now.are_starts(rows)
            there &= ~self.learner.ring.absent_at(rows)
            return there

        def read(choose: Callable[[], RowNumbers]) -> Batch:
            return self._draw(plan, lambda: (choose(), {}), None, None, False)

        found: EpochOrder = self.learner._epoch(now.order, can_draw, read, shuffle, rng)
        return found

    def _can_draw(self) -> bool:
        with self._shards.lock:
            starts: Any = self._now.starts
            return len(self) > 0 and (starts is None or starts.count > 0)

    def __repr__(self) -> str:
        layers = ", ".join(map(repr, self.layers))
        return f"LearnerView({self.learner!r}, {layers})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a view of a learner belongs to its process; hand on the SharedReplay")
