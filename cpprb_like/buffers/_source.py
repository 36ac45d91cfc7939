"""``Source``: base class of the objects that batches are drawn from."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from copy import copy, deepcopy
from functools import partial
from types import MethodType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Protocol,
    SupportsIndex,
    TypedDict,
    TypeVar,
    overload,
)

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cpprb_like._arguments.checks import as_int
from cpprb_like._fields.schema import ColumnSpec
from cpprb_like._machine.at_once import at_once, set_generator
from cpprb_like._machine.generators import Seed, generator
from cpprb_like._machine.prefetch_state import (
    States,
    halted,
    state_before,
    state_of_generator,
    without_prefetch,
)
from cpprb_like.buffers import _reported
from cpprb_like.buffers._batches import Batch, Batches
from cpprb_like.buffers._entry import DEFAULTS, SampleOptions
from cpprb_like.buffers._epochs import EpochBatches, EpochOrder, EpochSlice
from cpprb_like.checkpoint._saved import Checkpointed
from cpprb_like.samplers._base import Sampler
from cpprb_like.schedules import Schedule, check

Method = TypeVar("Method", bound=Callable[..., Any])
Made = TypeVar("Made")  # a batch that a function of the caller makes

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from cpprb_like._arguments.arrays import Slots
    from cpprb_like._core import Ring
    from cpprb_like._fields.derived import NStepReturns
    from cpprb_like._fields.schema import Schema
    from cpprb_like._rows.column import Column
    from cpprb_like._rows.episode_index import EpisodeIndex
    from cpprb_like.buffers._tensors import Conversion, TensorBatch, To, ToName
    from cpprb_like.samplers._rows import Rows
    from cpprb_like.views._items_of_batch import ItemPlan

    class BatchesOptions(TypedDict, total=False):
        """Options of ``Source.batches``, for its overloads."""

        beta: float | Schedule | None
        replace: bool
        indexes: bool
        fields: str | Iterable[str] | None
        device: Any
        prefetch: int
        items: Mapping[str, int] | None

    class EpochOptions(TypedDict, total=False):
        """Options of ``Source.epoch``, for its overloads."""

        shuffle: bool
        drop_last: bool
        fields: str | Iterable[str] | None
        shard: tuple[int, int]
        seed: Seed
        device: Any
        prefetch: int

    def if_prioritized(method: Method) -> Method:
        """For type checkers: all objects of a class have the method."""

else:

    class if_prioritized:  # noqa: N801 (a decorator)
        """Descriptor of a method that an object has only if its ``has_priorities`` is true."""

        def __init__(self, method: Callable[..., Any]) -> None:
            self.method = method

        def __get__(self, source: Any, cls: type) -> Any:
            if source is None:
                return self.method
            if not source.has_priorities:
                raise AttributeError(
                    f"{cls.__name__!r} object has no attribute {self.method.__name__!r}: rows have "
                    "priorities where the sampler is Prioritized, RankBased or another such one"
                )
            return MethodType(self.method, source)


__all__ = [
    "Batch",
    "ColumnSpec",
    "ModelledSource",
    "MomentSource",
    "Source",
    "if_prioritized",
    "order_generator",
]

MOST_AHEAD = 1000  # batches of ``prefetch``
# Names of attributes of sources: objects that they draw from, and counts that draws change.
DRAWN_FROM = ("rng", "sampler", "buffer", "_source", "_sources")
COUNTS = ("draws", "_numbers")
T = TypeVar("T")


class Source(Checkpointed):
    """Source of batches: a buffer, a view, a mixture, or a learner of a shared replay.

    All sources have these methods, so code that learns from batches works with each of them.
    """

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
        """Draw a batch.

        Parameters
        ----------
        batch_size : int
            Items to draw, at least 0: rows, or the items of a view, such as sequences.
        beta : float or schedule, optional
            Importance-sampling exponent, at least 0, in place of the sampler's own. 1 corrects
            fully. Only sources with priorities take it. The time of a schedule is the number of
            batches drawn so far.
        replace : bool
            Whether an item may be drawn more than once. If false, distinct sequences start at
            different rows.
        out : dict of (ndarray or tensor), optional
            Arrays to write into, or tensors on the CPU, such as PyTorch's: dtype of each field,
            shape ``(batch_size, *shape)`` as in ``columns``, C-contiguous and writeable. Further
            columns are fresh arrays, added to the dict under their names. For values of any length
            see ``Padded`` and ``Packed``.
        indexes : bool
            Add the column ``indexes``, shape ``(batch_size,)``, int64: permanent handles of the
            drawn rows, or of the first rows of sequences, for ``update``. For the other rows of
            sequences see ``Sequences``. For a buffer, handles modulo ``ring.span`` are slots; the
            span is ``capacity`` unless both ``Nstep`` and ``n_envs`` are used. With priorities,
            batches always have the column; ``check_for_update`` makes it handles.
        fields : str or iterable of str, optional
            The fields to read; by default all. Further columns are in each batch, such as
            ``weights`` and those of the layers of a view, which may be named too.

        Returns
        -------
        dict of ndarray
            Each field, shape ``(batch_size, *shape)``: ``out``, or fresh arrays that nothing else
            writes to. With priorities also the importance-sampling ``weights``, shape
            ``(batch_size,)``, float32, at most 1.0; and ``indexes``, shape ``(batch_size,)``,
            int64, for ``update_priorities``. Layers of a view, and mixtures, add further columns.
            Values of any length are padded to the longest, with a mask such as ``T_mask``, unless
            the layer ``Packed`` of a view packs them.

        Raises
        ------
        NotEnoughDataError
            No item can be drawn, or fewer than ``batch_size`` and ``replace`` is false; or all
            priorities are 0. It is a ``ValueError``.
        TypeError, ValueError
            ``batch_size`` is not an integer of at least 0. ``out`` does not fit. ``fields`` is
            empty, has an unknown name, or a name twice. ``beta`` is not a number of at least 0, or
            the source has no priorities. Or ``indexes`` is true, and the source has priorities
            without ``check_for_update``.
        MemoryError
            The batch does not fit into memory.

        Notes
        -----
        Cost: proportional to ``batch_size``, for any number of rows; with priorities, times the
        logarithm of that number. The notes of ``View``, ``Mixture``, ``Learner`` and
        ``RateLimited`` describe further columns, errors and costs.

        Examples
        --------
        >>> from cpprb_like import ReplayBuffer
        >>> rb = ReplayBuffer(10, {"rew": {"shape": ()}}, seed=0)
        >>> rb.add(rew=[1, 2, 3])
        0
        >>> sorted(rb.sample(3, replace=False)["rew"].tolist())
        [1.0, 2.0, 3.0]
        """
        if beta is None and replace is True and out is None and not indexes and fields is None:
            return self._sample(batch_size, DEFAULTS)
        if beta is not None:
            self._check_beta(beta)
        options = SampleOptions(beta, bool(replace), out, bool(indexes), fields)
        return self._sample(batch_size, options)

    def _sample(self, batch_size: int, options: SampleOptions) -> Batch:
        """A batch as ``sample`` returns it; ``options.beta`` was checked."""
        raise NotImplementedError

    def _sample_into(self, batch_size: int, options: SampleOptions) -> Batch:
        """``_sample`` with ``out``, of rows with values of any length.

        The lengths of a batch are known when it is drawn, so it is copied then.
        """
        n, names = self._read_batch_size(batch_size, options.fields)
        plan, wanted, out = self._item_plan(names), self._field_specs(names), options.out
        assert plan is not None
        assert out is not None
        arrays = plan.laid.check_out(out, n, wanted)
        batch = self._sample(n, options.but(fields=names, out=None))
        return plan.laid.put_out(batch, out, arrays, wanted)

    @overload
    def batches(
        self, batch_size: int | None = None, *, to: None = None, **options: Unpack[BatchesOptions]
    ) -> Batches[Batch]: ...
    @overload
    def batches(
        self, batch_size: int | None = None, *, to: ToName, **options: Unpack[BatchesOptions]
    ) -> Batches[TensorBatch]: ...
    @overload
    def batches(
        self,
        batch_size: int | None = None,
        *,
        to: Callable[[Batch], Made],
        **options: Unpack[BatchesOptions],
    ) -> Batches[Made]: ...
    @overload
    def batches(
        self, batch_size: int | None = None, *, to: To | None, **options: Unpack[BatchesOptions]
    ) -> Batches[Any]: ...
    def batches(
        self,
        batch_size: int | None = None,
        *,
        items: Mapping[str, int] | None = None,
        beta: float | Schedule | None = None,
        replace: bool = True,
        indexes: bool = False,
        fields: str | Iterable[str] | None = None,
        to: To | None = None,
        device: Any = None,
        prefetch: int = 0,
    ) -> Batches[Any]:
        """Endless iterator over batches, each as ``sample`` draws it.

        Parameters
        ----------
        batch_size : int
            Items of a batch, at least 1. With ``items`` optional: the most rows of a batch.
        items : dict of str to int, optional
            Budget of a batch, for values of any length: by named axis the most items, at least 1,
            such as ``{"T": 65_536}``. Rows are drawn until the next one does not fit. It is the
            first one of the next batch. A row with more items is a batch by itself. Padded rows
            count as often as the longest of the batch has items; see the notes.
        beta, replace, indexes, fields
            As for ``sample``.
        to : {"numpy", "torch", "jax"} or callable, optional
            Type of a batch. A name gives a ``TensorBatch`` of NumPy arrays, PyTorch tensors or JAX
            arrays: a dict whose columns are attributes too. A function gets the dict of ``sample``
            and returns the batch. By default the batch is that dict. A column stays a NumPy array
            if the library lacks its dtype: objects, strings, and 64-bit numbers if JAX would round
            them to 32 bits. With ``prefetch`` the thread calls the function: settings of a library
            for one thread, such as ``with jax.enable_x64()``, do not apply there.
        device : object, optional
            Device as for ``torch.device``, or a JAX device or platform; by default the CPU.
        prefetch : int
            Batches that a thread makes ahead, 0 to 1000, while the caller uses earlier batches.

        Returns
        -------
        Batches
            An iterator. Its ``next`` raises the errors of ``sample``, such as
            ``NotEnoughDataError``, and can then be called again. ``close()``, or a ``with``
            statement, ends the thread.

        Raises
        ------
        TypeError, ValueError
            ``batch_size`` is not an integer of at least 1; ``fields`` as for ``sample``; ``beta``
            without priorities; or ``to``, ``device`` or ``prefetch`` is invalid. Or ``items`` names
            no axis of the fields; or comes with ``replace=False``, or with importance-sampling
            weights that are relative to those of their batch.
        ImportError
            The package of ``to`` is not installed.

        Notes
        -----
        Cost: ``sample``, and for each column a microsecond for PyTorch on the CPU, or about 25 for
        JAX, without a copy; with ``items`` also 0.1 to 0.3 ms, and a copy of padded batches. With
        ``prefetch`` the thread and the caller take turns to run Python; copies of large batches run
        in parallel.

        With ``prefetch`` the batches and their order are the same as without, if nothing is added,
        changed or drawn in between. A batch is drawn up to ``prefetch`` requests before its own. So
        it may lack rows that were added, and priorities that were updated, during the last
        ``prefetch`` batches. ``indexes`` are permanent handles, so late updates of lost rows are
        dropped: with ``indexes=True``, and for priorities with ``check_for_update=True``.

        A save, pickle or copy while batches wait has the state before the draw of the first one,
        with the current rows and priorities. So no batch is lost.

        With ``items`` the source draws about as many rows as the last batches had, and keeps those
        that did not fit for the next batch, as they were when drawn, even if they are gone by then
        or a rule such as ``Newest`` leaves them out. So each drawn row comes once, long ones too.
        Quotas of ``Share`` and mixtures hold for draws, and for batches on average. Packed rows
        count by their items, without a filler; padded ones by the padded length; of a sequence all
        rows count; an item of the batch counts as 1 at least. ``stats``, limiters and times of
        schedules count the draws. Rows that were kept are not in a save or a copy of the source;
        ``clear``, ``rewind``, ``reseed``, a restored state and the end of the iterator drop them.
        With ``AtMost`` they are then as not drawn, and if too few rows are left that are not used
        up, a batch has those that are there.

        Examples
        --------
        >>> from cpprb_like import ReplayBuffer
        >>> rb = ReplayBuffer(10, {"rew": {"shape": ()}}, seed=0)
        >>> rb.add(rew=[1, 2, 3, 4, 5])
        0
        >>> for step, batch in zip(range(2), rb.batches(4)):
        ...     step, batch["rew"].shape
        (0, (4,))
        (1, (4,))
        """
        if batch_size is None and items is None:
            raise TypeError("batch_size: expected the items of a batch, or a budget items=")
        n, names = self._read_epoch_size(1 if batch_size is None else batch_size, fields)
        ahead, made = _read_prefetch(prefetch), _conversion(to, device)
        self._check_beta(beta)
        options = SampleOptions(beta, bool(replace), None, bool(indexes), names)
        if items is not None:
            from cpprb_like.buffers._budget import BudgetDraws  # noqa: PLC0415 (on demand)

            drawn = BudgetDraws(self, options, items, None if batch_size is None else n)
            draws = partial(_endless, drawn.next_ahead if ahead else drawn.next)
            found = self._iterator(draws, made, ahead, drawn.forget, drawn.forget)
            if not ahead:
                found.at_end(drawn.end)
            return found
        draw = partial(self.sample, n, **options.keywords)
        if made is not None and self._item_plan(names) is None:
            draw = partial(_into_room, draw, made)
        return self._iterator(partial(_endless, draw), made, ahead)

    @overload
    def epoch(
        self, batch_size: int, *, to: None = None, **options: Unpack[EpochOptions]
    ) -> Batches[Batch]: ...
    @overload
    def epoch(
        self, batch_size: int, *, to: ToName, **options: Unpack[EpochOptions]
    ) -> Batches[TensorBatch]: ...
    @overload
    def epoch(
        self, batch_size: int, *, to: Callable[[Batch], Made], **options: Unpack[EpochOptions]
    ) -> Batches[Made]: ...
    @overload
    def epoch(
        self, batch_size: int, *, to: To | None, **options: Unpack[EpochOptions]
    ) -> Batches[Any]: ...
    def epoch(
        self,
        batch_size: int,
        *,
        shuffle: bool = True,
        drop_last: bool = False,
        fields: str | Iterable[str] | None = None,
        shard: tuple[int, int] = (0, 1),
        seed: Seed = None,
        to: To | None = None,
        device: Any = None,
        prefetch: int = 0,
    ) -> Batches[Any]:
        """One epoch: each item that can be drawn at its start comes once, in batches.

        A batch is read on request. An overwritten row is replaced by the new row in its slot, or
        left out if the new row cannot be drawn. So a batch may have fewer rows, and none if all of
        them were deleted. The number of batches stays the same. The order is fixed at the start:
        other draws and ``reseed`` do not change it.

        Parameters
        ----------
        batch_size : int
            Items of a batch, at least 1; the last one may be smaller.
        shuffle : bool
            Whether the order is random. If not, items come in the order of slots.
        drop_last : bool
            Leave a smaller last batch out. With several parts, a batch is left out of all parts if
            it would be smaller than ``batch_size`` in one of them. So all parts have the same
            number of batches, as ``DistributedDataParallel`` needs.
        fields : str or iterable of str, optional
            The fields to read; by default all.
        shard : (int, int)
            ``(i, k)``: part i of k, counted from 0. A part has every k-th item of the order. The
            parts of workers with the same rows and the same ``seed`` are disjoint. Together they
            are an epoch, except for ``drop_last``. Their sizes differ by one item at most, so one
            part may have one batch more than another.
        seed : int, SeedSequence, BitGenerator, Generator, optional
            Seed of the random order. By default the source's generator gives one at the start.
        to, device, prefetch
            As for ``batches``.

        Returns
        -------
        Batches
            An iterator over batches as of ``sample``, without the columns of a sampler.

        Raises
        ------
        TypeError, ValueError
            ``batch_size`` is not an integer of at least 1; ``fields`` as for ``sample``; ``shard``
            is not such a pair; ``to``, ``device`` or ``prefetch`` is invalid; or the source is a
            mixture.
        ImportError
            The package of ``to`` is not installed.
        RuntimeError
            ``next`` raises it if the buffer was cleared or initialised anew. The epoch ends then.
            After any other error, such as one in a function of a view, ``next`` continues with the
            next batch. The failed batch is not repeated.

        Notes
        -----
        Cost: the draws of the batches. The first batch allocates 8 bytes for each row, 16 if
        shuffled, in under 1 ms for a million rows. For a view whose layers need rows around the
        drawn one, the first batch also checks all rows, some 20 ns each. Each part of k costs the
        random order of all rows.

        Examples
        --------
        >>> from cpprb_like import ReplayBuffer
        >>> rb = ReplayBuffer(10, {"rew": {"shape": ()}})
        >>> rb.add(rew=[1, 2, 3, 4, 5])
        0
        >>> [batch["rew"].tolist() for batch in rb.epoch(2, shuffle=False)]
        [[1.0, 2.0], [3.0, 4.0], [5.0]]
        >>> [batch["rew"].tolist() for batch in rb.epoch(2, shuffle=False, shard=(1, 2))]
        [[2.0, 4.0]]
        """
        return self._batches_of(
            shard,
            (0, 1),
            batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            fields=fields,
            seed=seed,
            to=to,
            device=device,
            prefetch=prefetch,
        )

    def _batches_of(
        self,
        shard: tuple[int, int],
        deal: tuple[int, int],
        batch_size: int,
        *,
        shuffle: bool,
        drop_last: bool,
        fields: str | Iterable[str] | None,
        seed: Seed,
        to: To | None,
        device: Any = None,
        prefetch: int = 0,
    ) -> Batches[Any]:
        """See ``epoch``. With ``deal`` (i, k), only batches i, i + k, ... of the part."""
        part = EpochSlice(*_read_shard(shard), *deal)
        n, names = self._read_epoch_size(batch_size, fields)
        ahead, made = _read_prefetch(prefetch), _conversion(to, device)
        self._check_epoch()
        rng = None if seed is None else generator(seed)
        begin = partial(self._begin_epoch, names, shuffle, rng)
        epoch = EpochBatches(begin, n, drop_last, part, ahead)
        return self._iterator(epoch.__next__, made, ahead, epoch.back)

    def _iterator(
        self,
        draw: Callable[[], Batch],
        made: Conversion | None,
        ahead: int,
        back: Callable[[int], None] | None = None,
        end: Callable[[], None] | None = None,
    ) -> Batches[Any]:
        """An iterator over draws; a thread draws ``ahead`` batches in advance."""
        if not ahead:
            return Batches(draw, made, None)
        from cpprb_like.buffers._prefetch import Prefetcher  # noqa: PLC0415 (on demand)

        make: Callable[[Batch], Any] = (lambda batch: batch) if made is None else made.make
        return Batches(draw, made, Prefetcher(draw, make, ahead, self._draw_states, back, end))

    def _check_epoch(self) -> None:
        """Raise ``TypeError`` if this source has no epochs."""

    def _begin_epoch(
        self, fields: tuple[str, ...] | None, shuffle: bool, rng: np.random.Generator | None
    ) -> EpochOrder | None:
        """Order of a new epoch, drawn with ``rng``, or see ``order_generator``."""
        raise NotImplementedError

    def reseed(self, seed: int | np.random.SeedSequence) -> None:
        """Seed the generators of the source for all further draws.

        Parameters
        ----------
        seed : int or SeedSequence
            At least 0. A buffer then draws as a new buffer with this ``seed``. If a source has
            several generators, such as a mixture, each gets a seed derived from this one.

        Raises
        ------
        TypeError, ValueError
            ``seed`` is invalid; nothing was changed.

        Notes
        -----
        Waiting batches, as with ``prefetch``, are dropped and count as drawn. The next batch
        follows from the seed. Batches of an epoch are read again, so that each item comes once;
        random choices of a view in them follow from the seed. The position of a sampler such as
        ``Recency`` is kept. NumPy's global state, from which ``LegacyUniform`` draws, is kept too.
        Sources that share a generator share its numbers.

        Examples
        --------
        >>> from cpprb_like import ReplayBuffer
        >>> rb = ReplayBuffer(10, {"rew": {"shape": ()}})
        >>> rb.add(rew=[1, 2, 3, 4, 5])
        0
        >>> rb.reseed(1)
        >>> first = rb.sample(4)["rew"].tolist()
        >>> rb.reseed(1)
        >>> rb.sample(4)["rew"].tolist() == first
        True
        """
        if isinstance(seed, np.random.SeedSequence):
            seed = deepcopy(seed)  # ``spawn`` changes the object
        else:
            seed = np.random.SeedSequence(as_int("seed", seed, 0))
        elements = {id(element): element for element, _ in self._draw_states()}
        drawing = [one for one in elements.values() if isinstance(one, np.random.Generator)]
        seeds = [seed] if len(drawing) == 1 else seed.spawn(len(drawing))
        states = [
            type(rng.bit_generator)(one).state for rng, one in zip(drawing, seeds, strict=True)
        ]
        changes: list[Callable[[], Any]] = [
            partial(set_generator, rng, dict(state))
            for rng, state in zip(drawing, states, strict=True)
        ]
        with halted(elements.values()):
            at_once(changes)

    def _draw_states(self) -> States:
        """Objects that a draw changes, with the state of a generator or the changed attributes."""
        own = {name: copy(value) for name, value in vars(self).items() if name in COUNTS}
        if own:
            yield self, own
        for name in DRAWN_FROM:
            part = getattr(self, name, None)
            if isinstance(part, np.random.Generator):
                yield part, state_of_generator(part, live=True)
            elif isinstance(part, Sampler):
                state = part.draw_state()
                if not isinstance(state, dict):
                    raise TypeError(f"{part!r}.draw_state: expected a dict, got {state!r}")
                if state:
                    yield part, state
            elif part is not None:
                for source in part.values() if isinstance(part, dict) else [part]:
                    yield from source._draw_states()

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """``object.__reduce_ex__`` with the state before the draws of waiting batches."""
        reduced = super().__reduce_ex__(protocol)
        if isinstance(reduced, str):
            return reduced
        make, arguments, state, *others = reduced
        state = state | (state_before(self) or {})
        if "rng" in state:
            state["rng"] = without_prefetch(state["rng"])
        return make, arguments, state, *others

    def stats(self) -> dict[str, float]:
        """Counts and measures of rows and draws, for logs.

        Returns
        -------
        dict of (int or float)
            Fresh, flat, by name:

            - ``rows``: rows that can be drawn. ``capacity``: greatest number of these.
            - ``bytes``: memory of rows and sampler, as ``nbytes``.
            - ``adds``: rows written since the last ``clear``, with absent rows. ``episodes``:
              episodes that ended since then; after a load, ended episodes in the buffer.
            - ``draws``: batches drawn by ``sample`` and ``batches``. ``samples``: their items.
              Draws of views count at their buffer; an ``epoch`` does not count.
            - ``age_at_draw_mean``, ``_p50``, ``_p90``, ``_p99``, ``_max``: age of drawn rows, in
              rows that were added since, over the last 1,024 to 2,048 draws. One row of each batch
              counts, the first row of a sequence. Quantiles are interpolated within an eighth to a
              quarter. Missing before the first draw.
            - ``never_drawn``: expected share of the rows that were never drawn. Only while all
              draws so far were uniform over all rows: without priorities, and without views that
              leave rows out. Missing before a draw.
            - ``updates``: priorities that ``update_priorities`` set. ``late_updates``: priorities
              whose rows were gone. Only with priorities.
            - ``left_for_room``: rows that left early since the last ``clear``, as the room of a
              named axis was full. ``items of T`` and ``room of T``: items in use of each axis, and
              the most. Only with values of any length.
            - With a limiter ``inserts``, ``waits_for_inserts``, ``waits_for_samples``,
              ``seconds_waiting_for_inserts`` and ``seconds_waiting_for_samples``: see ``limiters``.
              ``samples`` is then the count of the limiter.

            A mixture has ``rows``, ``draws`` and the entries of each source after its name and a
            dot, as in ``"demos.rows"``. See ``SharedReplay`` and ``Learner`` for their entries.

        Notes
        -----
        Cost: 1 to 2 microseconds for a buffer. The method is thread-safe. Counts of draws are not
        saved, so they begin with the object.

        Examples
        --------
        >>> from cpprb_like import ReplayBuffer
        >>> rb = ReplayBuffer(100, {"rew": {"shape": ()}}, seed=0)
        >>> rb.add(rew=range(10))
        0
        >>> _ = rb.sample(4), rb.sample(4)
        >>> found = rb.stats()
        >>> found["rows"], found["capacity"], found["draws"], found["samples"]
        (10, 100, 2, 8)
        """
        return self._stats()

    def _stats(self) -> dict[str, float]:
        """``stats`` of this source."""
        raise NotImplementedError

    if TYPE_CHECKING:  # sources with priorities have this method: see ``if_prioritized``

        def update_priorities(self, indexes: ArrayLike, priorities: ArrayLike) -> None:
            """Set the priorities of drawn rows, by ``batch["indexes"]``."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields; batches may have further columns."""
        raise NotImplementedError

    @property
    def has_priorities(self) -> bool:
        """Whether rows are drawn by priority: then batches have ``weights`` and ``indexes``."""
        raise NotImplementedError

    @property
    def columns(self) -> Mapping[str, ColumnSpec]:
        """The columns of a batch, as far as they are known before a draw."""
        return {**self._field_specs(None), **self._further_specs()}

    def _field_specs(self, names: tuple[str, ...] | None) -> dict[str, ColumnSpec]:
        """Dtypes and shapes of these fields, which exist, or of all fields."""
        raise NotImplementedError

    def _further_specs(self) -> dict[str, ColumnSpec]:
        """Dtypes and shapes of the columns of a batch beside its fields."""
        raise NotImplementedError

    def _item_plan(self, names: tuple[str, ...] | None) -> ItemPlan | None:  # noqa: ARG002
        """Plan of the values of any length in batches of some fields; None if no field has any."""
        return None

    def _group_size(self) -> int:
        """Rows that are drawn together: numbers of rows to draw are multiples of it."""
        return 1

    def _counts_draws(self) -> bool:
        """Whether rows of a draw are counted, such as by ``AtMost``."""
        return False

    def _fewer(self, n: int) -> int:
        """How many rows, or groups, to draw after a draw of n had too few that are not used up."""
        return n // 2

    # Whether draws of one size are requested ahead, and lost when the size changes.
    _asks_ahead: ClassVar[bool] = False

    def _weighs_by_batch(self) -> bool:
        """Whether importance-sampling weights are relative to the others of their draw."""
        raise NotImplementedError

    describe = _reported.describe
    report = _reported.report

    def _to_report(self) -> Iterator[tuple[str, Any, Any]]:
        """Yield path, buffer, and view or None for each part whose rows can be read."""
        raise TypeError(f"the rows of {type(self).__name__} cannot be read from here")

    def __len__(self) -> int:
        """Rows that can be drawn."""
        raise NotImplementedError

    # ------------------------------------------------------------------ checks of arguments

    def _check_beta(self, beta: float | Schedule | None) -> None:
        """Raise unless batches can be weighted with this exponent.

        The sampler checks the numbers that a schedule returns.
        """
        if beta is not None:
            if type(beta) is not float or not 0.0 <= beta < math.inf:  # saves a microsecond
                check("beta", beta, 0)
            if not self.has_priorities:
                raise TypeError(
                    "beta: expected no value, for there are no priorities, and so no "
                    "importance-sampling weights"
                )

    # ------------------------------------------------------------------ hooks for mixtures

    def _read_batch_size(
        self, batch_size: int, fields: str | Iterable[str] | None = None
    ) -> tuple[int, tuple[str, ...] | None]:
        """``batch_size`` as an int, and the names of ``fields``; raises for invalid arguments."""
        raise NotImplementedError

    def _read_epoch_size(
        self, batch_size: int, fields: str | Iterable[str] | None
    ) -> tuple[int, tuple[str, ...] | None]:
        n, names = self._read_batch_size(batch_size, fields)
        if n == 0:
            raise ValueError("batch_size: expected at least 1, got 0")
        return n, names

    def _can_draw(self) -> bool:
        """Whether a batch can be drawn."""
        return len(self) > 0

    def _check_draw(self, n: int, options: SampleOptions) -> None:
        """Raise the errors that a draw of n items is known to raise."""
        raise NotImplementedError

    def _check_update(
        self, indexes: NDArray[np.int64], priorities: NDArray[np.float64]
    ) -> NDArray[np.intp]:
        """Raise errors of ``update_priorities`` for priorities; return places of wrong indexes.

        Called for sources with priorities only.
        """
        raise NotImplementedError


