"""``View``: a buffer, read in another way.

A view draws rows of its buffer and hands their slots to the layers that it was made with. Not here:
the layers (``views``), and which rows are drawn (``samplers``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cpprb_like._arguments.arrays import Array
from cpprb_like._arguments.checks import as_int
from cpprb_like._fields.schema import check_out, read_columns
from cpprb_like._machine.aligned import aligned
from cpprb_like._machine.machine_memory import require
from cpprb_like._rows.column import Column
from cpprb_like._rows.row_handles import handles
from cpprb_like.buffers._entry import check_drawn
from cpprb_like.buffers._epochs import EpochOrder
from cpprb_like.buffers._source import (
    Batch,
    ColumnSpec,
    Source,
    if_prioritized,
    order_generator,
)
from cpprb_like.buffers._warnings import warn_of_short_windows
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.samplers import Extra, Slots
from cpprb_like.samplers._epoch import Epoch
from cpprb_like.samplers._starts import Starts
from cpprb_like.schedules import Schedule, value_at
from cpprb_like.views._frame_stacks import FrameStacks, StackReader
from cpprb_like.views._hindsight import (
    OWN_NAME,
    Goals,
    Hindsight,
    LoneRows,
    Relabelling,
    RelabelPlan,
    SequenceRows,
)
from cpprb_like.views._layer import Layer
from cpprb_like.views._nstep import NStep
from cpprb_like.views._rows import RowReader
from cpprb_like.views._sequences import ROW_INDEXES, SequenceReader, Sequences

if TYPE_CHECKING:
    from cpprb_like.buffers._replay import ReplayBuffer

__all__ = ["View"]

One = TypeVar("One", bound=Layer)
Choose = Callable[[], tuple[Slots, Extra]]

KINDS = (NStep, Sequences, FrameStacks, Hindsight)
CHECKED_NBYTES = 1 << 28  # batches from here on are compared with the memory that is left


class View(Source):
    """A buffer, read in another way: ``rb.view(*layers)``.

    It holds no rows and draws those of the buffer, by its sampler and its generator. What is added
    to the buffer can be drawn from the view, and any number of views of a buffer may be used.

    Parameters
    ----------
    buffer : ReplayBuffer
        The rows.
    layers : NStep, Sequences, FrameStacks or Hindsight
        What is done with drawn rows: at most one of each kind, in any order.

    Attributes
    ----------
    buffer, layers
        As given.
    draws : int
        Batches drawn so far: the time of a schedule of a layer.

    Raises
    ------
    TypeError, ValueError
        A layer is none, comes twice, or does not fit the fields of the buffer.

    Notes
    -----
    A view is pickled and copied with its buffer, which takes functions that can be pickled.

    Examples
    --------
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.views import NStep, Sequences
    >>> fields = {"rew": {"shape": ()}, "done": {"shape": (), "dtype": bool}}
    >>> rb = ReplayBuffer(100, fields, seed=0)
    >>> rb.add(rew=[1, 1, 1, 1], done=[0, 0, 0, 1])
    0
    >>> view = rb.view(Sequences(2), NStep(3, gamma=0.5))
    >>> view.sample(3)["rew"].tolist()
    [[1.0, 0.0], [1.5, 1.0], [1.5, 1.0]]
    """

    def __init__(self, buffer: ReplayBuffer, layers: Iterable[Layer]) -> None:
        self.buffer = buffer
        self.layers = tuple(layers)
        self.draws = 0
        for layer in self.layers:
            if not isinstance(layer, KINDS):
                names = ", ".join(kind.__name__ for kind in KINDS)
                raise TypeError(f"view: expected {names}, got {layer!r}")
            if [type(layer) for layer in self.layers].count(type(layer)) > 1:
                raise ValueError(f"view: expected one {type(layer).__name__}, got more")
        self._opened: _Opened = _Opened(buffer, self)

    def layer(self, kind: type[One]) -> One | None:
        """The layer of a kind, if the view has one."""
        found: Any = [layer for layer in self.layers if isinstance(layer, kind)]
        return found[0] if found else None

    @property
    def _now(self) -> _Opened:
        """What reads the rows that the buffer has now."""
        if self._opened.ring is not self.buffer.ring:  # it was initialised anew
            self._opened = _Opened(self.buffer, self)
        return self._opened

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
        """Draw rows, and read them as the layers say.

        Parameters
        ----------
        batch_size, beta, replace, fields
            See ``Source.sample``. Of sequences no two distinct ones start at the same row.
        out : dict of (ndarray or tensor), optional
            Arrays for the fields, each of the dtype and shape that ``columns`` says, with a first
            axis of ``batch_size``: C-contiguous and writeable.
        indexes : bool
            Add ``indexes``, shape ``(batch_size,)``, int64: what names the drawn row, or the first
            row of a sequence, for ``update``. And see ``Sequences`` for ``row_indexes``.

        Returns
        -------
        dict of ndarray
            The fields, with the shapes of ``columns``; what the layers add; and with priorities
            ``weights`` and ``indexes``, shape ``(batch_size,)``.

        Raises
        ------
        NotEnoughDataError
            No row can be drawn, for none has the rows around it that the layers need; or fewer than
            ``batch_size``, and ``replace`` is false. It is a ``ValueError``. The generator has gone
            on, as after a draw.
        TypeError, ValueError, MemoryError
            As ``ReplayBuffer.sample``; or a layer's function gives what does not fit.

        Notes
        -----
        Where the layers need rows around the drawn one that may be missing, so that not every row
        can be drawn, importance-sampling weights are normalised by the maximum over the batch.
        """
        now, buffer = self._now, self.buffer
        columns = read_columns(fields, now.ring.columns)
        n = now.read_batch_size(batch_size, columns)
        arrays = None
        if out is not None:
            chosen = now.ring.columns if columns is None else columns
            wanted = {column.name: now.spec(column) for column in chosen}
            arrays = dict(zip(wanted, check_out(out, n, wanted), strict=True))
        draw = now.drawing(beta, indexes)
        batch = self._read(
            lambda: draw(now.ring, n, buffer.rng, replace=replace),
            n,
            columns,
            arrays,
            indexes=indexes,
        )
        self.draws += 1
        if out is None or arrays is None:
            return batch
        out.update({name: values for name, values in batch.items() if name not in arrays})
        return out

    def _read(
        self,
        choose: Choose,
        n: int | None,
        columns: tuple[Column, ...] | None,
        arrays: Batch | None,
        *,
        indexes: bool = False,
    ) -> Batch:
        """What there is of the rows that ``choose`` chooses, as they are at one moment."""
        now, buffer = self._now, self.buffer
        ratio = 0.0
        if now.goals is not None:
            ratio = value_at(now.goals.layer.relabel_ratio, self.draws, "relabel_ratio", 0, 1)
        while True:
            one = _Reading(now, columns, arrays, ratio, located=indexes)
            batch = buffer.consistently(partial(one.attempt, choose, n))
            if one.finish(batch):
                return batch

    def read_at(
        self, slots: Slots, fields: str | Iterable[str] | None, *, located: bool
    ) -> Batch | None:
        """What the layers make of rows that somebody else chose, each of which can be drawn.

        Returns None if rows were seen to go away meanwhile. Whether all are still there, which
        ``ring.holds`` tells, the caller asks. ``located`` adds ``row_indexes`` of sequences.
        """
        now = self._now
        ratio = 0.0
        if now.goals is not None:
            ratio = value_at(now.goals.layer.relabel_ratio, self.draws, "relabel_ratio", 0, 1)
        columns = read_columns(fields, now.ring.columns)
        one = _Reading(now, columns, None, ratio, located=located)
        found = one.attempt(lambda: (slots, {}), len(slots))
        if found is None or not one.finish(found[1]):
            return None
        return found[1]

    def _begin_epoch(
        self, fields: tuple[str, ...] | None, shuffle: bool, rng: np.random.Generator | None
    ) -> EpochOrder | None:
        now, buffer = self._now, self.buffer
        if len(buffer) == 0:
            return None
        clears = now.ring.clears
        columns = read_columns(fields, now.ring.columns)

        def is_gone() -> bool:
            return now.ring.clears != clears or buffer.ring is not now.ring

        def still_there(chosen: Slots) -> tuple[Slots, Extra]:
            if is_gone():
                raise RuntimeError("the buffer was cleared or made anew while its rows were read")
            return now.drawable(chosen), {}

        def read(slots: Slots) -> Batch:
            batch = self._read(partial(still_there, slots), None, columns, None)
            self.draws += 1
            return batch

        return EpochOrder(now.epoch(order_generator(shuffle, rng, buffer.rng)), read, is_gone)

    @if_prioritized
    def update_priorities(self, indexes: ArrayLike, priorities: ArrayLike) -> None:
        """Set the priorities of drawn rows: see ``PrioritizedReplayBuffer.update_priorities``.

        Only views of buffers with priorities have this method. Of sequences these are the
        priorities of their first rows: see ``sequence_priorities``.
        """
        self.buffer.update_priorities(indexes, priorities)

    def _read_batch_size(
        self, batch_size: int, fields: str | Iterable[str] | None = None
    ) -> tuple[int, tuple[str, ...] | None]:
        now = self._now
        columns = read_columns(fields, now.ring.columns)
        names = None if columns is None else tuple(column.name for column in columns)
        return now.read_batch_size(batch_size, columns), names

    def _can_draw(self) -> bool:
        return len(self.buffer) > 0 and self._now.has_starts()

    def _check_draw(self, n: int, *, replace: bool, beta: float | Schedule | None) -> None:
        self.buffer._check_draw(n, replace=replace, beta=beta)

    def _check_update(
        self, indexes: NDArray[np.int64], priorities: NDArray[np.float64]
    ) -> NDArray[np.intp]:
        return self.buffer._check_update(indexes, priorities)

    # ------------------------------------------------------------------ state

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields, in declared order."""
        return self.buffer.fields

    @property
    def has_priorities(self) -> bool:
        """Whether rows are drawn by priority."""
        return self.buffer.has_priorities

    def _field_specs(self, names: tuple[str, ...] | None) -> dict[str, ColumnSpec]:
        now = self._now
        columns = read_columns(names, now.ring.columns) or now.ring.columns
        return {column.name: now.spec(column) for column in columns}

    def _further_specs(self) -> dict[str, ColumnSpec]:
        return {**self._now.further(), **self.buffer.sampler.columns}

    def __len__(self) -> int:
        """Rows of the buffer that can be drawn, whatever the layers need besides."""
        return len(self.buffer)

    def __getstate__(self) -> dict[str, Any]:
        return {"buffer": self.buffer, "layers": self.layers, "draws": self.draws}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["buffer"], state["layers"])  # type: ignore[misc]
        self.draws = as_int("draws", state["draws"], 0)

    def __repr__(self) -> str:
        layers = ", ".join(map(repr, self.layers))
        buffer = f"{type(self.buffer).__name__}(size={self.buffer.capacity}, stored={len(self)})"
        return f"View({buffer}, {layers})"


