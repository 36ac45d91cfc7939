"""``Sharded``: batches from the rows of several shards, as from those of one buffer.

What a learner and its views have in common: rows are chosen, read, and chosen anew if an actor has
written over one of them meanwhile; and epochs, which pass through all shards. Not here: which rows
are drawn (``_draws``), and one shard (``_shards``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cpprb_like._core import Ring
from cpprb_like._fields.schema import check_out
from cpprb_like._machine.aligned import aligned, empty
from cpprb_like.buffers._epochs import EpochOrder
from cpprb_like.buffers._source import (
    Batch,
    Source,
    if_prioritized,
    order_generator,
)
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.processes._draws import RowNumbers
from cpprb_like.processes._followers import places_by_label
from cpprb_like.processes._shards import TOO_FAST, Reader, tries
from cpprb_like.samplers._base import Extra, Slots
from cpprb_like.schedules import Schedule

if TYPE_CHECKING:
    from cpprb_like.processes._learner import Learner

__all__ = ["Sharded"]

Limits = Mapping[int, int]  # of shards: the oldest row that a try reads; of the others all
Choose = Callable[[Limits], tuple[RowNumbers, Extra]]
Names = tuple[str, ...] | None
Clears = list[tuple[int, Ring, int]]  # a writer, its ring, and how often that had been cleared
MOST_DRAWN = 64  # times the rows of a batch, in a try that leaves out some
WHOLE, LOST = -1, -2  # instead of a shard that has lost a row: none has, or nothing was read
ROW_NAMES = ("indexes", "row_indexes")  # columns that name rows


class Sharded(Source):
    """A source of the rows of a learner's shards."""

    @property
    def _learner(self) -> Learner:
        """Whose shards these are."""
        raise NotImplementedError

    def _draw_rows(
        self, replace: bool, beta: float | Schedule | None, n: int
    ) -> tuple[RowNumbers, Extra]:
        """Draw n rows, or rows that an item can start at, of all shards as they are now."""
        raise NotImplementedError

    def _read_part(
        self, number: int, reader: Reader, slots: Slots, names: Names, located: bool
    ) -> Batch | None:
        """What there is of the rows of one shard; None if some were written over meanwhile."""
        raise NotImplementedError

    def _epoch_of(
        self, number: int, reader: Reader, rng: np.random.Generator | None
    ) -> tuple[int, Callable[[int], Slots]]:
        """How many rows of a shard an epoch has, and what gives so many of them at a time."""
        raise NotImplementedError

    def _there(self, number: int, slots: Slots) -> NDArray[np.bool_]:
        """Which rows of a shard can be drawn now."""
        raise NotImplementedError

    def _count(self) -> None:
        """A batch was drawn."""

    # ------------------------------------------------------------------ sampling

    def sample(
        self,
        batch_size: int,
        beta: float | Schedule | None = None,
        *,
        replace: bool = True,
        out: dict[str, Any] | None = None,
        indexes: bool = False,
        fields: str | Iterable[str] | None = None,
    ) -> Batch:
        """Draw a batch from the rows of all shards.

        Parameters
        ----------
        batch_size, beta, replace, out, fields
            See ``Source.sample``, and ``ReplayBuffer.sample`` for ``out``.
        indexes : bool
            Add the column ``indexes``, shape ``(batch_size,)``, int64, which names the drawn rows
            for ever: a shard, and a row of it. With priorities it is there anyway.

        Returns
        -------
        dict of ndarray
            As a buffer that holds all rows gives it.

        Raises
        ------
        NotEnoughDataError
            No row can be drawn, or fewer than ``batch_size`` and ``replace`` is false; or all
            priorities are 0. It is a ``ValueError``.
        TypeError, ValueError, MemoryError
            As ``ReplayBuffer.sample``.
        RuntimeError
            Rows were written over faster than they could be read, in 1,000 tries and ten seconds:
            ``capacity`` is far too small.

        Notes
        -----
        Each row is whole, and was in the replay at the time of the draw. A row that an actor writes
        over while it is read makes all rows be drawn again. That try passes over the oldest rows of
        the shard; later draws have them again. Only the batch that was read counts as drawn, as for
        the time of a schedule; the random numbers of the others are used up.

        Cost: that of one buffer, and a look at each shard. N-step returns and views are read shard
        by shard, and copied once more.
        """
        n, names = self._read_batch_size(batch_size, fields)
        if beta is not None:
            self._check_beta(beta)
        if indexes and "indexes" in self.fields:
            raise ValueError("indexes: there is a field of this name")
        arrays = None if out is None else self._check_out(out, n, names)
        try:
            batch = self._draw(replace, beta, n, names, arrays, indexes)
        except NotEnoughDataError as error:
            raise self._learner._explained(error) from None
        if out is None or arrays is None:
            return batch
        out.update({name: values for name, values in batch.items() if name not in arrays})
        return out

    def _draw(
        self,
        replace: bool,
        beta: float | Schedule | None,
        n: int,
        names: Names,
        arrays: Batch | None,
        indexes: bool,
    ) -> Batch:
        """A batch, drawn by one thread at a time."""
        learner = self._learner

        def choose(limits: Limits) -> tuple[RowNumbers, Extra]:
            draw = partial(self._draw_beyond, limits) if limits else self._draw_rows
            rows, extra = draw(replace, beta, n)
            if indexes and "indexes" not in extra:
                extra = {**extra, "indexes": learner._group.handles(rows)}
            return rows, extra

        with learner._lock:
            batch = self._read(choose, names, arrays, indexes)
            self._count()
        return batch

    def _draw_beyond(
        self, limits: Limits, replace: bool, beta: float | Schedule | None, n: int
    ) -> tuple[RowNumbers, Extra]:
        """As ``_draw_rows``, of rows that are not older than the limits: more are drawn than n.

        Older rows are not hidden, as they can be drawn again when the actors pause.
        """
        learner = self._learner
        total = len(learner._group)
        most = MOST_DRAWN * n if replace else total
        old = sum(
            limit - learner._reader(number).follower.first for number, limit in limits.items()
        )
        drawn = min(most, max(n, 2 * n * total // max(1, total - old)))
        noted = learner._draws.noted()
        while True:
            rows, extra = self._draw_rows(replace, beta, drawn)
            beyond = np.flatnonzero(self._are_beyond(limits, rows))
            if len(beyond) >= n:
                break
            if drawn >= most:
                raise NotEnoughDataError(f"cannot sample {n} rows: others are written over")
            learner._draws.put_back(noted)
            drawn = min(2 * drawn, most)
        if len(beyond) > n:
            beyond = learner.rng.choice(beyond, n, replace=False)
        return rows[beyond], {name: values[beyond] for name, values in extra.items()}

    def _are_beyond(self, limits: Limits, rows: RowNumbers) -> NDArray[np.bool_]:
        """Which rows are not older than the limits of their shards."""
        found = np.full(len(rows), True)
        for number, places, slots in self._learner._group.parts(rows):
            if number in limits:
                ids = self._learner._reader(number).ring.row_ids(slots)
                found[places] = ids >= limits[number]
        return found

    def _check_out(self, out: dict[str, Any], n: int, names: Names) -> Batch:
        """The arrays of the caller, by field."""
        wanted = self._field_specs(names)
        return dict(zip(wanted, check_out(out, n, wanted), strict=True))

    def _read(self, choose: Choose, names: Names, arrays: Batch | None, located: bool) -> Batch:
        """The rows that ``choose`` chooses, all of one moment."""
        learner = self._learner
        margins: dict[int, int] = {}
        for _ in tries():
            learner._follow()
            limits = {}
            for number, margin in margins.items():
                reader = learner._reader(number)
                reader.leave_out()
                limits[number] = reader.oldest_beyond(margin)
            noted, late = learner._draws.noted(), LOST
            try:
                rows, extra = choose(limits)
                late, batch = self._take(rows, names, arrays, located)
            except NotEnoughDataError:
                if not margins:
                    raise
                margins.clear()  # all that it knew of was written over: newer rows are there
                continue
            finally:
                if late != WHOLE:
                    learner._draws.put_back(noted)
            if late == WHOLE:
                batch.update({name: aligned(values) for name, values in extra.items()})
                return batch
            margins[late] = learner._reader(late).margin_after(margins.get(late, 0))
        raise RuntimeError(TOO_FAST)

    def _take(
        self, rows: RowNumbers, names: Names, arrays: Batch | None, located: bool
    ) -> tuple[int, Batch]:
        """A batch of these rows, read shard by shard; or the shard that has lost one of them."""
        group = self._learner._group
        batch: Batch = {} if arrays is None else dict(arrays)
        n = len(rows)
        if n == 0:
            known = self._field_specs(names)
            drawn = self._learner.sampler.columns
            known |= {name: one for name, one in self._further_specs().items() if name not in drawn}
            return WHOLE, {name: empty((0, *one.shape), one.dtype) for name, one in known.items()}
        for number, places, slots in group.parts(rows):
            reader = self._learner._reader(number)
            part = self._read_part(number, reader, slots, names, located)
            if part is None:
                return number, {}
            for name, values in part.items():
                own = values
                if name in ROW_NAMES:
                    own = np.where(values < 0, -1, values << group.bits | number)
                if name not in batch and len(places) == n:
                    batch[name] = own
                    continue
                if name not in batch:
                    batch[name] = empty((n, *own.shape[1:]), own.dtype)
                batch[name][places] = own
        return WHOLE, batch

    # ------------------------------------------------------------------ epochs

    def _begin_epoch(
        self, fields: Names, shuffle: bool, rng: np.random.Generator | None
    ) -> EpochOrder | None:
        learner = self._learner
        with learner._lock:
            generator = order_generator(shuffle, rng, learner.rng)
            learner._follow()
            rings = [(number, ring) for number, ring in learner._group.usable_rings if len(ring)]
            found = {
                number: self._epoch_of(number, learner._reader(number), generator)
                for number, _ in rings
            }
            clears = [(number, ring, ring.clears) for number, ring in rings]
            order = _Interleaved(learner._group.number, found, generator)

        def take(n: int) -> RowNumbers:
            with learner._lock:
                return order.take(n)

        def read(rows: RowNumbers) -> Batch:
            with learner._lock:
                choose = partial(self._still_there, rows, clears)
                batch = self._read(choose, fields, None, False)
                self._count()
            return batch

        return EpochOrder(take, read, lambda: _cleared(clears) is not None)

    def _still_there(
        self, rows: RowNumbers, clears: Clears, limits: Limits
    ) -> tuple[RowNumbers, Extra]:
        """Those of the rows that can be drawn now."""
        cleared = _cleared(clears)
        if cleared is not None:
            raise RuntimeError(f"writer {cleared} cleared its rows while they were read")
        there = self._are_beyond(limits, rows)
        for number, places, slots in self._learner._group.parts(rows):
            there[places] &= self._there(number, slots)
        return rows[there], {}

    # ------------------------------------------------------------------ priorities and state

    @if_prioritized
    def update_priorities(self, indexes: ArrayLike, priorities: ArrayLike) -> None:
        """Set the priorities of drawn rows, such as the absolute TD errors of a batch.

        They are this learner's: others have priorities of their own. Only learners with priorities
        have this method, those with a prioritized ``sampler``.

        Parameters
        ----------
        indexes : array_like of int, shape (n,)
            ``batch["indexes"]``, or parts of those of several batches. Rows that were written over
            since they were drawn are passed over, and counted in ``SharedReplay.members``. Of
            duplicates the last counts.
        priorities : array_like, shape (n,) or (n, 1)
            Finite, at least 0.

        Raises
        ------
        TypeError
            They are no integers, or no numbers.
        ValueError
            Not one priority for each index, or one that is negative, infinite, NaN or too large.
        IndexError
            An index names no row, and never did. Whatever is raised, no priority has changed.

        Notes
        -----
        Cost: that of ``PrioritizedReplayBuffer.update_priorities``, and a look at each shard.
        """
        learner = self._learner
        with learner._lock:
            learner._follow()
            learner._draws.update(indexes, priorities)
            learner._counts.tell(*learner._draws.updated)

    def _check_update(
        self, indexes: NDArray[np.int64], priorities: NDArray[np.float64]
    ) -> NDArray[np.intp]:
        with self._learner._lock:
            self._learner._follow()
            return self._learner._draws.wrong(indexes, priorities)

    def _check_draw(self, n: int, *, replace: bool, beta: float | Schedule | None) -> None:
        with self._learner._lock:
            found = len(self)
            if not replace and n > found:
                raise self._learner._explained(
                    NotEnoughDataError(f"cannot sample {n} distinct rows: the shards hold {found}")
                )
            self._learner._draws.check(n, replace=replace, beta=beta)

    @property
    def has_priorities(self) -> bool:
        """Whether rows are drawn by priority: then batches have ``weights`` and ``indexes``."""
        return self._learner.sampler.has_priorities

    def __len__(self) -> int:
        """Rows of all shards that can be drawn, whatever a view needs besides."""
        learner = self._learner
        with learner._lock:
            learner._follow()
            return len(learner._group)


def _cleared(clears: Clears) -> int | None:
    """The writer that has cleared its rows since, if there is one."""
    return next((number for number, ring, before in clears if ring.clears != before), None)


class _Interleaved:
    """The rows of an epoch over several shards, in the order of shards or in random order."""

    def __init__(
        self,
        name: Callable[[int, Slots], RowNumbers],
        found: Mapping[int, tuple[int, Callable[[int], Slots]]],
        rng: np.random.Generator | None,
    ) -> None:
        self._name = name
        self._found = found
        sizes = [size for size, _ in found.values()]
        self._labels = np.repeat(np.array(list(found), np.int32), sizes)
        if rng is not None:
            self._labels = rng.permutation(self._labels)
        self._at = 0

    def take(self, n: int) -> RowNumbers:
        """The next n rows, or as many as are left."""
        taken = np.empty(0, np.intp)
        while len(taken) < n and self._at < len(self._labels):
            labels = self._labels[self._at : self._at + n - len(taken)]
            self._at += len(labels)
            rows = np.full(len(labels), -1, np.intp)
            for number, places in places_by_label(labels):
                slots = self._found[number][1](len(places))
                rows[places[: len(slots)]] = self._name(number, slots)
            taken = np.concatenate([taken, rows[rows >= 0]])
        return taken