class MomentSource(Protocol):
    """The parts of a ``ReplayBuffer`` that views and episodes use: rows of one ring."""

    sampler: Sampler
    rng: np.random.Generator
    _nstep: NStepReturns | None
    _episodes: EpisodeIndex
    _starts: Callable[..., Any]  # ``Rows``
    _stored: Callable[..., Batch]  # reads fields of rows as they were added

    @property
    def ring(self) -> Ring: ...

    @property
    def schema(self) -> Schema: ...

    @property
    def capacity(self) -> int: ...

    @property
    def fields(self) -> tuple[str, ...]: ...

    @property
    def has_priorities(self) -> bool: ...

    def consistently(self, attempt: Callable[[], tuple[Slots, Made] | None]) -> Made: ...

    def _while_writers_wait(self, attempt: Callable[[], Made | None]) -> Made: ...

    def stats(self) -> dict[str, float]: ...

    def update_priorities(self, indexes: ArrayLike, priorities: ArrayLike) -> None: ...

    def _check_indexes(self) -> None: ...

    def _check_batch_size(
        self, batch_size: int, columns: tuple[Column, ...] | None = None
    ) -> int: ...

    def _check_draw(self, n: int, options: SampleOptions) -> None: ...

    def _draw_rows(
        self,
        n: int,
        options: SampleOptions,
        starts: Rows | None,
        take: Any,
        columns: tuple[Column, ...] | None,
        further: Container[str],
    ) -> Batch: ...

    def _note_draw(self, slots: Slots, of_all: bool) -> None: ...

    def _to_report(self) -> Iterator[tuple[str, Any, Any]]: ...

    def _check_update(
        self, indexes: NDArray[np.int64], priorities: NDArray[np.float64]
    ) -> NDArray[np.intp]: ...


