"""Reader of a view: its layers over the rows of one ring, and one batch while it is read.

Layers declare by hooks which rows they read and which columns they make; no layer is known by name
here. Not here: the layers (``views``), which rows are drawn (``samplers``), and the methods that
users call (``_view``).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.checks import as_int
from cpprb_like._core import Ring
from cpprb_like._fields import casting
from cpprb_like._fields.derived import NStepReturns
from cpprb_like._fields.schema import read_names
from cpprb_like._machine.aligned import aligned
from cpprb_like._machine.machine_memory import CHECKED_NBYTES, require
from cpprb_like._rows.column import Column
from cpprb_like._rows.gather import new_array
from cpprb_like.buffers._entry import SampleOptions, check_drawn
from cpprb_like.buffers._source import Batch, ColumnSpec, MomentSource
from cpprb_like.buffers._warnings import warn_of_short_windows
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.samplers import Extra, Slots
from cpprb_like.samplers._base import with_handles
from cpprb_like.samplers._starts import Starts, choose_rows
from cpprb_like.samplers._uniform_draws import Epoch
from cpprb_like.samplers._where import Where, is_true
from cpprb_like.views._layer import Drawn, Items, Layer, Plan, Revision
from cpprb_like.views._rows import RowReader, read_fields
from cpprb_like.views._sequences import (
    ROW_INDEXES,
    SequenceReader,
    Taken,
    spread,
)
from cpprb_like.views._windows import Walk, Windows

__all__ = ["Choose", "Opened", "ReadPlan", "Reading", "chunks"]

Array = NDArray[Any]
NO_SLOTS = np.empty(0, np.intp)
Choose = Callable[[], tuple[Slots, Extra]]


class Part:
    """One layer over the rows of one ring, and the checked results of its hooks."""

    def __init__(self, layer: Layer, buffer: MomentSource, fields: dict[str, ColumnSpec]) -> None:
        self.name = type(layer).__name__
        self.layer = opened = layer.open(buffer)
        self.fills = type(opened).fill is not Layer.fill
        self.revises = type(opened).revises is not Layer.revises
        before, after = opened.around(fields)
        around = f"{self.name}.around"
        self.around = as_int(around, before, 0), as_int(around, after, 0)
        self.reads = self._names_of("reads", opened.reads(fields), fields)
        found = opened.condition(fields)
        self.condition = None
        if found is not None:
            self.condition = self._names_of("condition", found[0], fields), found[1]
        self.changes = self._names_of("changes", opened.changes(fields), fields)
        self.columns = {
            name: self._column_of(name, found) for name, found in opened.columns(fields).items()
        }
        self.replaced = frozenset(self.columns) & frozenset(fields)
        self.added = frozenset(self.columns) - frozenset(fields)
        if self.columns and not self.fills and (self.replaced or not self.revises):
            raise TypeError(
                f"{self.name}: expected a method fill, which makes {list(self.columns)}, got none"
            )

    def _names_of(
        self, hook: str, names: Iterable[str], fields: dict[str, ColumnSpec]
    ) -> frozenset[str]:
        if isinstance(names, str):
            raise TypeError(f"{self.name}.{hook}: expected names of fields, got {names!r}")
        found = frozenset(names)
        if not found <= set(fields):
            wrong = sorted(map(str, found - set(fields)))
            raise ValueError(
                f"{self.name}: expected some of the fields {list(fields)}, got {wrong[0]!r}"
            )
        return found

    def _column_of(self, name: str, found: Any) -> ColumnSpec:
        """The dtype and shape that the hook ``columns`` gives for a column."""
        try:
            dtype, shape = found
            return ColumnSpec(np.dtype(dtype), tuple(map(operator.index, shape)))
        except (TypeError, ValueError):
            raise TypeError(
                f"{self.name}.columns: expected (dtype, shape) of {name!r}, such as "
                f"(np.float32, (3,)), got {found!r}"
            ) from None

    def cast(self, name: str, values: Any, spec: ColumnSpec, n: int, hook: str = "fill") -> Array:
        """Values of a column that ``fill`` or another hook returned, cast to its dtype."""
        where = f"{self.name}.{hook}"
        if not isinstance(values, np.ndarray):
            found = "nothing" if values is None else f"{type(values).__name__}"
            raise TypeError(f"{where}: expected an array for {name!r}, got {found}")
        shape = (n, *spec.shape)
        if values.shape != shape:
            raise ValueError(f"{where}: expected shape {shape} for {name!r}, got {values.shape}")
        if not np.can_cast(values.dtype, spec.dtype, "same_kind"):
            raise TypeError(f"{where}: expected {spec.dtype} for {name!r}, got {values.dtype}")
        try:
            return casting.cast(np.asarray(values), spec.dtype)
        except ValueError as error:
            raise ValueError(f"{where}: for {name!r}: {error}") from error


class Opened:
    """The layers of a view over the rows of one ring, or of a shard of a learner."""

    def __init__(self, buffer: MomentSource, layers: tuple[Layer, ...]) -> None:
        self.buffer = buffer
        self.ring = ring = buffer.ring
        self.sampler = buffer.sampler
        fields = {column.name: ColumnSpec(column.dtype, column.shape) for column in ring.columns}
        self.names = frozenset(fields)
        self.parts = [Part(layer, buffer, fields) for layer in layers]
        self.nstep: NStepReturns | None
        self.nstep, self.least = self._read_steps()
        self.most = 1 if self.nstep is None else self.nstep.size
        self.items: Items | None = None
        for part in self.parts:
            found = part.layer.items()
            if found is not None and self.items is not None:
                raise ValueError(f"{part.name}: expected one layer that says what an item is")
            self.items = found if found is not None else self.items
        self._check_parts()
        self.filling = [part for part in self.parts if part.fills]
        self.conditions = [part.condition for part in self.parts if part.condition is not None]
        self.before = max((part.around[0] for part in self.parts), default=0)
        self.after = max((part.around[1] for part in self.parts), default=0)
        self._open_starts()
        self._open_reader()
        self._open_columns(fields)
        self.items_reader: SequenceReader | None = None
        if self.items is not None:
            self.items_reader = self._open_items(self.items)
        # Whether items hold stored values only.
        self.is_plain = self.nstep is None and not self.filling

    def _read_steps(self) -> tuple[NStepReturns | None, int]:
        """The n-step returns of the view, or None for single steps, and the least n."""
        buffer, default = self.buffer, self.buffer._nstep
        said = [
            (part, steps)
            for part in self.parts
            if (steps := part.layer.steps(buffer.schema, default)) is not None
        ]
        if len(said) > 1:
            raise ValueError(f"{said[1][0].name}: expected one layer that says the n of rows")
        if not said:
            return default, 1 if default is None else default.size
        steps = said[0][1]
        if default is None and steps.returns is not None:
            says = steps.says_discount
            warn_of_short_windows(steps.returns, buffer.schema, says_discount=says)
        return steps.returns, steps.least

    def _check_parts(self) -> None:
        """Raise ``ValueError`` if a layer changes fields that another layer reads or makes."""
        summed = set() if self.nstep is None else set(self.nstep.rewards)
        makers: dict[str, str] = {}
        for part in self.parts:
            for name in part.columns:
                if name in makers:
                    raise ValueError(f"{part.name}: {makers[name]} makes the column {name!r} too")
                if name in summed:
                    raise ValueError(f"{part.name}: n-step returns make the column {name!r} too")
                makers[name] = part.name
            for other in self.parts:
                both = sorted(other.changes & (part.reads | part.replaced | part.changes))
                if both and other is not part:
                    raise ValueError(f"{part.name}: {both} are changed by {other.name}")

    def _open_starts(self) -> None:
        """Make ``starts``, unless the layers can read all rows that the buffer draws."""
        items, ring = self.items, self.ring
        self.starts: Starts | None = None
        self._tries = np.random.default_rng(0)  # for ``has_starts``, which is no draw
        after = max(self.most - 1, self.after)
        rows = (1 if items is None else items.rows) + after
        if rows * ring.n_envs > ring.capacity:
            what = "size" if items is None else "length"
            if self.after > self.most - 1:
                what = max(self.parts, key=lambda part: part.around[1]).name
            raise ValueError(
                f"{what}: {rows} rows (with burn_in and n-step returns) of {ring.n_envs} "
                f"environment(s) do not fit into {ring.capacity} rows"
            )
        for part in self.parts:
            window = 1 + sum(part.around)
            if window * ring.n_envs > ring.capacity:
                raise ValueError(
                    f"{part.name}: {window} rows ({part.around[0]} before a row and "
                    f"{part.around[1]} behind it) of {ring.n_envs} environment(s) do not fit into "
                    f"{ring.capacity} rows"
                )
        if items is not None or self.before or after > ring.lookahead:
            self.starts = self._starts_of(rows)
        if self.conditions:
            self.starts = cast(
                "Any", Where(ring, partial(_hold, ring, self.conditions), self.starts)
            )

    def _starts_of(self, rows: int) -> Starts:
        """Starts: rows around which the ring has all rows that the layers read."""
        items = self.items
        across = items is not None and items.across
        return self.buffer._starts(
            rows=rows,
            least=rows if across else 1 if items is None else items.least,
            across=across,
            stride=1 if items is None else items.stride,
            before=self.before,
        )

    def _open_reader(self) -> None:
        """Make the reader of single rows."""
        revised = self.most > 1 and any(part.revises for part in self.parts)
        self.walks = bool(self.filling) or revised
        self.rows = RowReader(
            self.ring, self.nstep, (self.before, self.after) if self.walks else None
        )
        self.walk: Any = self.rows.walk_of()  # ``Walker.take``; None without windows

    def _open_columns(self, fields: dict[str, ColumnSpec]) -> None:
        """Compute the columns of a batch: dtype and shape of an item, and first-row columns."""
        items, nstep = self.items, self.nstep
        along = () if items is None else (items.rows,)
        added: dict[str, ColumnSpec] = {}  # further columns that are read with the rows
        if nstep is not None and nstep.discount:
            added["discount"] = ColumnSpec(np.dtype(np.float32), nstep.discount_shape)
        others: dict[str, ColumnSpec] = {}
        if items is not None:
            others[items.mark] = ColumnSpec(np.dtype(np.bool_), ())
        taken = {*added, *others, "indexes", ROW_INDEXES, *self.sampler.columns}
        self.replaced_by: dict[str, Part] = {}
        specs = dict(fields)
        for part in self.parts:
            for name, spec in part.columns.items():
                if name in fields:
                    self.replaced_by[name] = part
                    specs[name] = spec
                elif name in taken:
                    raise ValueError(f"{part.name}: {name!r} is a further column of the view")
                else:
                    (added if part.fills else others)[name] = spec
        self.added = frozenset(added)
        self.single = frozenset[str]()
        if items is not None:
            names = [*fields, *added]
            self.single = frozenset(read_names("first_only", items.first_only, names))

        def item(name: str, spec: ColumnSpec) -> ColumnSpec:
            return spec if name in self.single else ColumnSpec(spec.dtype, (*along, *spec.shape))

        self.specs = {name: item(name, spec) for name, spec in specs.items()}
        self.further = {name: item(name, spec) for name, spec in {**added, **others}.items()}
        twice = sorted(set(fields) & set(self.further))
        if twice:
            raise ValueError(f"view adds the column {twice[0]!r}: a field has this name")
        self.item_nbytes = sum(map(self._nbytes_of, ring_names(self.ring.columns)))
        if items is not None:
            self.item_nbytes += 16 * items.rows

    def _open_items(self, items: Items) -> SequenceReader:
        """Make the reader of items of several rows."""
        shape = Starts(
            self.buffer._episodes, rows=items.rows, least=1, across=items.across, stride=1
        )
        return SequenceReader(self.ring, items, lambda slots: [(shape, slots, None)])

    # ------------------------------------------------------------------ plans

    def take_of_rows(self) -> Callable[..., Batch] | None:
        """Function that reads batches of single rows, as ``RowReader.take``.

        None if more than the rows of n-step returns is read, or if n is drawn.
        """
        if self.items is not None or self.before or self.filling or self.least < self.most:
            return None
        return self.rows.take_of_rows()

    def plan(self, columns: tuple[Column, ...] | None) -> ReadPlan:
        """The plan of batches of these columns, or of all.

        This object has no reference to a plan, as a cycle would keep the rows alive.
        """
        return ReadPlan(self, self.ring.columns if columns is None else columns)

    def read_again(self, slots: Slots, steps: Slots | None, columns: tuple[Column, ...]) -> Batch:
        """Columns of rows of ``steps`` steps each, without the columns of layers."""
        return RowPlan(self, columns, frozenset()).read(slots, None, steps)[0]

    def require_memory(self, n: int, columns: tuple[Column, ...] | None) -> None:
        """Raise ``MemoryError`` if n items of these columns do not fit into the memory left."""
        nbytes = self.item_nbytes  # all columns: only large batches need the exact number
        if n * nbytes >= CHECKED_NBYTES and columns is not None:
            nbytes = sum(map(self._nbytes_of, ring_names(columns)))
        require(n * nbytes, f"a batch of {n} items of {nbytes} bytes")

    def _nbytes_of(self, name: str) -> int:
        """Bytes of an item of a column."""
        spec = self.specs[name]
        return spec.dtype.itemsize * math.prod(spec.shape)

    # ------------------------------------------------------------------ choosing

    def check_indexes(self) -> None:
        """Raise ``ValueError`` if batches cannot have ``indexes``."""
        if self.items is None:
            self.buffer._check_indexes()
        elif ROW_INDEXES in self.names:
            raise ValueError(f"view adds the column {ROW_INDEXES!r}: a field has this name")
        if not self.buffer.has_priorities and "indexes" in self.names:
            raise ValueError("indexes: there is a field of this name")

    def draw(self, n: int, options: SampleOptions) -> tuple[Slots, Extra]:
        """Draw n rows with the sampler, out of the rows that can be drawn."""
        ring, sampler, rng = self.ring, self.sampler, self.buffer.rng
        keywords = options.of_sampler
        if self.starts is not None:
            slots, extra = sampler.draw_starts(self.starts, n, rng, **keywords)
        elif len(ring) == 0:
            raise NotEnoughDataError("cannot sample: the buffer is empty")
        else:
            slots, extra = sampler.draw(ring, n, rng, **keywords)
        if options.indexes and not self.buffer.has_priorities:
            extra = with_handles(sampler, ring, slots, extra)
        return slots, extra

    def draw_steps(self, n: int) -> Slots | None:
        """Random numbers of steps of n rows; None if the number is fixed."""
        if self.nstep is None or self.least == self.most:
            return None
        drawn = self.buffer.rng.integers(self.least, self.most, n, endpoint=True)
        return drawn.astype(np.intp, copy=False)

    def others(self, slots: Slots, strategy: int) -> Slots:
        """Slots of other rows of the same episodes: see ``choose_rows``."""
        return choose_rows(self.buffer._episodes, slots, self.buffer.rng, strategy)

    def drawable(self, slots: Slots) -> Slots:
        """The slots whose rows can be drawn, out of these."""
        slots = slots[~self.ring.absent_at(slots)]
        return slots if self.starts is None else slots[self.starts.tell(slots) == 1]

    def has_starts(self) -> bool:
        """Whether any row of the buffer can be drawn by this view."""
        if self.starts is None:
            return True
        return self.buffer.consistently(self._try_start)

    def _try_start(self) -> tuple[Slots, bool]:
        assert self.starts is not None
        try:
            return self.starts.draw(1, self._tries), True
        except NotEnoughDataError:
            return np.empty(0, np.intp), False

    def all_drawable(self, slots: Slots) -> bool:
        """Whether the rows before these are still present, which ``Ring.holds`` does not check."""
        if self.starts is None or self.before == 0:
            return True
        try:
            return bool((self.starts.tell(slots) == 1).all())
        except IndexError:  # the ring was cleared
            return False

    def epoch(self, rng: np.random.Generator | None) -> Callable[[int], Slots]:
        """A function that returns the next n rows of an epoch of all rows that can be drawn."""
        if self.starts is None:
            return Epoch(self.ring, rng).take
        order = self.buffer.consistently(self._list_starts)
        if rng is not None:
            order = rng.permutation(order)
        return chunks(order)

    def _list_starts(self) -> tuple[Slots, Slots]:
        """All starts. ``drawable`` leaves out rows that are overwritten later."""
        assert self.starts is not None
        order = self.starts.slots()
        return order[:0], order


def _hold(
    ring: Ring, conditions: Iterable[tuple[frozenset[str], Callable[[Batch], Any]]], slots: Slots
) -> NDArray[np.bool_]:
    """Whether the conditions of all layers are true, for each of these rows."""
    found = np.ones(len(slots), np.bool_)
    for names, holds in conditions:
        found &= is_true(holds(read_fields(ring, slots, names)), len(slots))
    return found


def ring_names(columns: tuple[Column, ...]) -> list[str]:
    """Names of columns."""
    return [column.name for column in columns]


def chunks(numbers: Slots) -> Callable[[int], Slots]:
    """A function that returns the next n of these numbers, or as many as are left."""
    at = 0

    def take(n: int) -> Slots:
        nonlocal at
        found = numbers[at : at + n]
        at += len(found)
        return found

    return take


class RowPlan:
    """Plan that reads columns of single rows: stored or summed ones, then columns of layers."""

    def __init__(self, now: Opened, columns: tuple[Column, ...], added: frozenset[str]) -> None:
        self.now = now
        names = ring_names(columns)
        self.order = tuple(names)
        parts = [now.replaced_by.get(name) for name in names]
        self.base = tuple(
            column
            for column, part in zip(columns, parts, strict=True)
            if part is None or column.name in part.reads
        )
        wanted = added | set(names)
        self.fills = [
            (part, found)
            for part in now.filling
            if (found := {name: one for name, one in part.columns.items() if name in wanted})
        ]
        # Replaced fields that no batch has, and a layer reads for its further columns.
        self._left_out = frozenset[str]().union(
            *(part.reads & part.replaced for part, found in self.fills if part.added & set(found))
        ) - set(names)
        self.base += tuple(column for column in now.ring.columns if column.name in self._left_out)
        has_discount = now.nstep is not None and now.nstep.discount
        self._no_discount = has_discount and "discount" not in added

    def read(
        self, slots: Slots, given: Batch | None, steps: Slots | None
    ) -> tuple[Batch, Walk | None]:
        """The columns of the rows in these slots, and their windows if layers read windows.

        ``given`` are the caller's arrays; ``steps`` is the n of each row, or None if n is fixed.
        """
        now, arrays = self.now, None
        if given is not None:
            arrays = [self._array_of(column, given, len(slots)) for column in self.base]
        if not now.walks:
            values = now.rows.take(slots, arrays, steps, self.base)
            if self._no_discount:
                del values["discount"]
            return values, None
        values, rows, counts, lengths = now.walk(slots, arrays, steps, self.base)
        if self._no_discount:
            del values["discount"]
        walk = rows, now.before, counts, lengths
        if not self.fills:
            return values, walk
        batch: dict[str, Any] = dict.fromkeys(self.order)  # in the order of the fields
        batch.update(values)
        out, n = given or {}, len(slots)
        for part, wanted in self.fills:
            windows = Windows(now.ring, slots, walk, part.around, now.rows.last_fields, values, out)
            found = part.layer.fill(windows, wanted)
            for name, spec in wanted.items():
                array: Any = found.get(name)
                if (
                    type(array) is not np.ndarray
                    or array.dtype != spec.dtype
                    or array.shape != (n, *spec.shape)
                ):
                    array = part.cast(name, array, spec, n)
                if name not in out:
                    batch[name] = aligned(array)
                    continue
                if array is not out[name]:
                    out[name][...] = array
                batch[name] = out[name]  # not a copy: revisions write to it
        for name in self._left_out:
            del batch[name]
        return batch, walk

    def _array_of(self, column: Column, given: Batch, n: int) -> Array:
        """The caller's array, or a fresh one for a field that a layer replaces."""
        if column.name in self.now.replaced_by:
            return new_array(self.now.ring, column, n)
        return given[column.name]


