"""Reader of a view: its layers over the rows of one ring, and one batch while it is read.

Layers declare by hooks which rows they read and which columns they make; no layer is known by name
here. Not here: the layers (``views``), which rows are drawn (``samplers``), and the methods that
users call (``_view``).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.checks import as_int
from cpprb_like._fields import casting
from cpprb_like._fields.checked_options import warn_of_short_windows
from cpprb_like._fields.derived import NStepReturns
from cpprb_like._fields.schema import read_columns, read_names
from cpprb_like._machine.aligned import aligned
from cpprb_like._machine.machine_memory import CHECKED_NBYTES, require
from cpprb_like._rows.column import Column
from cpprb_like._rows.gather import new_array, take
from cpprb_like._rows.row_handles import handles, public_slots
from cpprb_like.buffers._entry import SampleOptions, check_drawn, take_drawn
from cpprb_like.buffers._source import Batch, ColumnSpec, MomentSource
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.samplers import Extra, Prioritized, Slots
from cpprb_like.samplers._base import with_handles
from cpprb_like.samplers._rows import AllRows, Rows
from cpprb_like.samplers._ruled import Ruled, RuledRows
from cpprb_like.samplers._rules import Choice, Rules
from cpprb_like.samplers._shares import SharedRows
from cpprb_like.samplers._starts import Starts, choose_rows
from cpprb_like.samplers._uniform_draws import Epoch
from cpprb_like.views._item_layouts import ItemLayout, Padded
from cpprb_like.views._items_of_batch import LaidItems, RaggedFields, StoredFields, TakeItems
from cpprb_like.views._layer import IS_PAD, Items, Layer, Steps, ViewedRows, wrong_return
from cpprb_like.views._rows import RowReader, read_fields
from cpprb_like.views._rule import Rule
from cpprb_like.views._sequences import (
    ROW_INDEXES,
    PartOfBatch,
    SequenceReader,
    by_row,
    put_rows,
    spread,
)
from cpprb_like.views._taken import Taken
from cpprb_like.views._windows import Attempt, WalkedRows, Windows

__all__ = ["Choose", "Opened", "ReadPlan", "Reading", "chunks"]

Array = NDArray[Any]
NO_SLOTS = np.empty(0, np.intp)
Choose = Callable[[], tuple[Slots, Extra]]


class OpenLayer:
    """One layer over the rows of one ring, and the checked results of its hooks."""

    def __init__(self, layer: Layer, rows: ViewedRows, fields: dict[str, ColumnSpec]) -> None:
        self.name = type(layer).__name__
        self.layer = opened = layer.open(rows)
        if not isinstance(opened, Layer):
            raise self._wrong("open", "a Layer", opened)
        around = self._pair_of("around", "numbers of rows before and behind", opened.around(fields))
        before, after = (as_int(f"{self.name}.around", count, 0) for count in around)
        self.around = before, after
        self.reads = self._fields_of("reads", opened.reads(fields), fields)
        self.follows = frozenset[str]()
        if isinstance(opened, Rule):
            self.follows = self._fields_of("follows", opened.follows(fields), fields)
        self.changes = self._names_of("changes", opened.changes(fields))
        self.columns: dict[str, ColumnSpec] = {}
        self.replaced = self.added = frozenset[str]()

    def read_columns(
        self, made: Mapping[str, ColumnSpec], fields: Mapping[str, ColumnSpec]
    ) -> None:
        """Read which columns the layer makes beside the columns ``made`` without it."""
        opened = self.layer
        columns: Any = opened.columns(made)
        if not isinstance(columns, Mapping):
            raise self._wrong("columns", "a dict of (dtype, shape)", columns)
        self.columns = {name: self._column_of(name, found) for name, found in columns.items()}
        self.replaced = frozenset(self.columns) & frozenset(fields)
        self.added = frozenset(self.columns) - frozenset(fields)
        wrong = sorted(self.changes - frozenset(made))
        if wrong:
            raise ValueError(
                f"{self.name}.changes: expected some of the columns {list(made)}, got {wrong[0]!r}"
            )
        if (self.columns or self.changes) and type(opened).fill is Layer.fill:
            raise TypeError(
                f"{self.name}: expected a method fill, which makes "
                f"{[*self.columns, *sorted(self.changes)]}, got none"
            )

    def _wrong(self, hook: str, expected: str, found: object) -> TypeError:
        """The error for a hook that returned something else."""
        return wrong_return(f"{self.name}.{hook}", expected, found)

    def _pair_of(self, hook: str, expected: str, found: Any) -> tuple[Any, Any]:
        try:
            first, second = found
        except (TypeError, ValueError):
            raise self._wrong(hook, expected, found) from None
        return first, second

    def _names_of(self, hook: str, names: Any) -> frozenset[str]:
        try:
            if not isinstance(names, str):
                return frozenset(names)
        except TypeError:  # no iterable, or of what is no name
            pass
        raise self._wrong(hook, "names of fields", names)

    def _fields_of(
        self, hook: str, names: Iterable[str], fields: dict[str, ColumnSpec]
    ) -> frozenset[str]:
        found = self._names_of(hook, names)
        if not found <= set(fields):
            wrong = sorted(map(str, found - set(fields)))
            raise ValueError(
                f"{self.name}.{hook}: expected some of the fields {list(fields)}, got {wrong[0]!r}"
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

    def by_name(self, found: Any) -> Mapping[str, Array]:
        """What ``fill`` returned, or the function that it returned: arrays by name."""
        if not isinstance(found, Mapping):
            raise self._wrong("fill", "arrays by name", found)
        return found

    def cast(self, name: str, values: Any, spec: ColumnSpec, n: int) -> Array:
        """Values of n rows that ``fill`` returned for a column, cast to its dtype."""
        shape = (n, *spec.shape)
        if type(values) is np.ndarray and values.dtype == spec.dtype and values.shape == shape:
            return values
        where = f"{self.name}.fill"
        if not isinstance(values, np.ndarray):
            found = "nothing" if values is None else f"{type(values).__name__}"
            raise TypeError(f"{where}: expected an array for {name!r}, got {found}")
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

    _bits = 0  # low bits of the number of a row, which are the number of its ring

    def __init__(self, buffer: MomentSource, layers: tuple[Layer, ...]) -> None:
        self.buffer = buffer
        self.ring = ring = buffer.ring
        self.sampler = buffer.sampler
        self.columns = tuple(column for column in ring.columns if not column.is_entry)
        fields = {column.name: ColumnSpec(column.dtype, column.shape) for column in self.columns}
        self._open_items(layers, fields)
        self.names = frozenset(fields)
        self.nstep: NStepReturns | None
        self.nstep, self.least = self._read_steps(layers)
        numbers = ring.capacity << self._bits
        rows = ViewedRows(ring, buffer.schema, self.nstep, numbers)
        self.parts = [OpenLayer(layer, rows, fields) for layer in layers]
        self.most = 1 if self.nstep is None else self.nstep.size
        self.items: Items | None = None
        for part in self.parts:
            found = part.layer.items()
            if not isinstance(found, Items | None):
                raise wrong_return(f"{part.name}.items", "Items or None", found)
            if found is not None and self.items is not None:
                raise ValueError(f"{part.name}: expected one layer that says what an item is")
            self.items = found if found is not None else self.items
        self._open_columns(fields)
        rules = [
            (part.name, self._reader_of(part.follows), part.layer)
            for part in self.parts
            if isinstance(part.layer, Rule)
        ]
        self.rules = Rules(rules, numbers, self._bits) if rules else None
        self.before = max((part.around[0] for part in self.parts), default=0)
        self.after = max((part.around[1] for part in self.parts), default=0)
        self._open_starts()
        self._open_reader()
        self.items_reader: SequenceReader | None = None
        if self.items is not None:
            split = self._splitter(
                rows=self.items.rows, least=1, across=self.items.across, stride=1
            )
            self.items_reader = SequenceReader(self.ring, self.items, split)
        # Whether items hold stored values only.
        self.is_plain = self.nstep is None and not self.makers and not self.remade

    def read_columns(self, fields: str | Iterable[str] | None) -> tuple[Column, ...] | None:
        """The columns that the option ``fields`` names; it may name those of layers too."""
        return read_columns(fields, self.columns, self.further)

    def _open_items(self, layers: tuple[Layer, ...], fields: dict[str, ColumnSpec]) -> None:
        """Lay out values of any length; ``fields`` gets their dtypes and shapes."""
        said: list[ItemLayout] = []
        for layer in layers:
            layout = layer.item_layout()
            if isinstance(layout, ItemLayout):
                said.append(layout)
            elif layout is not None:
                raise wrong_return("item_layout", "Padded, Packed or None", layout)
        if len(said) > 1:
            raise ValueError(f"{said[1]!r}: expected one layout of values of any length")
        ragged = RaggedFields.of(self.ring, self.buffer.schema)
        self.laid: LaidItems | None = None
        self.packed = frozenset[str]()  # columns with the items of all rows of a batch
        self.kind_of_plan: type[ReadPlan] = ReadPlan
        self.windows: Callable[..., Windows] = Windows
        self.stored: Callable[..., Batch] = partial(read_fields, self.ring)
        if ragged is None:
            if said:
                raise ValueError(
                    f"{said[0]!r}: expected a field with a named axis, such as ('T',), or a text; "
                    f"got the fields {list(fields)}"
                )
            return
        self.laid = laid = (said[0] if said else Padded()).lay(ragged)
        self.kind_of_plan = ItemReadPlan
        self.windows = partial(fixed_windows, ragged.hidden)
        self.stored_fields = StoredFields(ragged)
        self.stored = self.stored_fields.read
        if laid.is_packed:
            self.packed = frozenset(ragged.fields) - ragged.texts | frozenset(laid.marks)
        fields.update(laid.specs)

    def _read_steps(self, layers: tuple[Layer, ...]) -> tuple[NStepReturns | None, int]:
        """The n-step returns of the view, or None for single steps, and the least n."""
        buffer, default = self.buffer, self.buffer._nstep
        said = [
            (layer, steps)
            for layer in layers
            if (steps := layer.steps(buffer.schema, default)) is not None
        ]
        if len(said) > 1:
            name = type(said[1][0]).__name__
            raise ValueError(f"{name}: expected one layer that says the n of rows")
        for layer, steps in said:
            if not isinstance(steps, Steps):
                raise wrong_return(f"{type(layer).__name__}.steps", "Steps or None", steps)
        if not said:
            return default, 1 if default is None else default.size
        steps = said[0][1]
        if default is None and steps.returns is not None:
            says = steps.says_discount
            warn_of_short_windows(steps.returns, buffer.schema, says_discount=says)
        return steps.returns, steps.least

    def _check_parts(self) -> None:
        """Raise ``ValueError`` if two layers make a column, or one changes what another reads."""
        summed = set() if self.nstep is None else set(self.nstep.rewards)
        makers: dict[str, str] = {}
        for part in self.parts:
            for name in part.columns.keys() - part.changes:
                if name in makers:
                    raise ValueError(f"{part.name}: {makers[name]} makes the column {name!r} too")
                if name in summed:
                    raise ValueError(f"{part.name}: n-step returns make the column {name!r} too")
                makers[name] = part.name
            for other in self.parts:
                read = (part.reads - part.replaced) | part.changes
                both = sorted(other.changes & read)
                if both and other is not part:
                    raise ValueError(f"{part.name}: {both} are changed by {other.name}")

    def _open_starts(self) -> None:
        """Make ``starts``, the rows to draw from, and ``complete``, those without rules."""
        items, ring = self.items, self.ring
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
        draws_all = items is None and not self.before and after <= ring.lookahead
        self.complete: Rows = AllRows(ring) if draws_all else self._starts_of(rows)
        self.starts = self.complete
        if self.rules is not None:
            ruled = self._ruled(self.rules)
            self.starts = ruled if self.rules.share is None else SharedRows(ruled)
        # Whether all rows that the buffer draws can be drawn.
        self.draws_all = draws_all and self.rules is None

    def _ruled(self, rules: Rules) -> RuledRows:
        """The rows to which the rules of all layers give a mass."""
        return Ruled(self.ring, self.complete, rules)

    def _reader_of(self, names: frozenset[str]) -> Callable[[Slots], Batch]:
        """A function that reads some fields of rows, as they were added."""
        columns = tuple(column for column in self.ring.stored_columns if column.name in names)
        if len(columns) == len(names) and self.laid is None:
            return partial(take, self.ring, arrays=None, columns=columns)
        return partial(self.stored, names=names)

    def _starts_of(self, rows: int) -> Rows:
        """Starts: rows around which the ring has all rows that the layers read."""
        items = self.items
        across = items is not None and items.across
        starts: Rows = self.buffer._starts(
            rows=rows,
            least=rows if across else 1 if items is None else items.least,
            across=across,
            stride=1 if items is None else items.stride,
            before=self.before,
        )
        return starts

    def _open_reader(self) -> None:
        """Make the reader of single rows."""
        is_single = self.most == 1 and not self.before and not self.after
        self.walks = bool(self.makers or self.changers) and not is_single
        self.rows = RowReader(
            self.ring, self.nstep, (self.before, self.after) if self.walks else None
        )
        self.walk: Any = self.rows.walk_of()  # ``Walker.take``; None without windows
        # Bytes of an item beside its columns: places of rows, and slots of the windows.
        rows = 1 if self.items is None else self.items.rows
        self.beside_nbytes = 0 if self.items is None else 16 * rows
        if self.walks:
            self.beside_nbytes += 8 * rows * (self.before + 1 + max(self.most - 1, self.after))
        self.item_nbytes = self.beside_nbytes + sum(map(self._nbytes_of, ring_names(self.columns)))

    def _open_columns(self, fields: dict[str, ColumnSpec]) -> None:
        """Compute dtype and shape of the columns of a batch; ``first_only`` ones have one row."""
        items, nstep, laid = self.items, self.nstep, self.laid
        made = dict(fields)  # dtype and shape of a row
        if nstep is not None and nstep.discount:
            made.setdefault("discount", ColumnSpec(np.dtype(np.float32), nstep.discount_shape))
        marks: dict[str, ColumnSpec] = {}
        if items is not None:
            marks[items.mark] = ColumnSpec(np.dtype(np.bool_), ())
        own = {*marks, "indexes", ROW_INDEXES, *self.sampler.columns}
        own |= set() if laid is None else set(laid.marks)
        taken = {*made, *own} - set(fields)
        # Layers that make columns of the rows, then layers that change columns of others.
        self.makers = [part for part in self.parts if not part.changes]
        self.changers = [part for part in self.parts if part.changes]
        for part in self.makers:
            part.read_columns(fields, fields)
        self.makers = [part for part in self.makers if part.columns]
        self.replaced_by = {name: part for part in self.makers for name in part.replaced}
        self.packed -= frozenset(self.replaced_by)
        for part in self.makers:
            self._refuse_taken(part, taken)
            made |= part.columns
        self.made = frozenset(made)
        self.added = self.made - frozenset(fields)  # further columns, read with the rows
        self.remade = frozenset[str]()  # columns that a layer gives another dtype or shape
        final = dict(made)
        for part in self.changers:
            part.read_columns(made, fields)
            self._refuse_taken(part, taken - self.added)
            final |= part.columns
        self.remade = frozenset(name for name, spec in made.items() if final[name] != spec)
        self._check_parts()
        self.row_specs = final
        self.single = frozenset[str]()
        if items is not None:
            names = [*fields, *self.added]
            self.single = frozenset(read_names("first_only", items.first_only, names))
            self.single |= self.added & {name + IS_PAD for name in self.single}
        if laid is not None:
            self._check_items(laid)
        self.specs = {name: self._item_spec(name, final[name]) for name in fields}
        further = {name: final[name] for name in made if name not in fields}
        if laid is not None:
            marks |= laid.plan(fields, self.replaced_by).marks
        further |= marks | {name: final[name] for name in final if name not in made}
        self.further = {name: self._item_spec(name, spec) for name, spec in further.items()}
        twice = sorted(set(fields) & set(self.further))
        if twice:
            raise ValueError(f"view adds the column {twice[0]!r}: a field has this name")

    def _check_items(self, laid: LaidItems) -> None:
        """Raise ``ValueError`` if fields of an axis are read of different rows, or changed."""
        ragged = laid.ragged
        for axis in ragged.axes_of_first_only(self.single, laid.counted):
            self.single |= {ragged.entries[axis].name, *laid.names_of_marks[axis]}
        for part in self.changers:
            wrong = sorted((part.changes | part.replaced) & set(ragged.fields))
            if wrong:
                raise ValueError(
                    f"{part.name}: field {wrong[0]!r} has values of any length, which no layer "
                    "changes"
                )

    @staticmethod
    def _refuse_taken(part: OpenLayer, taken: AbstractSet[str]) -> None:
        """Raise ``ValueError`` if a layer makes a column that the view or the sampler makes."""
        for name in part.columns:
            if name in taken:
                raise ValueError(f"{part.name}: {name!r} is a further column of the view")

    def _item_spec(self, name: str, spec: ColumnSpec) -> ColumnSpec:
        """Dtype and shape of an item of a column, from those of a row."""
        if self.items is None or name in self.single or name in self.packed:
            return spec
        return ColumnSpec(spec.dtype, (self.items.rows, *spec.shape))

    def _splitter(self, **options: Any) -> Callable[[Slots], list[PartOfBatch]]:
        """A function that splits a batch of items, with these ``Starts``, into its rings."""
        starts = Starts(self.buffer._episodes, **options)
        return lambda slots: [(starts, slots, None)]

    # ------------------------------------------------------------------ plans

    def take_of_rows(self) -> Callable[..., Batch] | None:
        """Function that reads batches of single rows, as ``RowReader.take``.

        None if more than the rows of n-step returns is read, or if n is drawn.
        """
        if self.items is not None or self.before or self.makers or self.least < self.most:
            return None
        if self.rules is not None and self.rules.shape_draws:
            return None
        return self.rows.take_of_rows()

    def plan(self, columns: tuple[Column, ...] | None) -> ReadPlan:
        """The plan of batches of these columns, or of all.

        This object has no reference to a plan, as a cycle would keep the rows alive.
        """
        return self.kind_of_plan(self, self.columns if columns is None else columns)

    def require_memory(self, n: int, columns: tuple[Column, ...] | None) -> None:
        """Raise ``MemoryError`` if n items of these columns do not fit into the memory left."""
        nbytes = self.item_nbytes  # all columns: only large batches need the exact number
        if n * nbytes >= CHECKED_NBYTES and columns is not None:
            nbytes = self.beside_nbytes + sum(map(self._nbytes_of, ring_names(columns)))
        require(n * nbytes, f"a batch of {n} items of {nbytes} bytes")

    def _nbytes_of(self, name: str) -> int:
        """Bytes of an item of a column."""
        spec = self.specs[name]
        # Of items one for each row; their memory is required when their number is known.
        lengths: list[Any] = [one for one in spec.shape if type(one) is int]
        nbytes: int = spec.dtype.itemsize * math.prod(lengths)
        return nbytes

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
        if not self.draws_all:
            drawn = sampler.draw_starts(self.starts, n, rng, **keywords)
            slots, extra = take_drawn(sampler, "draw_starts", drawn)
        elif len(ring) == 0:
            raise NotEnoughDataError("cannot sample: the buffer is empty")
        else:
            slots, extra = take_drawn(sampler, "draw", sampler.draw(ring, n, rng, **keywords))
        if options.indexes and not self.buffer.has_priorities:
            extra = with_handles(sampler, ring, slots, extra)
        return slots, extra

    def draw_shaped(
        self, rules: Rules, n: int, options: SampleOptions, choice: Choice
    ) -> tuple[Slots, Extra]:
        """``draw`` where rules draw groups, or count draws; in their turn."""
        if rules.counts:
            options = options.but(replace=False)
        slots, extra = self.draw(rules.groups_of(n), options)
        if rules.group is not None:
            slots, size = rules.members(slots), rules.group_size
            extra = {
                name: self._indexes(slots) if name == "indexes" else one.repeat(size, 0)
                for name, one in extra.items()
            }
        if rules.counts:
            choice.rows, choice.names_of = slots, partial(handles, self.ring)
            choice.names = choice.names_of(slots)
        return slots, extra

    def _indexes(self, slots: Slots) -> NDArray[np.int64]:
        """What ``update_priorities`` takes for these rows."""
        names = handles if getattr(self.sampler, "check_for_update", True) else public_slots
        found: NDArray[np.int64] = names(self.ring, slots)
        return found

    def draw_steps(self, n: int) -> Slots | None:
        """Random numbers of steps of n rows; None if the number is fixed."""
        if self.nstep is None or self.least == self.most:
            return None
        drawn = self.buffer.rng.integers(self.least, self.most, n, endpoint=True)
        return drawn.astype(np.intp, copy=False)

    def others(self, slots: Slots, rng: np.random.Generator, strategy: int) -> Slots:
        """Slots of other rows of the same episodes: see ``choose_rows``."""
        return choose_rows(self.buffer._episodes, slots, rng, strategy)

    def drawable(self, slots: Slots) -> Slots:
        """The slots whose rows can be drawn, out of these."""
        drawable: Slots = slots[self.starts.tell(slots) == 1]
        return drawable

    def leaders(self, slots: Slots) -> Slots:
        """The rows by whose weight and mass rows are drawn: one for a whole group."""
        if self.rules is None or self.rules.group is None:
            return slots
        self.starts.tell(slots[:0])  # the rules are told of all rows
        leaders = self.rules.group.leaders(slots)
        return np.where(leaders < 0, slots, leaders)

    def has_starts(self) -> bool:
        """Whether any row of the buffer can be drawn by this view."""
        if self.draws_all:
            return True
        return self.buffer.consistently(self._try_start)

    def _try_start(self) -> tuple[Slots, bool]:
        try:
            return self.starts.draw(1, self._tries), True
        except NotEnoughDataError:
            return np.empty(0, np.intp), False

    def check_distinct(self, n: int) -> tuple[Slots, None]:
        """Raise ``NotEnoughDataError`` if a draw of n different rows would."""
        starts: Any = self.starts
        if self.rules is None:
            starts.draw_distinct(n, self._tries)
        else:
            by = self.sampler.rows if isinstance(self.sampler, Prioritized) else None
            starts.over(by)  # with the weights of the draw to come
            starts.check_distinct(n, self._tries)
        return NO_SLOTS, None

    def all_drawable(self, slots: Slots) -> bool:
        """Whether the rows before these are still present, which ``Ring.holds`` does not check."""
        if self.before == 0:
            return True
        try:
            return bool((self.starts.tell(slots) == 1).all())
        except IndexError:  # the ring was cleared
            return False

    def epoch(self, rng: np.random.Generator | None) -> Callable[[int], Slots]:
        """A function that returns the next n rows of an epoch of all rows that can be drawn."""
        if self.draws_all:
            return Epoch(self.ring, rng).take
        rules = self.rules
        if rules is not None and (rules.shape_draws or rules.share is not None):
            raise ValueError(
                "epoch: rows that come in groups, by shares, or so many times, have no epoch"
            )
        order = self.buffer.consistently(self._list_starts)
        if rng is not None:
            order = rng.permutation(order)
        return chunks(order)

    def _list_starts(self) -> tuple[Slots, Slots]:
        """All starts. ``drawable`` leaves out rows that are overwritten later."""
        order = self.starts.slots()
        return order[:0], order


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
            for part in now.makers
            if (found := {name: one for name, one in part.columns.items() if name in wanted})
        ]
        # Replaced fields that no batch has, and a layer reads for its further columns.
        self._left_out = frozenset[str]().union(
            *(part.reads & part.replaced for part, found in self.fills if part.added & set(found))
        ) - set(names)
        self.base += tuple(column for column in now.columns if column.name in self._left_out)
        has_discount = now.nstep is not None and now.nstep.discount
        self._no_discount = has_discount and "discount" not in added

    def read(
        self,
        slots: Slots,
        given: Batch | None,
        steps: Slots | None,
        attempt: Attempt,
        taken: Taken | None = None,
    ) -> tuple[Batch, WalkedRows | None]:
        """The columns of the rows in these slots, and their windows if layers read windows.

        ``given`` are the caller's arrays, but for columns that another layer gives another shape;
        ``steps`` is the n of each row, or None if n is fixed.
        """
        now, arrays = self.now, None
        walk: WalkedRows | None = None
        if given is not None:
            arrays = [self._array_of(column, given, len(slots)) for column in self.base]
        if not now.walks:
            values = now.rows.take(slots, arrays, steps, self.base)
        else:
            values, rows, counts, lengths = now.walk(slots, arrays, steps, self.base)
            walk = rows, now.before, counts, lengths
        if self._no_discount:
            del values["discount"]
        if not self.fills:
            return values, walk
        batch: dict[str, Any] = dict.fromkeys(self.order)  # in the order of the fields
        batch.update(values)
        out, last, n = given or {}, now.rows.last_fields, len(slots)
        for part, wanted in self.fills:
            windows = now.windows(attempt, slots, walk, part.around, last, values, out, taken)
            found = part.layer.fill(windows, wanted)
            if callable(found):
                raise TypeError(f"{part.name}.fill: expected arrays, got a function; see changes")
            # A call, and a look at an abstract class, are a tenth of a small batch.
            arrays_of_part = found if type(found) is dict else part.by_name(found)
            for name, spec in wanted.items():
                array: Any = arrays_of_part.get(name)
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
                batch[name] = out[name]  # not a copy: later layers write to it
        for name in self._left_out:
            del batch[name]
        return batch, walk

    def _array_of(self, column: Column, given: Batch, n: int) -> Array:
        """The caller's array, or a fresh one for a field to which a layer gives other values."""
        if column.name in self.now.replaced_by or column.name not in given:
            return new_array(self.now.ring, column, n)
        return given[column.name]