class ModelledSource(Source):
    """Base class of sources that read the rows of other processes or machines.

    ``_model`` has the columns of their batches, and no rows.
    """

    sampler: Sampler
    _model: Source

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
    ) -> tuple[int, tuple[str, ...] | None]:
        return self._model._read_batch_size(batch_size, fields)

    def _field_specs(self, names: tuple[str, ...] | None) -> dict[str, ColumnSpec]:
        return self._model._field_specs(names)

    def _further_specs(self) -> dict[str, ColumnSpec]:
        return {**self._model._further_specs(), **self.sampler.columns}

    def _item_plan(self, names: tuple[str, ...] | None) -> ItemPlan | None:
        return self._model._item_plan(names)

    def _weighs_by_batch(self) -> bool:
        return self.sampler._weighs_by_batch


def _read_prefetch(prefetch: object) -> int:
    """``prefetch`` as an int, or an error."""
    ahead = as_int("prefetch", prefetch, 0)
    if ahead > MOST_AHEAD:
        raise ValueError(
            f"prefetch: expected 0 to {MOST_AHEAD} batches, which wait in memory; got {ahead}"
        )
    return ahead


def _conversion(to: To | None, device: Any) -> Conversion | None:
    """The conversion of batches: see ``_tensors.conversion``."""
    from cpprb_like.buffers._tensors import conversion  # noqa: PLC0415 (on demand)

    return conversion(to, device)


