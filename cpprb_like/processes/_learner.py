"""``Learner``: batches from the shards of a shared replay, as from one buffer; and its views.

Rows are chosen and read, and chosen again if an actor overwrote one of them meanwhile. Not here:
the choice of rows (``_followed``, ``_draws``), layers of views (``views``, ``buffers._view``), and
the processes that write rows (``_replay``).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cpprb_like._fields.checked_options import CheckedOptions
from cpprb_like._fields.layout import Layout
from cpprb_like._fields.schema import check_out, read_columns
from cpprb_like._machine.aligned import aligned
from cpprb_like._machine.generators import Seed, generator
from cpprb_like._machine.prefetch_state import without_prefetch
from cpprb_like._rows.column import Column
from cpprb_like.buffers import View
from cpprb_like.buffers._draw_counts import DrawCounts
from cpprb_like.buffers._entry import SampleOptions
from cpprb_like.buffers._reading import Choose, Opened, ReadPlan
from cpprb_like.buffers._source import Batch, ColumnSpec, ModelledSource, if_prioritized
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.limiters._gates import stats
from cpprb_like.processes._draws import (
    RowNumbers,
    RuledTogether,
    StartsTogether,
    WholeRowsOf,
)
from cpprb_like.processes._folder import Closing, FileLock, Folder
from cpprb_like.processes._followed import FollowedShards
from cpprb_like.processes._followers import Followers, consistently
from cpprb_like.processes._mass import Mass, mass_of
from cpprb_like.processes._rowless import Rowless
from cpprb_like.processes._saving import SavedLearner, copy_of
from cpprb_like.processes._shards import stats_of_items
from cpprb_like.processes._words import GIVEN, LATE, Words
from cpprb_like.samplers import Extra, Sampler, Uniform
from cpprb_like.samplers._rows import Rows
from cpprb_like.samplers._ruled import Ruled
from cpprb_like.samplers._rules import Rules
from cpprb_like.samplers._starts import Starts, choose_rows
from cpprb_like.views._items_of_batch import LaidItems, PaddedItems, RaggedFields, TakeItems
from cpprb_like.views._rows import RowReader

if TYPE_CHECKING:
    from cpprb_like.views import Layer

Found = TypeVar("Found")
Names = tuple[str, ...] | None
PartsOfBatch = list[tuple[Starts, RowNumbers, RowNumbers | None]]  # see ``take_sequences``


class Learner(Closing, ModelledSource):
    """The end of a shared replay that draws: ``SharedReplay.learner``.

    A ``Source`` of the rows of all actors. Batches have the distribution and the columns of one
    buffer that holds all these rows. Each learner has its own sampler, priorities and generator.
    So several learners do not disturb each other, nor the actors.

    Attributes
    ----------
    number : int
        Number of the learner, from 0 on.
    sampler : Sampler
        The sampler, which chooses the rows.
    rng : numpy.random.Generator
        The generator in use.

    Notes
    -----
    *Uniform*: each row of all shards has the same probability.

    *Prioritized*: one buffer with the rows of all shards gives the same probabilities,
    importance-sampling weights and strata. New rows get the greatest priority that this learner
    knows. ``indexes`` are always handles, as with ``check_for_update``.

    Other samplers raise ``TypeError``: the rows of several processes have no common order of age,
    and ``RankBased`` ranks the rows of one buffer.

    ``indexes`` of a batch name a shard and a row of this shard, and stay valid. Each row is whole,
    and was in the replay at the time of the draw.

    If an actor overwrites a row during the read, all rows of the batch are drawn again. The new
    draw leaves out the oldest rows of the shard; later draws include them again. Only the batch
    that was read counts as drawn, also for schedules. The other draws use up random numbers.
    ``RuntimeError`` says that rows were overwritten faster than they could be read, in 1,000
    tries and ten seconds. Then ``capacity`` is far too small.

    Cost of a batch: the cost of a batch from one buffer, and a look at each shard.

    There is no ``epoch``, as actors replace rows. To draw each row once, call
    ``sample(len(learner), replace=False)``.

    The same seed gives the same batches, if the same rows came between the same calls.

    Any number of threads may draw and update. A learner belongs to its process, and is not
    pickled: pass the ``SharedReplay`` instead. In a forked child its methods raise
    ``RuntimeError``.

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
        options: CheckedOptions,
    ) -> None:
        sampler._check_fields(options.schema.names)
        self._folder = folder
        self._membership = lock
        self.number = number
        self.rng = generator(seed)
        self.sampler = sampler
        # An empty buffer with the options of each shard.
        few = options.resized(options.n_envs)
        self._model = model = Rowless._of(few, Uniform(), np.random.default_rng(0))
        self._nstep = model._nstep
        self.schema = model.schema
        self._layout = Layout.of(options, sampler.nbytes_for(options.capacity))
        nbytes = self._layout.total_nbytes
        self._sizes = {"capacity": options.size * len(shards), "bytes": nbytes * len(shards)}
        words = Words(folder.path, len(shards))
        self._counts = words.learners[number].data
        words.draws[number] = 0  # those of a learner that had this number
        self._draw_counts = DrawCounts(words.draws[number], sampler._is_uniform, len(shards))
        self._shards = self.FOLLOWED(folder.path, shards, sampler, self.rng, options, model.ring)
        self._counts[GIVEN] = self._counts[LATE] = 0
        self.ring: Followers = self._shards.group  # the rows of all shards, as those of one ring
        self._columns = self.ring.columns
        self._check_batch_size = model._check_batch_size
        self._read = RowReader(self.ring, self._nstep).take_of_rows()
        self._take: Any = None if self._nstep is None else self._read
        ragged = RaggedFields.of(self.ring, self.schema)
        # How batches hold values of any length; None without such fields.
        self._laid: LaidItems | None = None if ragged is None else PaddedItems(ragged)

    # ------------------------------------------------------------------ sampling

    def _sample(self, batch_size: int, options: SampleOptions) -> Batch:
        columns, out = self._columns, options.out
        if out is not None and self._laid is not None:
            return self._sample_into(batch_size, options)
        if options.fields is None:
            n = self._check_batch_size(batch_size)
        else:
            columns = read_columns(options.fields, columns) or columns
            n = self._check_batch_size(batch_size, columns)
        if options.indexes:
            self._check_indexes()
        arrays = None
        if out is not None:
            specs = {one.name: ColumnSpec(one.dtype, one.shape) for one in columns}
            arrays = check_out(out, n, specs)
        take = self._take if self._laid is None else self._taker(self._laid, columns)
        wanted = n, options, columns, arrays, take, None
        batch = self._draw_wanted(wanted)
        if out is None or arrays is None:
            return batch
        given = {column.name for column in columns}
        out.update({name: values for name, values in batch.items() if name not in given})
        return out

    def _taker(self, laid: LaidItems, columns: tuple[Column, ...] | None) -> TakeItems:
        """The function that reads these columns, or all, of rows with values of any length."""
        names = self.fields if columns is None else [column.name for column in columns]
        return TakeItems(laid.plan(names), self._read)

    def _draw_wanted(self, wanted: tuple[Any, ...]) -> Batch:
        """A batch described by the tuple of ``_followers.consistently``."""
        batch: Batch
        attempt = wanted if self._laid is None else partial(self._draw_items, *wanted)
        rows, batch = self._at_gate(wanted[0], consistently, self.ring, self._shards, attempt)
        self._note_draw(rows, wanted[-1] is None)
        return batch

    def _draw_items(
        self,
        n: int,
        options: SampleOptions,
        columns: tuple[Column, ...] | None,
        arrays: list[Any] | None,
        take: Callable[..., Batch | None],
        starts: Rows | None,
    ) -> tuple[RowNumbers, Batch] | None:
        """One attempt to draw rows with values of any length; None if some were overwritten."""
        rows, extra = self._shards.choose(starts, n, options)
        batch = take(rows, arrays, None, columns)
        if batch is None:
            return None
        batch.update({name: aligned(values) for name, values in extra.items()})
        return rows, batch

    def _draw_rows(
        self,
        n: int,
        options: SampleOptions,
        starts: Rows | None,
        take: Callable[..., Batch],
        columns: tuple[Column, ...] | None,
        _: Any,
    ) -> Batch:
        return self._draw_wanted((n, options, columns, None, take, starts))

    def _at_gate(self, n: int, draw: Callable[..., Found], *arguments: Any) -> Found:
        """Draw a batch of n items with the lock held, when the limiter allows it."""
        shards = self._shards
        try:
            if shards.gate is not None:
                shards.check_process()
                batch: Found = shards.gate.run(n, shards.locked, draw, *arguments)
            else:
                with shards.lock:
                    batch = draw(*arguments)
        except NotEnoughDataError as error:
            raise shards.explained(error) from None
        return batch

    def _note_draw(self, rows: RowNumbers, of_all: bool) -> None:
        self._draw_counts.note_of(self.ring, rows, of_all)

    def _stats(self) -> dict[str, float]:
        with self._shards.lock:
            self._shards.follow()
            counts = self.ring.counts() | self._draw_counts.stats()
            found: dict[str, float] = counts | self._sizes | self.sampler._stats()
            if self._laid is not None:
                readers = [reader for reader in self._shards.readers if reader is not None]
                shards = [(reader._arena, reader.ring.first) for reader in readers]
                found |= stats_of_items(self._layout, len(self._shards.readers), shards)
            gate = self._shards.gate
            return found if gate is None else found | stats(gate.counters)

    def consistently(self, attempt: Callable[[], tuple[RowNumbers, Found] | None]) -> Found:
        """See ``ReplayBuffer.consistently``.

        ``attempt`` draws by ``FollowedShards.choose``, which avoids rows that are overwritten soon.
        If a signal handler draws during an attempt, an error of the attempt may come from rows that
        were overwritten.
        """
        shards = self._shards
        with shards.lock:
            return consistently(shards.group, shards, attempt)[1]

    def _read_chosen(self, choose: Callable[[], RowNumbers], names: Names) -> Batch:
        """The values of rows that ``choose`` returns, all of one moment.

        ``choose`` respects ``Followers.limits``.
        """
        columns = self._columns if names is None else read_columns(names, self._columns)
        read: Callable[..., Batch | None] = self._read
        if self._laid is not None:
            read = self._taker(self._laid, columns)

        def attempt() -> tuple[RowNumbers, Batch] | None:
            rows = choose()
            batch = read(rows, None, None, columns)
            return None if batch is None else (rows, batch)

        return self.consistently(attempt)

    def _to_report(self) -> Iterator[tuple[str, Any, Any]]:
        """A copy of one shard after the other, with the weights of this learner."""
        shards = self._shards
        for number, path in enumerate(shards.paths):
            copied = copy_of(path, number, shards.options)
            if copied is None:
                continue
            with shards.lock:
                shards.follow()  # all rows of the copy are known then
                if shards.weights is not None:
                    rows = self.ring.name(number, np.arange(copied.ring.capacity))
                    kind = type(
                        type(self.sampler).__name__, (KnownWeights,), {}
                    )  # named in the report
                    copied.sampler = kind(shards.weights.get(rows))
            yield path.name, copied, None

    def _check_epoch(self) -> None:
        raise TypeError(
            "a learner has no epoch, as actors replace its rows; each row once, at one moment, is "
            "sample(len(learner), replace=False)"
        )

    def view(self, *layers: Layer) -> LearnerView:
        """A view of the rows of all shards: see ``ReplayBuffer.view``.

        Parameters
        ----------
        *layers : NStep, Sequences, FrameStacks or Hindsight
            Layers as for ``ReplayBuffer.view``. Each item lies in one stream of one shard. For
            example, a sequence never continues in another shard.

        Returns
        -------
        LearnerView
            A view that draws from all shards, with the sampler and generator of this learner.

        Raises
        ------
        TypeError, ValueError
            An argument is not a layer, is given twice, or does not fit the fields.

        Notes
        -----
        Cost of a batch: the cost with a view of one buffer, and a look at each shard.

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
        return LearnerView(cast("Any", self), layers)

    # ------------------------------------------------------------------ priorities and state

    @if_prioritized
    def update_priorities(self, indexes: ArrayLike, priorities: ArrayLike) -> None:
        """Set the priorities of drawn rows, such as the absolute TD errors of a batch.

        The priorities of other learners do not change. Only learners with a prioritized
        ``sampler`` have this method.

        Parameters
        ----------
        indexes : array_like of int, shape (n,)
            ``batch["indexes"]``, of one batch or of several, or parts of them. Rows that were
            overwritten after the draw are skipped, and counted in ``SharedReplay.members``. Of
            duplicate indexes the last one counts.
        priorities : array_like, shape (n,) or (n, 1)
            Priority of each row, finite and at least 0.

        Raises
        ------
        TypeError
            ``indexes`` are not integers, or ``priorities`` are not numbers.
        ValueError
            The numbers of indexes and priorities differ. Or a priority is negative, infinite, NaN
            or too large.
        IndexError
            An index never named a row. After any of these errors all priorities are unchanged.

        Notes
        -----
        Cost: the cost of ``PrioritizedReplayBuffer.update_priorities``, and a look at each shard.
        """
        shards = self._shards
        with shards.lock:
            shards.follow()
            shards.sampler.update_priorities(indexes, priorities)
            weights = shards.weights
            assert weights is not None
            self._counts[GIVEN], self._counts[LATE] = weights.given, weights.late

    def _check_update(
        self, indexes: NDArray[np.int64], priorities: NDArray[np.float64]
    ) -> NDArray[np.intp]:
        shards = self._shards
        with shards.lock:
            shards.follow()
            shards.sampler.read_priorities(priorities)
            return shards.group.without_row(np.ascontiguousarray(indexes))

    def _check_draw(self, n: int, options: SampleOptions) -> None:
        with self._shards.lock:
            found = len(self)
            if not options.replace and n > found:
                raise self._shards.explained(
                    NotEnoughDataError(f"cannot sample {n} distinct rows: the shards hold {found}")
                )
            if self.has_priorities:
                self._shards.sampler.check_draw(n, **options.of_sampler)

    # ------------------------------------------------------------------ what views read

    def _starts(self, **options: Any) -> StartsTogether:
        """The rows of all shards at which items can start: see ``Starts``."""
        shards = self._shards
        return StartsTogether(shards.group, lambda number: shards.reader(number)._starts(**options))

    def _check_indexes(self) -> None:
        if "indexes" in self.fields:
            raise ValueError("indexes: there is a field of this name")

    # ------------------------------------------------------------------ state

    def __len__(self) -> int:
        """Number of rows of all shards that can be drawn, apart from conditions of views."""
        with self._shards.lock:
            self._shards.follow()
            return len(self._shards.group)

    def _save(self) -> SavedLearner:
        """A copy of the learner's own state, as before batches that were drawn ahead."""
        shards = self._shards
        with shards.lock:
            shards.follow()
            rng = copy.deepcopy(without_prefetch(self.rng))
            sampler = copy.deepcopy(without_prefetch(self.sampler))
            read = np.frombuffer(shards.group.priorities_read or b"", np.int64).tolist()
            return SavedLearner(rng, sampler, shards.save(), read)

    def _restore(self, saved: SavedLearner, *, is_same_replay: bool) -> None:
        """Use the saved priorities of rows; of the same replay also their counts."""
        self._shards.restore(saved.rows)
        if self._shards.group.priorities_read is not None and is_same_replay:
            read = np.array(getattr(saved, "heard", ()), np.int64)
            self._shards.group.priorities_read = read.tobytes()

    def mass(self) -> Mass:
        """The mass of all rows, for a program that draws from several learners as from one.

        Each item comes from a learner with a probability in proportion to its mass. A learner whose
        sampler has ``probabilities`` and ``as_masses`` gives the mass of each item of a batch. So
        the probability of an item over all learners is its mass by the sum of all masses. A view
        has this method, too.

        Examples
        --------
        >>> from cpprb_like.processes import SharedReplay
        >>> replay = SharedReplay(100, {"x": {"shape": ()}}, writers=1)
        >>> with replay.actor() as actor:
        ...     actor.add(x=[1, 2, 3])
        0
        >>> replay.learner(seed=0).mass().total
        3.0
        """
        return mass_of(self._shards, None)

    @property
    def late_updates(self) -> int:
        """Number of priorities that came after their row was gone, first priorities included."""
        with self._shards.lock:
            self._shards.follow()
            weights = self._shards.weights
            return 0 if weights is None else weights.late

    @if_prioritized
    def raise_max_priority(self, priority: float) -> None:
        """Raise the priority of new rows to this one, if it is greater than that of all rows.

        Another learner of the same program may have given the greatest priority.
        """
        shards = self._shards
        assert shards.weights is not None
        with shards.lock:
            weight = float(shards.sampler._weigh(np.array([priority]))[0])
            shards.weights.raise_largest(priority, weight)

    @if_prioritized
    def get_max_priority(self) -> float:
        """The priority of new rows: the greatest that this learner knows, 1.0 at first.

        Only learners with priorities have this method.
        """
        with self._shards.lock:
            self._shards.follow()
            found: float = self._shards.sampler.get_max_priority()
            return found

    def close(self) -> None:
        """Leave the replay, and free the number of this learner. Do not use it afterwards."""
        self._membership.release()

    def __repr__(self) -> str:
        return f"Learner(number={self.number}, sampler={self.sampler!r}, stored={len(self)})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a learner belongs to its process; hand on the SharedReplay instead")