class ReadPlan:
    """Plan that reads batches of some columns."""

    reading: ClassVar[type[Reading]]

    def __init__(self, now: Opened, columns: tuple[Column, ...]) -> None:
        self.now = now
        self.columns = columns
        names = frozenset(ring_names(columns))
        self.single = now.single & (now.added | names)
        wanted = {
            name: spec for name, spec in now.row_specs.items() if name in names | {*now.further}
        }
        # Layers that change columns of the batch, and which of them.
        self.changes: list[tuple[OpenLayer, dict[str, ColumnSpec]]] = []
        for part in now.changers:
            own = part.changes | set(part.columns)
            found = {name: spec for name, spec in wanted.items() if name in own}
            if found:
                self.changes.append((part, found))
        # Those that are there before.
        self.changed = [name for _, found in self.changes for name in found if name in now.made]
        # Reads batches without a plan, if the plan would change nothing; else None.
        self.take: Callable[..., Any] | None = None if self.changes else now.take_of_rows()
        several = tuple(column for column in columns if column.name not in self.single)
        self.rows = RowPlan(now, several, now.added - self.single)
        self.first: RowPlan | None = None
        if self.single:
            first = tuple(column for column in columns if column.name in self.single)
            self.first = RowPlan(now, first, now.added & self.single)
        # Columns whose values are as the rows are stored.
        self.stored = frozenset(ring_names(several)) - frozenset(now.replaced_by)
        for part in now.changers:
            self.stored -= part.changes
        if now.nstep is not None and now.most > 1:
            self.stored -= {*now.nstep.rewards, *now.nstep.last_step_fields}