class _Opened:
    """A view over the rows of one ring: what reads them, and which of them can be drawn."""

    def __init__(self, buffer: ReplayBuffer, view: View) -> None:
        self.buffer = buffer
        self.ring = ring = buffer.ring
        self.sampler = buffer.sampler
        self.sequences = view.layer(Sequences)
        stacks, hindsight = view.layer(FrameStacks), view.layer(Hindsight)
        self._open_reader(view.layer(NStep), stacks)
        self.single: frozenset[str] = frozenset()
        names = [column.name for column in ring.columns]
        self.names = frozenset(names)
        self.goals = None if hindsight is None else Goals(hindsight, buffer.schema)
        if self.goals is not None and stacks is not None:
            both = self.goals.changed & set(stacks.places(ring.columns))
            if both:
                raise ValueError(f"FrameStacks: {sorted(both)} get new goals, which are no frames")
        self._open_starts(stacks)
        self.items: SequenceReader | None = None
        if self.sequences is not None:
            factor = ["discount"] * (self.nstep is not None and self.nstep.discount)
            self.single = self.sequences.single([*names, *factor])
            plain = self.nstep is None and stacks is None
            self.items = SequenceReader(
                buffer._episodes, self.sequences, None if plain else self.take, self.steps
            )
        self.adds_marks = self.goals is not None and self.goals.layer.relabelled
        self._whole: _Plan | None = None
        self.item_nbytes = sum(map(self._nbytes_of, ring.columns))
        if self.sequences is not None:
            self.item_nbytes += 16 * self.sequences.rows
        self.further_names = frozenset(self.further())
        taken = sorted({*names} & self.further_names)
        if taken:
            raise ValueError(f"view adds the column {taken[0]!r}: a field has this name")

    def _open_reader(self, nstep: NStep | None, stacks: FrameStacks | None) -> None:
        """Make what reads single rows."""
        buffer, ring = self.buffer, self.ring
        self.nstep = buffer._nstep
        self.least = self.most = 1
        if nstep is not None and nstep.is_single(buffer._nstep):
            self.nstep = None
        elif nstep is not None:
            self.nstep = nstep.spec(buffer.schema, buffer._nstep)
            self.least, self.most = nstep.size
            if buffer._nstep is None:
                says = nstep.discount is not None
                warn_of_short_windows(self.nstep, buffer.schema, says_discount=says)
        elif self.nstep is not None:
            self.least = self.most = self.nstep.size
        rows = RowReader(ring, self.nstep)
        self.reader: RowReader | StackReader = rows if stacks is None else StackReader(rows, stacks)
        self._take: Callable[..., Batch] = self.reader.take

    def _open_starts(self, stacks: FrameStacks | None) -> None:
        """Make what knows which rows can be drawn, if that is not all that the buffer can draw."""
        sequences, ring = self.sequences, self.ring
        self.starts: Starts | None = None
        self._tries = np.random.default_rng(0)  # of looks whether there are starts
        before = 0 if stacks is None else stacks.before
        length = 1 if sequences is None else sequences.rows
        rows = length + self.most - 1
        if rows * ring.n_envs > ring.capacity:
            what = "size" if sequences is None else "length"
            raise ValueError(
                f"{what}: {rows} rows (with burn_in and n-step returns) of {ring.n_envs} "
                f"environment(s) do not fit into {ring.capacity} rows"
            )
        if sequences is None and before == 0 and self.most - 1 <= ring.lookahead:
            return
        across = sequences is not None and sequences.across_episodes
        self.starts = self.buffer._starts(
            rows=rows,
            least=rows if across else 1 if sequences is None else sequences.least,
            across=across,
            stride=1 if sequences is None else sequences.stride,
            before=before,
        )

    # ------------------------------------------------------------------ what it gives

    def plan(self, columns: tuple[Column, ...] | None) -> _Plan:
        """What there is to do for batches of these columns, or of all."""
        if columns is not None:
            return _Plan(self, columns)
        if self._whole is None:
            self._whole = _Plan(self, self.ring.columns)
        return self._whole

    def spec(self, column: Column) -> ColumnSpec:
        """Dtype and shape of an item of a column."""
        shape = column.shape
        if isinstance(self.reader, StackReader):
            shape = self.reader.shape(column)
        if self.sequences is not None and column.name not in self.single:
            shape = (self.sequences.rows, *shape)
        return ColumnSpec(column.dtype, shape)

    def further(self) -> dict[str, ColumnSpec]:
        """The columns that the layers add."""
        found = {}
        along = () if self.sequences is None else (self.sequences.rows,)
        if self.nstep is not None and self.nstep.discount:
            once = "discount" in self.single
            shape = (*(() if once else along), *self.nstep.discount_shape)
            found["discount"] = ColumnSpec(np.dtype(np.float32), shape)
        if self.sequences is not None:
            found[self.sequences.mark] = ColumnSpec(np.dtype(np.bool_), along)
        if self.goals is not None and self.goals.layer.relabelled:
            found[OWN_NAME] = ColumnSpec(np.dtype(np.bool_), along)
        return found

    def read_batch_size(self, batch_size: int, columns: tuple[Column, ...] | None) -> int:
        """A number of items that can be read at once."""
        n = self.buffer._check_batch_size(batch_size, columns)
        nbytes = self.item_nbytes  # of all columns: only large batches need the exact number
        if n * nbytes >= CHECKED_NBYTES and columns is not None:
            nbytes = sum(self._nbytes_of(column) for column in columns)
        if n * nbytes >= CHECKED_NBYTES:
            require(n * nbytes, f"a batch of {n} items of {nbytes} bytes")
        return n

    def _nbytes_of(self, column: Column) -> int:
        """Bytes of an item of a column."""
        spec = self.spec(column)
        return spec.dtype.itemsize * math.prod(spec.shape)

    # ------------------------------------------------------------------ choosing

    def drawing(
        self, beta: float | Schedule | None, indexes: bool
    ) -> Callable[..., tuple[Slots, Extra]]:
        """How rows are drawn: a function as ``Sampler.draw``."""
        options: dict[str, Any] = {}
        sampler, names = self.sampler, self.names
        self.buffer._check_beta(beta)
        if beta is not None:
            options["beta"] = beta
        if indexes and self.sequences is None:
            self.buffer._check_indexes()
        elif indexes and ROW_INDEXES in names:
            raise ValueError(f"view adds the column {ROW_INDEXES!r}: a field has this name")
        gives_handles = indexes and not self.buffer.has_priorities
        if gives_handles and "indexes" in names:
            raise ValueError("indexes: there is a field of this name")

        def draw(
            ring: Any, n: int, rng: np.random.Generator, *, replace: bool
        ) -> tuple[Slots, Extra]:
            if self.starts is None:
                if len(ring) == 0:
                    raise NotEnoughDataError("cannot sample: the buffer is empty")
                slots, extra = sampler.draw(ring, n, rng, replace=replace, **options)
            else:
                slots, extra = sampler.draw_starts(self.starts, n, rng, replace=replace, **options)
            if gives_handles:
                if "indexes" in extra:
                    raise ValueError(f"indexes: {sampler!r} gives indexes of its own")
                extra = {**extra, "indexes": handles(ring, slots)}
            return slots, extra

        return draw

    def drawable(self, slots: Slots) -> Slots:
        """Those of the slots whose rows can be drawn."""
        slots = slots[~self.ring.absent_at(slots)]
        return slots if self.starts is None else slots[self.starts.tell(slots) == 1]

    def has_starts(self) -> bool:
        """Whether a row can be drawn, of those that the buffer can draw."""
        if self.starts is None:
            return True
        try:
            self.starts.draw(1, self._tries)
        except NotEnoughDataError:
            return False
        return True

    def all_drawable(self, slots: Slots) -> bool:
        """Whether the rows before all of them are still there, which no ``Moment`` tells."""
        if self.starts is None or self.starts.before == 0:
            return True
        try:
            return bool((self.starts.tell(slots) == 1).all())
        except IndexError:  # cleared meanwhile
            return False

    def epoch(self, rng: np.random.Generator | None) -> Callable[[int], Slots]:
        """What gives the rows that can be drawn once each, so many at a time."""
        if self.starts is None:
            return Epoch(self.ring, rng).take
        order = self.starts.slots()
        if rng is not None:
            order = rng.permutation(order)
        return _Chunks(order).take

    # ------------------------------------------------------------------ reading

    def steps(self, n: int) -> Slots | None:
        """How many steps each of n rows is read as, where that is drawn."""
        if self.nstep is None or self.least == self.most:
            return None
        drawn = self.buffer.rng.integers(self.least, self.most, n, endpoint=True)
        return drawn.astype(np.intp, copy=False)

    def take(
        self, slots: Slots, arrays: list[Array] | None, steps: Slots | None, columns: Any
    ) -> Batch:
        """Single rows."""
        return self._take(slots, arrays, steps, columns)