class KnownWeights(Uniform):
    """The weights of the rows of a copied shard, by slot, as a learner knows them."""

    def __init__(self, weights: NDArray[np.float64]) -> None:
        self._weights = weights

    def row_weights(self, slots: NDArray[np.intp]) -> NDArray[np.float64]:
        return self._weights[slots]


class OpenedShards(Opened):
    """The layers of a view over the rows of all shards, with numbers of rows in place of slots."""

    def __init__(self, learner: Any, layers: tuple[Layer, ...]) -> None:
        self._learner: Learner = learner
        self._shards: FollowedShards = learner._shards
        self._bits = self._shards.group.bits
        super().__init__(learner, layers)

    def _ruled(self, rules: Rules) -> RuledTogether:
        find = partial(self._ruled_of, self._shards, self.complete, rules)
        return RuledTogether(self._shards.group, self.complete, rules, find)

    @staticmethod
    def _ruled_of(shards: FollowedShards, complete: Any, rules: Rules, number: int) -> Ruled:
        """The rows of a shard to which rules give a mass."""
        reader = shards.reader(number)
        whole = WholeRowsOf(reader, shards.group)
        return Ruled(reader.ring, complete.in_ring(number, reader.ring), rules, number, whole)

    def _splitter(self, **options: Any) -> Callable[[RowNumbers], PartsOfBatch]:
        return partial(_split, self._shards, self._learner._starts(**options))

    def draw(self, n: int, options: SampleOptions) -> tuple[RowNumbers, Extra]:
        return self._shards.choose(None if self.draws_all else self.starts, n, options)

    def _indexes(self, slots: RowNumbers) -> NDArray[np.int64]:
        return self._shards.group.handles(slots)

    def others(self, slots: RowNumbers, rng: np.random.Generator, strategy: int) -> RowNumbers:
        """See ``Opened.others``: rows of the same shard."""
        shards = self._shards
        found = np.empty(len(slots), np.intp)
        for number, places, own in shards.group.split(slots):
            chosen = choose_rows(shards.reader(number)._episodes, own, rng, strategy)
            found[places] = shards.group.name(number, chosen)
        return found

    def all_drawable(self, slots: RowNumbers) -> bool:
        """See ``Opened.all_drawable``; overwritten rows are left out first."""
        self._shards.leave_out_lost()
        return super().all_drawable(slots)