class ReadPlan:
    """Plan that reads batches of some columns."""

    def __init__(self, now: Opened, columns: tuple[Column, ...]) -> None:
        self.now = now
        self.columns = columns
        self.single = now.single & {*now.added, *ring_names(columns)}
        replaced = frozenset(now.replaced_by)
        plan = Plan(now.ring, columns, self.single, now.nstep, replaced)
        self.revisions = [
            revision
            for part in now.parts
            if part.revises and (revision := part.layer.revises(plan)) is not None
        ]
        # Layers whose columns are made by a revision and not by ``fill``.
        self.revised = [part for part in now.parts if part.columns and not part.fills]
        several = tuple(column for column in columns if column.name not in self.single)
        # Reads batches without a plan, if the plan would change nothing; else None.
        self.take = None if self.revisions else now.take_of_rows()
        self.rows = RowPlan(now, several, now.added - self.single)
        self.first: RowPlan | None = None
        if self.single:
            first = tuple(column for column in columns if column.name in self.single)
            self.first = RowPlan(now, first, now.added & self.single)


class Reading:
    """State of a batch during its read. ``choose`` returns n slots, or any number if n is None."""

    def __init__(
        self,
        plan: ReadPlan,
        choose: Choose,
        n: int | None,
        arrays: Batch | None,
        draws: int,
        *,
        located: bool,
    ) -> None:
        self.plan = plan
        self.choose = choose
        self.n = n
        self.arrays = arrays
        self.located = located
        self.items = 0  # items of the last attempt
        self.slots: Slots = NO_SLOTS  # rows of the last attempt
        self.revisions: list[Revision] = []
        for revision in plan.revisions:
            self.revisions.append(revision(draws))

    def attempt(self) -> tuple[Slots, Batch] | None:
        """Choose rows and read them; None if they were overwritten or cleared."""
        now = self.plan.now
        ring = now.ring
        moment = ring.now()
        slots, extra = self.choose()
        self.slots = slots
        self.items = n = len(slots) if self.n is None else self.n
        check_drawn(now.sampler, slots, extra, n, now.names, now.further)
        batch: Batch | None
        if now.items is None:
            steps = None if now.least == now.most else now.draw_steps(n)
            batch, walk = self.plan.rows.read(slots, self.arrays, steps)
            if self.revisions and not self._choose(slots, slots, n, (), None, None, walk, batch):
                return None
        else:
            batch = self._read_items(slots)
        if batch is None:
            return None
        # ``Ring.holds`` does not check the rows before the drawn ones.
        if now.before and not ring.is_now(moment) and not now.all_drawable(slots):
            return None
        for name, values in extra.items():
            batch[name] = aligned(values)
        return slots, batch

    def _read_items(self, slots: Slots) -> Batch | None:
        now, plan = self.plan.now, self.plan
        reader, items = now.items_reader, now.items
        assert reader is not None
        assert items is not None
        walk: Walk | None = None
        if now.is_plain:
            located = self.located or bool(self.revisions)
            taken = reader.copy(slots, plan.columns, plan.single, self.arrays, located)
            if taken is None:
                return None
        else:
            taken = reader.locate(slots)
            if taken is None:
                return None
            walk = self._read_rows(taken)
        if self.revisions and not self._choose_items(slots, taken, walk):
            return None
        taken.batch[items.mark] = taken.marks
        if self.located:
            taken.batch[ROW_INDEXES] = reader.indexes(taken)
        return taken.batch

    def _read_rows(self, taken: Taken) -> Walk | None:
        """Read each row that is not padding, and put it into its place."""
        plan, there, rows = self.plan, taken.there, taken.slots
        assert rows is not None
        arrays = {} if self.arrays is None else self.arrays
        places = np.flatnonzero(there)
        steps = plan.now.draw_steps(len(places))
        found, walk = plan.rows.read(rows.ravel()[places], None, steps)
        batch = {
            name: spread(values, there, places, arrays.get(name)) for name, values in found.items()
        }
        if plan.first is not None:
            if steps is not None:
                steps = steps[places % there.shape[1] == 0]
            batch |= plan.first.read(np.ascontiguousarray(rows[:, 0]), self.arrays, steps)[0]
        taken.batch = {column.name: batch[column.name] for column in plan.columns} | batch
        return walk

    # ------------------------------------------------------------------ revisions

    def _choose_items(self, slots: Slots, taken: Taken, walk: Walk | None) -> bool:
        assert taken.slots is not None
        items = self.plan.now.items
        assert items is not None
        begins = taken.marks.copy() if items.across else np.zeros_like(taken.marks)
        begins[:, :1] = True
        places = np.flatnonzero(taken.there)
        runs = np.cumsum(begins.ravel())[places]
        return self._choose(
            slots,
            taken.slots.ravel()[places],
            len(slots),
            taken.there.shape[1:],
            places,
            np.diff(runs, prepend=0) != 0,
            walk,
            taken.batch,
        )

    def _choose(
        self,
        drawn: Slots,
        slots: Slots,
        n: int,
        shape: tuple[int, ...],
        places: Slots | None,
        begins: NDArray[np.bool_] | None,
        walk: Walk | None,
        batch: Batch,
    ) -> bool:
        """Call ``choose`` of each revision; false if one finds that rows changed."""
        now, windows = self.plan.now, None
        if walk is not None:
            around = now.before, walk[0].shape[1] - 1 - now.before
            windows = Windows(now.ring, slots, walk, around, now.rows.last_fields, batch, {})
        rows = Drawn(
            slots=slots,
            items=n,
            shape=shape,
            places=places,
            begins=begins,
            windows=windows,
            rng=now.buffer.rng,
            others=now.others,
            still=partial(now.all_drawable, drawn),
            read=now.read_again,  # no method of ``self``, which would make a cycle
        )
        for revision in self.revisions:  # noqa: SIM110 (generators change StopIteration of users)
            if not revision.choose(rows, batch):
                return False
        return True

    def write(self, batch: Batch) -> bool:
        """Write the revised columns; false if rows were overwritten, so new rows must be drawn."""
        for revision in self.revisions:
            if not revision.write(batch):
                return False
        now = self.plan.now
        for part in self.plan.revised:
            for name in part.columns:
                found = part.cast(name, batch.get(name), now.further[name], self.items, "revises")
                batch[name] = aligned(found)
        return True