class _Plan:
    """Batches of some columns."""

    def __init__(self, now: _Opened, columns: tuple[Column, ...]) -> None:
        self.columns = columns
        self.single = now.single & {"discount", *(column.name for column in columns)}
        self.goals: RelabelPlan | None = None
        if now.goals is not None:
            self.goals = RelabelPlan(now.goals, columns, self.single, now.reader)


class _Chunks:
    """Numbers, so many at a time."""

    def __init__(self, numbers: Slots) -> None:
        self._numbers = numbers
        self._at = 0

    def take(self, n: int) -> Slots:
        """The next n, or what is left."""
        found = self._numbers[self._at : self._at + n]
        self._at += len(found)
        return found


class _Reading:
    """One batch, while it is read."""

    def __init__(
        self,
        now: _Opened,
        columns: tuple[Column, ...] | None,
        arrays: Batch | None,
        ratio: float,
        *,
        located: bool,
    ) -> None:
        self.now = now
        self.plan = now.plan(columns)
        self.arrays = arrays
        self.located = located
        self.relabelling: Relabelling | None = None
        if self.plan.goals is not None:
            self.relabelling = Relabelling(self.plan.goals, ratio)

    def attempt(self, choose: Choose, n: int | None) -> tuple[Slots, Batch] | None:
        """Choose rows and read them; None if they went away meanwhile."""
        slots, extra = choose()
        now, expected = self.now, len(slots) if n is None else n
        check_drawn(now.sampler, slots, extra, expected, now.names, now.further_names)
        read = self._read_single if now.items is None else self._read_sequences
        batch = read(slots)
        if batch is None or not now.all_drawable(slots):
            return None
        batch.update({name: aligned(values) for name, values in extra.items()})
        return slots, batch

    def _read_single(self, slots: Slots) -> Batch | None:
        now = self.now
        arrays = None if self.arrays is None else list(self.arrays.values())
        steps = now.steps(len(slots))
        batch = now.take(slots, arrays, steps, self.plan.columns)
        if self.relabelling is not None and not self.relabelling.choose(
            now.buffer._episodes,
            now.buffer.rng,
            LoneRows(slots),
            steps,
            batch,
            partial(now.all_drawable, slots),
        ):
            return None
        return batch

    def _read_sequences(self, slots: Slots) -> Batch | None:
        now = self.now
        assert now.items is not None
        located = self.located or self.relabelling is not None
        taken = now.items.take(slots, self.plan.columns, self.plan.single, self.arrays, located)
        if taken is None:
            return None
        batch = taken.batch
        if self.relabelling is not None:
            assert taken.slots is not None
            across = now.items.layer.across_episodes
            begins = taken.marks if across else np.zeros_like(taken.marks)
            rows = SequenceRows(taken.slots, taken.there, begins)
            if not self.relabelling.choose(
                now.buffer._episodes,
                now.buffer.rng,
                rows,
                taken.steps,
                batch,
                partial(now.all_drawable, slots),
            ):
                return None
        batch[now.items.mark] = taken.marks
        if self.located:
            batch[ROW_INDEXES] = now.items.indexes(taken)
        return batch

    def finish(self, batch: Batch) -> bool:
        """Write the new goals; false if rows went away meanwhile: then others are drawn."""
        if self.relabelling is None:
            return True
        if not self.relabelling.write(batch):
            return False
        if self.now.adds_marks:
            first = next(iter(batch.values()))
            batch[OWN_NAME] = self.relabelling.marks(len(first))
        return True