class RowValues(dict[str, Array]):
    """Columns of the rows of items: read by row, or taken out of the items when asked for."""

    def __init__(self, values: Batch, taken: Taken, single: frozenset[str]) -> None:
        super().__init__(values)
        self._taken = taken
        self._single = single

    def __missing__(self, name: str) -> Array:
        column, taken = self._taken.batch[name], self._taken
        if name in self._single:
            found = column.take(taken.items, axis=0)
        else:
            found = by_row(column).take(taken.places, axis=0)
        self[name] = found
        return found


class Reading(Attempt):
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
        self.arrays = {} if arrays is None else arrays  # of the caller
        self.direct = arrays  # those that have the shape of what is read
        if arrays is not None and (remade := plan.now.remade):
            self.direct = {name: one for name, one in arrays.items() if name not in remade} or None
        self.located = located
        self.draws = draws
        self.ring = plan.now.ring
        self.rng = plan.now.buffer.rng
        self.slots: Slots = NO_SLOTS  # rows of the last attempt
        self.taken: Taken | None = None  # of the last attempt, for items of several rows
        # Functions of layers that compute columns when the batch is read; they refer to ``self``.
        self.later: list[
            tuple[OpenLayer, dict[str, ColumnSpec], Callable[[], Mapping[str, Array]]]
        ] = []

    def others(self, slots: Slots, strategy: int) -> Slots:
        return self.plan.now.others(slots, self.rng, strategy)

    def steps(self, slots: Slots, names: frozenset[str]) -> Batch:
        """See ``Attempt.steps``: without the layers that change columns."""
        columns = tuple(column for column in self.plan.now.columns if column.name in names)
        plan = RowPlan(self.plan.now, columns, frozenset())
        return plan.read(slots, None, np.ones(len(slots), np.intp), self)[0]

    def attempt(self) -> tuple[Slots, Batch] | None:
        """Choose rows and read them; None if they were overwritten or cleared."""
        now, plan, ring = self.plan.now, self.plan, self.ring
        moment = self.moment = ring.now()
        self.is_gone, self.later = False, []
        slots, extra = self.choose()
        self.slots = slots
        n = len(slots) if self.n is None else self.n
        check_drawn(now.sampler, slots, extra, n, now.names, now.further)
        batch: Batch | None
        if now.items is None:
            steps = None if now.least == now.most else now.draw_steps(n)
            batch, walk = plan.rows.read(slots, self.direct, steps, self)
            if plan.changes:
                self._change(slots, walk, batch, batch)
        else:
            batch = self._read_items(slots)
        if batch is None or self.is_gone:
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
        if now.is_plain:
            located = self.located or bool(plan.changes)
            taken = reader.copy(slots, plan.columns, plan.single, self.direct, located)
        else:
            taken = reader.locate(slots)
        if taken is None:
            return None
        self.taken = taken
        walk: WalkedRows | None = None
        values: Batch = {}  # of single rows
        if not now.is_plain:
            values, walk = self._read_rows(taken)
        if plan.changes:
            values = RowValues(values, taken, plan.single)
            for name in plan.changed:  # before a layer changes it
                values[name]
            self._change(taken.row_slots, walk, values, taken.batch)
        taken.batch[items.mark] = taken.marks
        if self.located:
            taken.batch[ROW_INDEXES] = reader.indexes(taken)
        return taken.batch

    def _read_rows(self, taken: Taken) -> tuple[Batch, WalkedRows | None]:
        """Read each row that is not padding, and put it into its place."""
        plan, places, slots = self.plan, taken.places, taken.slots
        assert slots is not None
        steps = plan.now.draw_steps(len(places))
        found, walk = plan.rows.read(taken.row_slots, None, steps, self, taken)
        given = self.direct or {}
        batch = {
            name: spread(values, taken.there, places, given.get(name))
            for name, values in found.items()
        }
        if plan.first is not None:
            if steps is not None:
                steps = steps[taken.firsts]
            first = np.ascontiguousarray(slots[:, 0])
            batch |= plan.first.read(first, self.direct, steps, self)[0]
        taken.batch = {column.name: batch[column.name] for column in plan.columns} | batch
        return found, walk

    # ------------------------------------------------------------------ layers with changes

    def _change(
        self, slots: Slots, walk: WalkedRows | None, values: Mapping[str, Array], batch: Batch
    ) -> None:
        """Call the layers that change columns. ``values`` are the columns of single rows."""
        plan, last, taken = self.plan, self.plan.now.rows.last_fields, self.taken
        stored = plan.stored if taken is None else frozenset[str]()
        for part, wanted in plan.changes:
            windows = plan.now.windows(
                self, slots, walk, part.around, last, values, self.arrays, taken, stored
            )
            found = part.layer.fill(windows, wanted)
            if callable(found):
                self.later.append((part, wanted, found))
            else:
                self._put(part, wanted, found, batch)

    def _put(
        self,
        part: OpenLayer,
        wanted: dict[str, ColumnSpec],
        found: Mapping[str, Array],
        batch: Batch,
    ) -> None:
        """Put columns of single rows into the batch."""
        taken = self.taken
        n = len(self.slots) if taken is None else len(taken.places)
        found = part.by_name(found)
        for name, spec in wanted.items():
            values = part.cast(name, found.get(name), spec, n)
            given = self.arrays.get(name)
            if taken is not None and name not in self.plan.single:
                if name in self.plan.changed and name not in self.plan.now.remade:
                    put_rows(by_row(batch[name]), taken.places, values)
                else:
                    batch[name] = aligned(spread(values, taken.there, taken.places, given))
                continue
            if taken is not None:
                values = values[taken.firsts]
            if given is None:
                batch[name] = aligned(values)
                continue
            if values is not given:
                given[...] = values
            batch[name] = given

    def finish(self, batch: Batch) -> bool:
        """Call the functions that layers returned; false if new rows must be drawn.

        That is if a function read a row that was overwritten after the batch was read.
        """
        later, self.later = self.later, []  # no cycle
        for part, wanted, compute in later:
            try:
                found = compute()
            except Exception:
                if not self.is_gone:
                    raise
            if self.is_gone:
                return False
            self._put(part, wanted, found, batch)
        return True


