"""``Learner``: batches from the shards of a shared replay, as from one buffer.

Rows are chosen, read, and chosen again if an actor wrote over one of them in between. An epoch
passes through all shards. Not here: which rows are drawn (``_draws``), following shards
(``_followed``), layers (``_learner_view``), and who writes rows (``_replay``).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cpprb_like._core import Ring
from cpprb_like._fields.row_options import RowOptions
from cpprb_like._fields.schema import check_out, read_columns
from cpprb_like._machine.aligned import aligned
from cpprb_like._machine.generators import Seed, generator
from cpprb_like._machine.prefetch_state import without_prefetch
from cpprb_like.buffers._entry import SampleOptions
from cpprb_like.buffers._epochs import EpochOrder
from cpprb_like.buffers._replay import ReplayBuffer, check_columns
from cpprb_like.buffers._source import (
    Batch,
    ColumnSpec,
    Source,
    if_prioritized,
    order_generator,
)
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.processes._draws import Order, RowNumbers, StartsTogether
from cpprb_like.processes._folder import FileLock, Folder
from cpprb_like.processes._followed import FollowedShards
from cpprb_like.processes._followers import Followers, attempt, consistently
from cpprb_like.processes._learner_view import LearnerView
from cpprb_like.processes._saving import SavedLearner
from cpprb_like.processes._shards import TOO_FAST
from cpprb_like.processes._words import DRAWN, GIVEN, LATE, Words
from cpprb_like.samplers._base import Sampler
from cpprb_like.samplers._uniform import Uniform
from cpprb_like.samplers._uniform_draws import Epoch
from cpprb_like.views._layer import Layer
from cpprb_like.views._rows import RowReader

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Learner"]

Found = TypeVar("Found")
Names = tuple[str, ...] | None
Clears = list[tuple[int, Ring, int]]  # a writer, its ring, and how often that had been cleared


class Learner(Source):
    """The end of a shared replay that draws: ``SharedReplay.learner``.

    A ``Source`` of the rows of all actors: what is drawn has the distribution of one buffer that
    holds them all, and the same columns. It has a sampler, priorities and a generator of its own,
    so several learners do not disturb each other, nor the actors.

    Attributes
    ----------
    number : int
        Of the learner, from 0 on.
    sampler : Sampler
        Which rows are drawn.
    rng : numpy.random.Generator
        The generator in use.

    Notes
    -----
    *Uniform*: each row of all shards has the same probability.

    *Prioritized*: rows have the probabilities, importance-sampling weights and strata that one
    buffer with the rows of all shards gives them; new rows get the greatest priority that this
    learner knows. ``indexes`` are always handles, as with ``check_for_update``.

    *RankBased*: a shard is drawn by the number of its rows, and in it a row by its rank among the
    rows of that shard. Importance-sampling weights correct for the probabilities of both.

    Other samplers raise ``TypeError``: the rows of several processes have no common order of age.

    Batches have the columns that one buffer with all rows gives them. ``indexes`` of batches name a
    shard and a row of it, for ever. Each row is whole, and was in the replay at the time of the
    draw. A row that an actor writes over while it is read makes all rows be drawn again. That try
    passes over the oldest rows of the shard; later draws have them again. Only the batch that was
    read counts as drawn, as for the time of a schedule; the random numbers of the others are used
    up. ``RuntimeError`` says that rows were written over faster than they could be read, in 1,000
    tries and ten seconds: ``capacity`` is far too small.

    Cost of a batch: that of one buffer, and a look at each shard.

    The same seed, and the same rows that came between the same calls, give the same batches.

    Any number of threads may draw and update. A learner belongs to its process, and is not
    pickled: hand on the ``SharedReplay``. In a forked child its methods raise ``RuntimeError``.

    Examples
    --------
    >>> from cpprb_like.processes import SharedReplay
    >>> from cpprb_like.samplers import Prioritized
    >>> replay = SharedReplay(1000, {"x": {"shape": ()}}, writers=2)
    >>> with replay.actor() as one, replay.actor() as other:
    ...     _ = one.add(x=[0, 1]), other.add(x=[10, 11, 12])
    >>> learner = replay.learner(Prioritized(alpha=1.0, eps=0.0), seed=0)
    >>> batch = learner.sample(5)
    >>> sorted(batch["x"].tolist()), batch["weights"].tolist()
    ([0.0, 1.0, 10.0, 11.0, 12.0], [1.0, 1.0, 1.0, 1.0, 1.0])
    >>> learner.update_priorities(batch["indexes"], batch["x"])
    >>> learner.get_max_priority()
    12.0
    """

    FOLLOWED: ClassVar[type[FollowedShards]] = FollowedShards

    def __init__(
        self,
        folder: Folder,
        shards: list[Path],
        number: int,
        lock: FileLock,
        sampler: Sampler,
        seed: Seed,
        options: RowOptions,
    ) -> None:
        check_columns(sampler, options.schema.names)
        self._folder = folder
        self._membership = lock
        self.number = number
        self.rng = generator(seed)
        self.sampler = sampler
        # A buffer as each shard is, without rows.
        few = options.resized(options.n_envs)
        self._model = ReplayBuffer._of(few, Uniform(), np.random.default_rng(0))
        self._nstep = self._model._nstep
        self.schema = self._model.schema
        self.draws = 0  # batches drawn so far
        self._counts = Words(folder.path, len(shards)).learners[number].data
        self._shards = self.FOLLOWED(
            folder.path, shards, sampler, self.rng, options, self._model.ring
        )
        self._counts[GIVEN] = self._counts[LATE] = 0
        self.ring: Followers = self._shards.group  # the rows of all shards, as those of one ring
        self._columns = self.ring.columns
        self._check_batch_size = self._model._check_batch_size
        # What reads rows; None: the shards do, as they are stored.
        self._take = None if self._nstep is None else RowReader(self.ring, self._nstep).take

    # ------------------------------------------------------------------ sampling

    def _sample(self, batch_size: int, options: SampleOptions) -> Batch:
        columns, out = self._columns, options.out
        if options.fields is None:
            n = self._check_batch_size(batch_size)
        else:
            columns = read_columns(options.fields, columns) or columns
            n = self._check_batch_size(batch_size, columns)
        if options.indexes:
            self._check_indexes()
        arrays = None
        if out is not None:
            wanted = {one.name: ColumnSpec(one.dtype, one.shape) for one in columns}
            arrays = check_out(out, n, wanted)
        try:
            if self._shards.gate is None:
                batch = self._next_batch(n, options, columns, arrays)
            else:
                batch = self._at_gate(n, self._next_batch, n, options, columns, arrays)
        except NotEnoughDataError as error:
            raise self._shards.explained(error) from None
        if out is None or arrays is None:
            return batch
        given = {column.name for column in columns}
        out.update({name: values for name, values in batch.items() if name not in given})
        return out

    def _at_gate(self, n: int, draw: Callable[..., Batch], *arguments: Any) -> Batch:
        """A batch of n, drawn by ``draw`` as soon as the limiter lets it."""
        shards = self._shards
        if shards.gate is None:
            return draw(*arguments)
        shards.check_process()
        return shards.gate.run(n, draw, *arguments)

    def _next_batch(self, n: int, options: SampleOptions, columns: Any, arrays: Any) -> Batch:
        """A batch, drawn by one thread at a time."""
        shards = self._shards
        with shards.lock:
            batch = attempt(shards.group, shards, n, options, columns, arrays, self._take)
            if batch is None:
                again = partial(self._try_again, n, options, columns, arrays)
                batch = self.consistently(again, shards.group.late)
            self.draws += 1
        self._counts[DRAWN] += n
        return batch

    def _try_again(
        self, n: int, options: SampleOptions, columns: Any, arrays: Any
    ) -> tuple[RowNumbers, Batch]:
        """Draw and read rows once: see ``consistently``."""
        rows, extra = self._shards.choose(None, n, options)
        batch = self._rows_of(rows, arrays, columns)
        return rows, batch | {name: aligned(values) for name, values in extra.items()}

    def _rows_of(self, rows: RowNumbers, arrays: Any, columns: Any) -> Batch:
        """Columns of rows, or all."""
        if self._take is None:
            return self.ring.take(rows, arrays, columns)
        return self._take(rows, arrays, None, columns)

    def consistently(
        self, attempt: Callable[[], tuple[RowNumbers, Found] | None], late: int = -1
    ) -> Found:
        """See ``ReplayBuffer.consistently``.

        ``attempt`` draws by ``FollowedShards.choose``, which passes over rows that are about to be
        written over. An error of an attempt in which a signal handler drew may be that of rows
        which are gone. ``late`` is the number of a shard that lost a row in an earlier try.
        """
        shards = self._shards
        with shards.lock:
            found = consistently(shards.group, shards, attempt, late)
        if found is None:
            raise RuntimeError(TOO_FAST)
        return found[1]

    def _read_chosen(self, choose: Callable[[], RowNumbers], names: Names) -> Batch:
        """The rows that ``choose`` chooses beyond ``FollowedShards.limits``, all of one moment."""
        columns = self._columns if names is None else read_columns(names, self._columns)

        def attempt() -> tuple[RowNumbers, Batch]:
            rows = choose()
            return rows, self._rows_of(rows, None, columns)

        return self.consistently(attempt)

    # ------------------------------------------------------------------ epochs

    def _begin_epoch(
        self, fields: Names, shuffle: bool, rng: np.random.Generator | None
    ) -> EpochOrder | None:
        def order(number: int, generator: np.random.Generator | None) -> Order:
            ring = self._shards.reader(number).ring
            return len(ring), Epoch(ring, generator).take

        def read(choose: Callable[[], RowNumbers]) -> Batch:
            with self._shards.lock:
                batch = self._read_chosen(choose, fields)
                self.draws += 1
            return batch

        return self._epoch(order, lambda rows: ~self.ring.absent_at(rows), read, shuffle, rng)

    def _epoch(
        self,
        order: Callable[[int, np.random.Generator | None], Order],
        can_draw: Callable[[RowNumbers], NDArray[np.bool_]],
        read: Callable[[Callable[[], RowNumbers]], Batch],
        shuffle: bool,
        rng: np.random.Generator | None,
    ) -> EpochOrder:
        """An epoch of the rows in the orders of the shards.

        ``can_draw`` says which rows can still be drawn; ``read(choose)`` reads chosen ones.
        """
        shards = self._shards
        with shards.lock:
            given = order_generator(shuffle, rng, shards.rng)
            shards.follow()
            rings = [(number, ring) for number, ring in shards.group.usable_rings if len(ring)]
            found = {number: order(number, given) for number, _ in rings}
            clears = [(number, ring, ring.clears) for number, ring in rings]
            rows = _Interleaved(shards.group, found, given)

        def take(n: int) -> RowNumbers:
            with shards.lock:
                return rows.take(n)

        def still_there(chosen: RowNumbers) -> RowNumbers:
            cleared = _cleared(clears)
            if cleared is not None:
                raise RuntimeError(f"writer {cleared} cleared its rows while they were read")
            return chosen[shards.are_beyond(shards.limits, chosen) & can_draw(chosen)]

        return EpochOrder(
            take,
            lambda chosen: read(partial(still_there, chosen)),
            lambda: _cleared(clears) is not None,
        )

    def view(self, *layers: Layer) -> LearnerView:
        """The rows of all shards, read in another way: see ``ReplayBuffer.view``.

        Parameters
        ----------
        *layers : NStep, Sequences, FrameStacks or Hindsight
            As there. What belongs together lies in one stream of one shard: a sequence begins and
            ends within it.

        Returns
        -------
        LearnerView
            It draws from this learner's shards, with its sampler and its generator.

        Raises
        ------
        TypeError, ValueError
            A layer is none, comes twice, or does not fit the fields.

        Notes
        -----
        Cost of a batch: that of a view of one buffer, and a look at each shard.

        Examples
        --------
        >>> from cpprb_like.processes import SharedReplay
        >>> from cpprb_like.views import Sequences
        >>> fields = {"x": {"shape": ()}, "done": {"shape": (), "dtype": bool}}
        >>> replay = SharedReplay(100, fields, writers=2)
        >>> with replay.actor() as actor:
        ...     actor.add(x=range(10), done=[False] * 9 + [True])
        0
        >>> view = replay.learner(seed=0).view(Sequences(4, stride=5))
        >>> sorted({tuple(row) for row in view.sample(20)["x"].tolist()})
        [(0.0, 1.0, 2.0, 3.0), (5.0, 6.0, 7.0, 8.0)]
        """
        return LearnerView(self, layers)

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
            self._counts[GIVEN], self._counts[LATE] = shards.draws.updated

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

    # ------------------------------------------------------------------ what views read

    def _starts(self, **options: Any) -> StartsTogether:
        """The rows of all shards at which items can start: see ``Starts``."""
        readers = self._shards.readers

        def of_shard(number: int) -> Any:
            reader = readers[number]
            return None if reader is None else reader._starts(**options)

        return StartsTogether(self._shards.group, of_shard)

    def _check_indexes(self) -> None:
        if "indexes" in self.fields:
            raise ValueError("indexes: there is a field of this name")

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

    def _save(self) -> SavedLearner:
        """What it has of its own, as it is now, and before batches that were drawn ahead."""
        shards = self._shards
        with shards.lock:
            shards.follow()
            rng = copy.deepcopy(without_prefetch(self.rng))
            sampler = copy.deepcopy(without_prefetch(self.sampler))
            heard = np.frombuffer(shards.heard or b"", np.int64).tolist()
            return SavedLearner(rng, sampler, shards.draws.save(), heard)

    def _go_on(self, saved: SavedLearner, *, heard: bool) -> None:
        """Go on with what was saved; ``heard`` says whether it was saved from this replay."""
        self._shards.draws.go_on(saved.rows)
        if self._shards.heard is not None and heard:
            self._shards.heard = np.array(getattr(saved, "heard", ()), np.int64).tobytes()

    @if_prioritized
    def get_max_priority(self) -> float:
        """The priority that new rows get: the greatest that this learner knows, 1.0 at first.

        Only learners with priorities have this method.
        """
        with self._shards.lock:
            self._shards.follow()
            return self._shards.draws.priorities.get_max_priority()

    def close(self) -> None:
        """Leave the replay: the learner's place is free. It is not used afterwards."""
        self._membership.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Learner(number={self.number}, sampler={self.sampler!r}, stored={len(self)})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a learner belongs to its process; hand on the SharedReplay instead")


def _cleared(clears: Clears) -> int | None:
    """The writer that has cleared its rows since, if there is one."""
    return next((number for number, ring, before in clears if ring.clears != before), None)


class _Interleaved:
    """The rows of an epoch over several shards, in the order of shards or in random order."""

    def __init__(
        self,
        group: Followers,
        found: Mapping[int, Order],
        rng: np.random.Generator | None,
    ) -> None:
        self._group = group
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
            for number, places, _ in self._group.split(labels.astype(np.int64)):
                slots = self._found[number][1](len(places))
                rows[places[: len(slots)]] = self._group.name(number, slots)
            taken = np.concatenate([taken, rows[rows >= 0]])
        return taken
