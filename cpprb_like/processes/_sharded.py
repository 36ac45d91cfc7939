"""``Sharded``: batches from the rows of several shards, as from those of one buffer.

What a learner and its views have in common: rows are chosen, read, and chosen again if an actor has
written over one of them in between; and epochs, which pass through all shards. Not here: which rows
are drawn (``_draws``), following (``_followed``), and one shard (``_shards``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cpprb_like._core import Ring
from cpprb_like._fields.schema import check_out, read_columns
from cpprb_like._machine.aligned import empty
from cpprb_like._rows.column import Column
from cpprb_like.buffers._entry import DEFAULTS, SampleOptions
from cpprb_like.buffers._epochs import EpochOrder
from cpprb_like.buffers._parts import places_by_label
from cpprb_like.buffers._source import (
    Batch,
    ColumnSpec,
    Source,
    if_prioritized,
    order_generator,
)
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.processes._draws import Drawn, DrawRows, RowNumbers
from cpprb_like.processes._followed import FollowedShards
from cpprb_like.processes._followers import attempt
from cpprb_like.processes._shards import TOO_FAST, tries
from cpprb_like.processes._update_counts import UpdateCounts
from cpprb_like.samplers._base import Sampler, Slots

__all__ = ["Limits", "Names", "Sharded"]

Limits = Mapping[int, int]  # of shards: the oldest row that a try reads; of the others all
Names = tuple[str, ...] | None
Clears = list[tuple[int, Ring, int]]  # a writer, its ring, and how often that had been cleared
MOST_DRAWN = 64  # times the rows of a batch, in a try that leaves out some


class Sharded(Source):
    """A source of the rows of several shards.

    Parameters
    ----------
    shards : FollowedShards
        The shards.
    sampler : Sampler
        Which rows are drawn.
    counts : UpdateCounts
        What the learner has drawn and updated.
    """

    _model: Source  # as each part is, without rows
    _parts: list[Any]  # of each shard that exists, what reads it: a Reader, or what has its methods
    _choose: Any  # a DrawRows
    _check_size: Any  # the size of a batch of all fields, checked
    _columns: tuple[Column, ...] | None = None  # where rows are read as they are stored

    def __init__(self, shards: FollowedShards, sampler: Sampler, counts: UpdateCounts) -> None:
        self._shards = shards
        self.sampler = sampler
        self._counts = counts
        self._changing = shards.draws if shards.draws.changes else None
        self.draws = 0  # batches drawn so far

    # ------------------------------------------------------------------ sampling

    def _sample(self, batch_size: int, options: SampleOptions) -> Batch:
        out = options.out
        if options.fields is None:
            n, names = self._check_size(batch_size), None
        else:
            n, names = self._read_batch_size(batch_size, options.fields)
        if options.indexes and "indexes" in self.fields:
            raise ValueError("indexes: there is a field of this name")
        arrays = None
        if out is not None:
            wanted = self._field_specs(names)
            arrays = dict(zip(wanted, check_out(out, n, wanted), strict=True))
        try:
            if self._shards.gate is None:
                batch = self._draw(n, options, names, arrays)
            else:
                self._shards.check_process()
                batch = self._shards.gate.run(n, self._draw, n, options, names, arrays)
        except NotEnoughDataError as error:
            raise self._shards.explained(error) from None
        if out is None or arrays is None:
            return batch
        out.update({name: values for name, values in batch.items() if name not in arrays})
        return out

    def _draw(self, n: int, options: SampleOptions, names: Names, arrays: Batch | None) -> Batch:
        """A batch, drawn by one thread at a time."""
        shards, columns = self._shards, self._columns
        if columns is not None and names is not None:
            columns = read_columns(names, columns)
        with shards.lock:
            follow = None if shards.follows_at_once else shards.follow
            if shards.heard is not None and shards.has_priorities_to_hear():
                follow = shards.follow
            batch = attempt(
                shards.group, follow, shards.look_at, self._choose, shards.rng, options, n,
                columns, self._parts, names, arrays, self._changing,
            )  # fmt: skip
            if batch is None:
                late = shards.group.late
                margins = {late: shards.reader(late).margin_after(0)}
                batch = self._retry(self._choosing, margins, n, options, names, arrays)
            self.draws += 1
        self._counts.drew(n)
        return batch if n else {**self._no_rows(names, options.indexes), **batch}

    def _no_rows(self, names: Names, located: bool = False) -> Batch:  # noqa: ARG002
        """A batch of no rows, without the columns of the sampler; ``located`` as for a view."""
        known = {**self._field_specs(names), **self._model._further_specs()}
        return {name: empty((0, *one.shape), one.dtype) for name, one in known.items()}

    # ------------------------------------------------------------------ further tries

    def _retry(
        self,
        choosing: Callable[[Limits], DrawRows],
        margins: dict[int, int],
        n: int,
        options: SampleOptions,
        names: Names,
        arrays: Batch | None,
    ) -> Batch:
        """Attempts whose rows are chosen by ``choosing(limits)``, until one reads all of them.

        ``margins`` are those of shards that have lost a row in earlier ones.
        """
        shards, group, columns = self._shards, self._shards.group, self._columns
        if columns is not None and names is not None:
            columns = read_columns(names, columns)
        for _ in tries():
            shards.follow()
            choose = choosing(shards.oldest_of(margins))
            try:
                batch = attempt(
                    group, shards.follow, shards.look_at, choose, shards.rng, options, n,
                    columns, self._parts, names, arrays, self._changing,
                )  # fmt: skip
            except NotEnoughDataError:
                if not margins:
                    raise
                margins.clear()  # all known rows were written over: newer ones are there
                continue
            if batch is not None:
                return batch
            late = group.late
            margins[late] = shards.reader(late).margin_after(margins.get(late, 0))
        raise RuntimeError(TOO_FAST)

    def _choosing(self, limits: Limits) -> DrawRows:
        """The draw of a try that passes over rows older than the limits."""
        return partial(self._draw_beyond, limits) if limits else self._choose

    def _draw_beyond(
        self, limits: Limits, rng: np.random.Generator, options: SampleOptions, n: int
    ) -> Drawn:
        """Draw more rows than n, and leave those out that are older than the limits.

        Older rows are not hidden, as they can be drawn again when the actors pause.
        """
        shards = self._shards
        total = len(shards.group)
        most = MOST_DRAWN * n if options.replace else total
        old = sum(limit - shards.reader(number).follower.first for number, limit in limits.items())
        drawn = min(most, max(n, 2 * n * total // max(1, total - old)))
        noted = shards.draws.noted()
        while True:
            rows, extra = self._choose(rng, options, drawn)
            beyond = np.flatnonzero(shards.are_beyond(limits, rows))
            if len(beyond) >= n:
                break
            if drawn >= most:
                raise NotEnoughDataError(f"cannot sample {n} rows: others are written over")
            shards.draws.put_back(noted)
            drawn = min(2 * drawn, most)
        if len(beyond) > n:
            beyond = rng.choice(beyond, n, replace=False)
        return rows[beyond], {name: values[beyond] for name, values in extra.items()}

    def _read_chosen(self, choose: Callable[[Limits], RowNumbers], names: Names) -> Batch:
        """The rows that ``choose`` chooses beyond limits, all of one moment."""

        def choosing(limits: Limits) -> DrawRows:
            return lambda *_: (choose(limits), {})

        with self._shards.lock:
            batch = self._retry(choosing, {}, 0, DEFAULTS, names, None)
        return batch or self._no_rows(names)

    # ------------------------------------------------------------------ epochs

    def _open_parts(self) -> None:
        """Make ``_parts`` of the shards that have come, where they are not the readers."""

    def _begin_epoch(
        self, fields: Names, shuffle: bool, rng: np.random.Generator | None
    ) -> EpochOrder | None:
        shards = self._shards
        with shards.lock:
            generator = order_generator(shuffle, rng, shards.rng)
            shards.follow()
            self._open_parts()
            rings = [(number, ring) for number, ring in shards.group.usable_rings if len(ring)]
            found = {number: self._parts[number].order(generator) for number, _ in rings}
            clears = [(number, ring, ring.clears) for number, ring in rings]
            order = _Interleaved(shards.group.names.name, found, generator)

        def take(n: int) -> RowNumbers:
            with shards.lock:
                return order.take(n)

        def read(rows: RowNumbers) -> Batch:
            with shards.lock:
                batch = self._read_chosen(partial(self._still_there, rows, clears), fields)
                self.draws += 1
            return batch

        return EpochOrder(take, read, lambda: _cleared(clears) is not None)

    def _still_there(self, rows: RowNumbers, clears: Clears, limits: Limits) -> RowNumbers:
        """Those of the rows that can be drawn now."""
        cleared = _cleared(clears)
        if cleared is not None:
            raise RuntimeError(f"writer {cleared} cleared its rows while they were read")
        there = self._shards.are_beyond(limits, rows)
        for number, places, slots in self._shards.group.names.split(rows):
            there[places] &= self._parts[number].can_draw(slots)
        return rows[there]

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
        shards = self._shards
        with shards.lock:
            shards.follow()
            shards.draws.update(indexes, priorities)
            self._counts.tell(*shards.draws.updated)

    def _check_update(
        self, indexes: NDArray[np.int64], priorities: NDArray[np.float64]
    ) -> NDArray[np.intp]:
        with self._shards.lock:
            self._shards.follow()
            return self._shards.draws.wrong(indexes, priorities)

    def _check_draw(self, n: int, options: SampleOptions) -> None:
        with self._shards.lock:
            found = len(self)
            if not options.replace and n > found:
                raise self._shards.explained(
                    NotEnoughDataError(f"cannot sample {n} distinct rows: the shards hold {found}")
                )
            self._shards.draws.check(n, options)

    # ------------------------------------------------------------------ state

    @property
    def has_priorities(self) -> bool:
        """Whether rows are drawn by priority: then batches have ``weights`` and ``indexes``."""
        return self.sampler.has_priorities

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields."""
        return self._model.fields

    def _read_batch_size(
        self, batch_size: int, fields: str | Iterable[str] | None = None
    ) -> tuple[int, Names]:
        return self._model._read_batch_size(batch_size, fields)

    def _field_specs(self, names: Names) -> dict[str, ColumnSpec]:
        return self._model._field_specs(names)

    def _further_specs(self) -> dict[str, ColumnSpec]:
        return {**self._model._further_specs(), **self.sampler.columns}

    def __len__(self) -> int:
        """Rows of all shards that can be drawn, whatever a view needs besides."""
        with self._shards.lock:
            self._shards.follow()
            return len(self._shards.group)


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