ReadPlan.reading = Reading


class ItemReadPlan(ReadPlan):
    """Plan that reads batches with values of any length."""

    def __init__(self, now: Opened, columns: tuple[Column, ...]) -> None:
        laid = now.laid
        assert laid is not None
        self.items = laid.plan(ring_names(columns), now.replaced_by)
        super().__init__(now, self.items.columns)
        self.stored -= laid.ragged.hidden | {field.name for field in self.items.moved}
        if self.take is not None:
            self.take = TakeItems(self.items, self.take)


class ItemReading(Reading):
    """Reading of a batch with values of any length: entries first, then their items."""

    plan: ItemReadPlan

    def stored(self, slots: Slots, names: frozenset[str]) -> Batch:
        return self.plan.now.stored(slots, names)

    def around(self, name: str, slots: Slots) -> Array:
        laid = self.plan.now.laid
        if laid is None or name not in laid.ragged.fields:
            return super().around(name, slots)
        there = slots >= 0
        values = self.read(slots[there], frozenset((name,)))[name]
        return spread(values, there, np.flatnonzero(there), None)

    def lengths(self, axis: str, slots: Slots) -> NDArray[np.int64]:
        there, found = slots >= 0, np.zeros(slots.shape, np.int64)
        found[there] = self.plan.now.stored_fields.counts(slots[there], axis)
        return found

    def attempt(self) -> tuple[Slots, Batch] | None:
        found = super().attempt()
        if found is None or not self.ring.holds(self.moment, found[0]):
            return None
        slots, batch = found
        return slots, self.plan.items.put(batch, slots)


ItemReadPlan.reading = ItemReading


class FixedValues(dict[str, Array]):
    """Columns that layers see: those of values of any length are read by name."""

    def __missing__(self, name: str) -> Array:
        raise KeyError(
            f"{name!r}: values of any length are not read with the rows; windows.take reads them"
        )


def fixed_windows(
    hidden: frozenset[str],
    attempt: Attempt,
    slots: Slots,
    walk: WalkedRows | None,
    around: tuple[int, int],
    last: frozenset[str],
    values: Mapping[str, Array],
    *others: Any,
) -> Windows:
    """``Windows`` without the columns of the ring that hold no values."""
    if isinstance(values, RowValues):
        for name in hidden & values.keys():
            del values[name]
    else:
        values = FixedValues({name: one for name, one in values.items() if name not in hidden})
    return Windows(attempt, slots, walk, around, last, values, *others)