def _split(shards: FollowedShards, shapes: StartsTogether, rows: RowNumbers) -> PartsOfBatch:
    """The rows of a batch by shard; an empty batch has one empty part."""
    parts: PartsOfBatch = [
        (shapes.of(number), own, places) for number, places, own in shards.group.split(rows)
    ]
    if not parts:
        known = next(k for k, reader in enumerate(shards.readers) if reader is not None)
        return [(shapes.of(known), rows, rows)]
    return parts


class LearnerView(View):
    """A view of the rows of all shards: ``Learner.view``. ``buffer`` is the learner."""

    _OPENED = OpenedShards

    def _draw(
        self, plan: ReadPlan, choose: Choose, n: int | None, arrays: Batch | None, located: bool
    ) -> Batch:
        draw = super()._draw
        found: Batch = self.buffer._at_gate(n, draw, plan, choose, n, arrays, located)
        return found

    def mass(self) -> Mass:
        """The mass of all items of the view: see ``Learner.mass``."""
        now = self._now
        return mass_of(self.buffer._shards, None if now.draws_all else now.starts)

    def explain(self, index: int) -> NoReturn:
        """Refused, as a learner has no places of rows; a view of a buffer has this method."""
        raise TypeError(f"explain: a learner knows rows of shards by handles alone, got {index!r}")

    def _check_epoch(self) -> None:
        self.buffer._check_epoch()

    def __repr__(self) -> str:
        return f"LearnerView({', '.join(map(repr, [self.buffer, *self.layers]))})"