def _into_room(draw: Callable[..., Batch], conversion: Conversion) -> Batch:
    """Draw a batch into the arrays of its conversion, if there are any."""
    room = conversion.room()
    return draw() if room is None else draw(out=room)


def _endless(draw: Callable[[], Batch]) -> Batch:
    """A draw whose ``StopIteration``, from code of a user, becomes a ``RuntimeError``."""
    try:
        return draw()
    except StopIteration as error:
        raise RuntimeError("the draw of a batch raised StopIteration") from error


def _read_shard(shard: object) -> tuple[int, int]:
    """``shard`` as two ints, number of the part and number of parts; or an error."""
    if not isinstance(shard, tuple | list) or len(shard) != 2:
        raise TypeError(f"shard: expected (i, k), part i of k, got {shard!r}")
    part, of = as_int("shard[0]", shard[0], 0), as_int("shard[1]", shard[1], 1)
    if part >= of:
        raise ValueError(f"shard: expected a part from 0 to {of - 1}, got {part}")
    return part, of


def order_generator(
    shuffle: bool, given: np.random.Generator | None, own: np.random.Generator
) -> np.random.Generator | None:
    """Generator of the order of an epoch: ``given`` by the user, or a new one seeded by ``own``.

    So draws and seeds during an epoch do not change its order, and a prefetching thread has the
    same order.
    """
    if not shuffle:
        return None
    return np.random.default_rng(own.integers(2**63, size=4)) if given is None else given
