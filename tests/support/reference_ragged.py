"""The slow, obvious twin of rows of any length: items lie in memory as a list of blocks.

Rows are Python dicts in a list, as in ``reference``. The items of a row on an axis are one block,
and blocks lie in the order in which they were placed. A row leaves early if there is no room for
the items of a newer one. Next values lie in the memory of their source, behind the items of their
row; a row whose items are the next ones of the row before has the same block. Batches are made of
loops over rows: see ``padded`` and ``packed``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Values = dict[str, Any]

END_NAMES = ("terminated", "truncated", "done")


@dataclass(frozen=True)
class RaggedField:
    """A field whose shape holds an axis of any length; of a text, the axis is its bytes."""

    name: str
    axis: str
    axis_at: int
    dtype: np.dtype[Any]
    shape: tuple[Any, ...]
    counts: str | None = None
    is_text: bool = False

    def length(self, value: Any) -> int:
        """Items of a value along the axis."""
        return len(value.encode()) if self.is_text else int(value.shape[self.axis_at])

    def empty(self, n: int) -> Array:
        """Zeros for n items."""
        shape = [n if extent == self.axis else extent for extent in self.shape]
        return np.zeros(shape, self.dtype)


def ragged_fields(env_dict: Mapping[str, Any]) -> dict[str, RaggedField]:
    """The fields with an axis, in declared order."""
    fields = {}
    for name, spec in env_dict.items():
        if spec.get("dtype") is str:
            fields[name] = RaggedField(
                name, name, 0, np.dtype(np.uint8), (name,), None, is_text=True
            )
            continue
        shape = spec.get("shape", 1)
        shape = (shape,) if isinstance(shape, (int, str)) else tuple(shape)
        axes = [place for place, extent in enumerate(shape) if isinstance(extent, str)]
        if axes:
            dtype = np.dtype(spec.get("dtype", np.float32)).newbyteorder("=")
            fields[name] = RaggedField(
                name, shape[axes[0]], axes[0], dtype, shape, spec.get("counts")
            )
    return fields


@dataclass(eq=False)
class RaggedRow:
    """A step: its values, and what became of it."""

    number: int  # of all rows since the last clear
    values: Values
    holds_step: bool = True  # false: ``add_where`` left it out
    there: bool = True  # false: absent, left, deleted or overwritten
    end: bool = False
    terminated: bool = False
    priority: float = 1.0
    nexts: dict[str, Block] = field(default_factory=dict)  # by axis: the block of next items


@dataclass(eq=False)
class Block:
    """Items in memory, and the rows that have them: none if they are dead."""

    rows: list[RaggedRow]
    count: int


class ReferenceRagged:
    """A ring of ``capacity`` rows, of which row ``i`` belongs to stream ``i % n_envs``.

    ``room`` is the most items of each axis: from the oldest living item to the newest one. The
    next values of the fields ``next_of`` are in ``env_dict``, and count on the axis of these. With
    ``size`` above 1 rows are n-step returns: they are incomplete at first, and are in memory beside
    ``capacity`` others. Rows beyond these are left out, and keep their items until they are
    overwritten.
    """

    def __init__(
        self,
        capacity: int,
        env_dict: Mapping[str, Any],
        room: Mapping[str, int],
        n_envs: int = 1,
        size: int = 1,
        next_of: Sequence[str] = (),
    ) -> None:
        self.n_envs, self.size, self.most = n_envs, size, capacity
        self.capacity = capacity + (size - 1) * n_envs  # slots in memory
        self.span = capacity if n_envs == 1 else self.capacity  # slots that users see
        self.names = list(env_dict)
        self.fields = ragged_fields(env_dict)
        self.counts = {name: spec.get("counts") for name, spec in env_dict.items()}
        self.axes = list(dict.fromkeys(one.axis for one in self.fields.values()))
        self.like = {
            name: np.zeros(
                spec.get("shape", 1), np.dtype(spec.get("dtype", "f4")).newbyteorder("=")
            )
            for name, spec in env_dict.items()
            if name not in self.fields
        }
        self.nexts = {  # by axis: that of its next values
            self.fields[name].axis: f"next_{self.fields[name].axis}" for name in next_of
        }
        self.rooms = [axis for axis in self.axes if axis not in self.nexts.values()]
        self.room = {axis: room[axis] for axis in self.rooms}
        self.first_index = self.span  # what names row 0 for ever
        self.rows: list[RaggedRow] = []
        self.clear()

    def clear(self) -> None:
        """Forget everything but the names that rows had."""
        self.first_index += -(-len(self.rows) // self.span) * self.span
        self.rows = []
        self.oldest = 0  # the oldest row that is not left out
        self.greatest = 1.0  # priority
        self.left = dict.fromkeys(self.rooms, 0)
        self.memory: dict[str, deque[Block]] = {axis: deque() for axis in self.rooms}

    # ---- items ---------------------------------------------------------------------------

    def length(self, values: Values, axis: str) -> int:
        """Items of a row on an axis."""
        return next(
            one.length(values[name]) for name, one in self.fields.items() if one.axis == axis
        )

    def used(self, axis: str) -> int:
        """Items of memory from the oldest living one on, dead ones behind it included."""
        return sum(block.count for block in self.memory[axis])

    def _bury(self, row: RaggedRow, axes: Iterable[str]) -> None:
        """The items of a row are dead; the oldest blocks go if they are dead."""
        for axis in axes:
            blocks = self.memory[axis]
            for block in blocks:
                block.rows = [one for one in block.rows if one is not row]
            while blocks and not blocks[0].rows:
                blocks.popleft()

    def _gone(self, row: RaggedRow) -> None:
        row.there = False
        self._bury(row, self.rooms)

    def _needed(self, axis: str, n: int) -> int:
        """How many of the oldest rows have to leave, so that n more items of an axis fit."""
        living = self.living()
        for leaving in range(len(living) + 1):
            going = living[:leaving]
            counts = [
                block.count if any(row not in going for row in block.rows) else 0
                for block in self.memory[axis]
            ]
            oldest = next((k for k, count in enumerate(counts) if count), len(counts))
            kept = sum(block.count for k, block in enumerate(self.memory[axis]) if k >= oldest)
            if kept + n <= self.room[axis]:
                return leaving
        raise ValueError(f"{n} items of axis {axis!r} never fit")

    def _make_room(self, items: Mapping[str, int]) -> int:
        """The oldest rows leave until so many more items of each axis fit; how many did."""
        needed = {axis: self._needed(axis, items[axis]) for axis in self.rooms if axis in items}
        fullest = max(needed, key=lambda axis: needed[axis])
        for row in self.living()[: needed[fullest]]:
            self._gone(row)
            self.left[fullest] += 1
        return needed[fullest]

    # ---- writing -------------------------------------------------------------------------

    def parts(self, lengths: Sequence[Mapping[str, int]]) -> list[int]:
        """Where the parts of a call begin, and its end: whole time steps that fit into the memory.

        Raises ``ValueError`` if a time step has more items than there is room.
        """
        marks, total = [0], dict.fromkeys(self.rooms, 0)
        for first in range(0, len(lengths), self.n_envs):
            step = lengths[first : first + self.n_envs]
            items = {axis: self._apart(step, axis) for axis in self.rooms}
            if any(items[axis] > self.room[axis] for axis in self.rooms):
                raise ValueError("a time step has more items than there is room")
            is_full = any(total[axis] + items[axis] > self.room[axis] for axis in self.rooms)
            if is_full or first + self.n_envs - marks[-1] > self.capacity:
                marks.append(first)
                total = dict.fromkeys(self.rooms, 0)
            total = {axis: total[axis] + items[axis] for axis in self.rooms}
        return [*marks, len(lengths)]

    def _apart(self, lengths: Sequence[Mapping[str, int]], axis: str) -> int:
        """Items of rows in a room, next ones too, if no two rows have the same."""
        return sum(row[axis] + row.get(self.nexts.get(axis, ""), 0) for row in lengths)

    def add(
        self,
        rows: Sequence[Values],
        present: Sequence[bool] | None = None,
        priorities: Sequence[float] | None = None,
    ) -> int:
        """Append steps of all environments in turn; the slot of the first row."""
        held = [True] * len(rows) if present is None else list(present)
        new = [
            RaggedRow(-1, dict(values), here, here) for values, here in zip(rows, held, strict=True)
        ]
        lengths = [
            {axis: self.length(row.values, axis) * row.holds_step for axis in self.axes}
            for row in new
        ]
        marks = self.parts(lengths)
        slot = len(self.rows) % self.span
        for k, row in enumerate(new):
            row.priority = self.greatest if priorities is None else priorities[k]
            if row.holds_step:
                row.end, row.terminated = self._ends(row.values)
        for start, stop in pairwise(marks):
            self._add_part(new[start:stop], lengths[start:stop])
        if priorities is not None:
            given = [one for one, here in zip(priorities, held, strict=True) if here]
            self.greatest = max([self.greatest, *given])
        return slot

    def _add_part(self, new: Sequence[RaggedRow], lengths: Sequence[Mapping[str, int]]) -> None:
        written = len(self.rows)
        overwritten = max(written + len(new) - self.capacity, 0)
        for row in self.rows[:overwritten]:
            if row.there:
                self._gone(row)
        while True:  # a row that leaves has no next items for others
            sources = {axis: self._sources(axis, new, lengths) for axis in self.rooms}
            items = {}
            for axis in self.rooms:
                pairs = zip(lengths, sources[axis], strict=True)
                shared = sum(row[axis] for row, source in pairs if source is not None)
                items[axis] = self._apart(lengths, axis) - shared
            if not self._make_room(items):
                break
        for k, row in enumerate(new):
            row.number = len(self.rows)
            self.rows.append(row)
            if row.holds_step:
                self._place(row, row.values, {axis: sources[axis][k] for axis in self.rooms})
        self.leave_out()

    def _sources(
        self, axis: str, new: Sequence[RaggedRow], lengths: Sequence[Mapping[str, int]]
    ) -> list[RaggedRow | None]:
        """For each row the one before in its stream, if the next items of this are its own.

        That has to stay even if all items were placed anew; rows of the call stay.
        """
        found: list[RaggedRow | None] = [None] * len(new)
        if axis not in self.nexts:
            return found
        staying = self.living()[self._needed(axis, self._apart(lengths, axis)) :]
        staying = [row for row in staying if row.number >= len(self.rows) - self.n_envs]
        by_number = {row.number: row for row in staying}
        for k, row in enumerate(new):
            by_number[len(self.rows) + k] = row
            source = by_number.get(len(self.rows) + k - self.n_envs)
            if source is not None and source.holds_step and lengths[k][axis]:
                names = [name for name, one in self.fields.items() if one.axis == axis]
                if all(
                    same_bytes(row.values[name], source.values[f"next_{name}"]) for name in names
                ):
                    found[k] = source
        return found

    def _place(
        self, row: RaggedRow, values: Values, sources: Mapping[str, RaggedRow | None]
    ) -> None:
        """Items behind all others; those of a row that is gone are dead at once.

        ``sources`` has the axes, each with the row whose next items these are, or None.
        """
        for axis, source in sources.items():
            if source is not None:
                source.nexts[axis].rows.append(row)
            elif count := self.length(values, axis):
                self.memory[axis].append(Block([row] if row.there else [], count))
            if axis in self.nexts and (count := self.length(values, self.nexts[axis])):
                row.nexts[axis] = Block([row], count)
                self.memory[axis].append(row.nexts[axis])
        self._bury(row, () if row.there else sources)

    @staticmethod
    def _ends(values: Values) -> tuple[bool, bool]:
        terminated, truncated, done = (
            name in values and bool(np.ravel(values[name])[0]) for name in END_NAMES
        )
        if "terminated" in values:
            return terminated or truncated or done, terminated
        return truncated or done, done and not truncated

    def update(
        self,
        rows: Sequence[RaggedRow],
        values: Mapping[str, Sequence[Any]],
        *,
        in_place: bool = True,
    ) -> None:
        """New values of rows, the last of duplicates; rows that are gone are skipped.

        The items of a row whose lengths stay are replaced where they are; not in a file
        (``in_place=False``), as a kill may leave half of them. Others get new places for their
        items on the axes of ``values``, and there are old items and new ones until that is done. So
        the oldest rows may leave. Raises ``ValueError`` if one of these rows would have to.
        """
        new = [
            {**row.values, **{name: given[k] for name, given in values.items()}}
            for k, row in enumerate(rows)
        ]
        axes = dict.fromkeys(self.fields[name].axis for name in values if name in self.fields)
        lengths = [{axis: self.length(after, axis) for axis in axes} for after in new]
        if any(sum(of[axis] for of in lengths) > self.room[axis] for axis in axes):
            raise ValueError("the rows have more items than there is room")
        named = [k for k, row in enumerate(rows) if row.there and row.number >= self.oldest]
        moved = [
            k
            for k in named
            if any(lengths[k][axis] != self.length(rows[k].values, axis) for axis in axes)
            or (axes and not in_place)
        ]
        if moved:
            items = {axis: sum(lengths[k][axis] for k in moved) for axis in axes}
            leaving = self.living()[: max(self._needed(axis, n) for axis, n in items.items())]
            if leaving and leaving[-1].number >= min(rows[k].number for k in named):
                raise ValueError("an updated row would have to leave")
            self._make_room(items)
        last = {rows[k].number: k for k in named}
        for k in moved:
            if last[rows[k].number] == k:
                self._bury(rows[k], axes)
                self._place(rows[k], new[k], dict.fromkeys(axes))
                continue
            for axis in axes:
                if lengths[k][axis]:
                    self.memory[axis].append(Block([], lengths[k][axis]))
        for axis in axes:
            while self.memory[axis] and not self.memory[axis][0].rows:
                self.memory[axis].popleft()
        for k in named:
            row = rows[k]
            row.values = {**row.values, **{name: given[k] for name, given in values.items()}}

    def on_episode_end(self, env: int | None = None) -> None:
        """Cut the episodes that are open: of one environment, or of all."""
        for stream in range(self.n_envs) if env is None else [env]:
            steps = self._steps_of(stream)
            if steps:
                steps[-1].end = True
        self.leave_out()

    def rewind(self, first: int) -> None:
        """The rows from a number on go, and all episodes are cut."""
        for row in self.rows[first:]:
            row.end = row.holds_step
            if row.there:
                self._gone(row)
        for stream in range(self.n_envs):
            steps = [row for row in self._steps_of(stream) if row.number < first]
            if steps:
                steps[-1].end = True
        self.leave_out()

    def delete(self, row: RaggedRow) -> None:
        """The episode of a row goes, with rows that are left out."""
        for one in self._whole_episode(row):
            if one.there:
                self._gone(one)
        self.leave_out()

    def leave_out(self) -> None:
        """Leave rows out while there are more than ``most`` beside the incomplete ones."""
        while len(self.rows) - self.oldest - len(self._incomplete()) > self.most:
            self.oldest += 1

    def _incomplete(self) -> list[RaggedRow]:
        return [
            row
            for row in self._kept()
            if len(self.following(row, self.size)) < self.size
            and not self.following(row, self.size)[-1].end
        ]

    def _kept(self) -> list[RaggedRow]:
        return [row for row in self.living() if row.number >= self.oldest]

    def set_priorities(self, rows: Sequence[RaggedRow], priorities: Sequence[float]) -> None:
        """Set the priorities of the rows that are there, the last of duplicates."""
        for row, priority in zip(rows, priorities, strict=True):
            if row.there:
                row.priority = priority
                self.greatest = max(self.greatest, priority)

    # ---- reading -------------------------------------------------------------------------

    def living(self) -> list[RaggedRow]:
        """The rows in memory that hold a step, oldest first."""
        return [row for row in self.rows[-self.capacity :] if row.there]

    def drawable(self) -> list[RaggedRow]:
        """The rows that can be drawn, oldest first."""
        incomplete = self._incomplete()
        return [row for row in self._kept() if row not in incomplete]

    def slots(self) -> dict[int, RaggedRow]:
        """The rows that can be drawn by slot, in the order of the slots."""
        return dict(sorted((row.number % self.span, row) for row in self.drawable()))

    def read(self, row: RaggedRow, size: int, gamma: float) -> Values:
        """A row as an n-step return: reward and next values of several steps."""
        steps = self.following(row, size)
        total = sum(gamma**k * step.values["rew"].astype(float) for k, step in enumerate(steps))
        last = steps[-1].values
        ahead = [name for name in self.names if name in END_NAMES or name.startswith("next_")]
        return {
            **row.values,
            **{name: last[name] for name in ahead},
            "rew": np.asarray(total, "f4"),
        }

    def index(self, row: RaggedRow) -> int:
        """What names a row for ever."""
        return self.first_index + row.number

    def row_of(self, index: int) -> RaggedRow:
        """The row of this name."""
        return self.rows[index - self.first_index]

    def _steps_of(self, stream: int) -> list[RaggedRow]:
        return [row for row in self.rows[stream :: self.n_envs] if row.holds_step]

    def episode_len(self, env: int) -> int:
        """Steps of an environment since its last end."""
        length = 0
        for row in self._steps_of(env):
            length = 0 if row.end else length + 1
        return length

    def episode(self, row: RaggedRow) -> list[RaggedRow]:
        """The rows of the episode of a row that are there, and are not left out."""
        episode = self._whole_episode(row)
        return [one for one in episode if one.there and one.number >= self.oldest]

    def _whole_episode(self, row: RaggedRow) -> list[RaggedRow]:
        episodes: list[list[RaggedRow]] = [[]]
        for one in self._steps_of(row.number % self.n_envs):
            episodes[-1].append(one)
            if one.end:
                episodes.append([])
        (mine,) = [episode for episode in episodes if row in episode]
        return mine

    def following(self, row: RaggedRow, n: int, *, across: bool = False) -> list[RaggedRow]:
        """A row, and the n - 1 rows behind it in its stream, or fewer where its episode ends."""
        stream = [one for one in self._steps_of(row.number % self.n_envs) if one.there]
        rows = stream[stream.index(row) :][:n]
        if across:
            return rows
        ends = [k for k, one in enumerate(rows) if one.end]
        return rows[: ends[0] + 1] if ends else rows


def same_bytes(one: Any, two: Any) -> bool:
    """Whether two values of a field have the same bytes."""
    if isinstance(one, str):
        return bool(one == two)
    return bool(one.shape == two.shape and one.tobytes() == two.tobytes())


# ---- batches -----------------------------------------------------------------------------


def items_of(one: RaggedField, value: Any) -> Array:
    """The items of a value, the axis in its place."""
    return np.frombuffer(value.encode(), np.uint8) if one.is_text else np.asarray(value)


def joined(one: RaggedField, values: Sequence[Any]) -> Array:
    """The items of rows, one behind the other."""
    return np.concatenate([one.empty(0), *(items_of(one, value) for value in values)], one.axis_at)


def up_to(n: int, multiple_of: int) -> int:
    """The least multiple that is at least n."""
    return -(-n // multiple_of) * multiple_of


def offsets(lengths: Sequence[int]) -> list[int]:
    """Where each row begins, and the end."""
    return [sum(lengths[:k]) for k in range(len(lengths) + 1)]


def by_axis(option: Any, axis: str, default: Any = None) -> Any:
    """The value of an option for an axis, or a field."""
    return option.get(axis, default) if isinstance(option, dict) else option


class Cells:
    """The rows of a batch in the order of the batch; None is a row of padding.

    ``lead`` is the shape of the batch before the axes of a field.
    """

    def __init__(
        self, twin: ReferenceRagged, cells: Sequence[Values | None], lead: tuple[int, ...]
    ) -> None:
        self.twin, self.cells, self.lead = twin, list(cells), lead

    def values(self, one: RaggedField) -> list[Any]:
        """The values of a field."""
        none = "" if one.is_text else one.empty(0)
        return [none if cell is None else cell[one.name] for cell in self.cells]

    def lengths(self, axis: str) -> list[int]:
        """Items of each row."""
        return [0 if cell is None else self.twin.length(cell, axis) for cell in self.cells]

    def fixed(self, name: str) -> Array:
        """A field without an axis."""
        like = self.twin.like[name]
        column = np.zeros((len(self.cells), *like.shape), like.dtype)
        for k, cell in enumerate(self.cells):
            if cell is not None:
                column[k, ...] = cell[name]
        return column.reshape(*self.lead, *like.shape)

    def texts(self, one: RaggedField) -> list[Any]:
        """Texts as nested lists."""
        found: list[Any] = np.array(self.values(one), object).reshape(self.lead).tolist()
        return found

    def padded(
        self,
        names: Sequence[str],
        *,
        side: Any = "right",
        value: Any = 0,
        multiple_of: Any = 1,
        length: Any = None,
        dtypes: Mapping[str, Any] | None = None,
    ) -> dict[str, Array]:
        """Columns of ragged fields, padded to one length, and the masks of their axes."""
        found: dict[str, Array] = {}
        for name in names:
            one = self.twin.fields[name]
            if one.is_text:
                continue
            counts = self.lengths(one.axis)
            longest = up_to(max(counts, default=0), by_axis(multiple_of, one.axis, 1))
            exact = by_axis(length, one.axis)
            if exact is not None:
                if longest > exact:
                    raise ValueError("a row is too long")
                longest = exact
            column = np.zeros((len(counts), *one.empty(longest).shape), one.dtype)
            if by_axis(value, name, 0) != 0:
                column[...] = by_axis(value, name, 0)
            mask = np.zeros((len(counts), longest), bool)
            for k, (n, items) in enumerate(zip(counts, self.values(one), strict=True)):
                is_left = by_axis(side, one.axis, "right") == "left"
                there = slice(longest - n, longest) if is_left else slice(0, n)
                mask[k, there] = True
                np.moveaxis(column[k], one.axis_at, 0)[there] = np.moveaxis(items, one.axis_at, 0)
            found[name] = column.reshape(*self.lead, *column.shape[1:])
            found[f"{one.axis}_mask"] = mask.reshape(*self.lead, longest)
        for name, dtype in (dtypes or {}).items():
            if name in found:
                found[name] = found[name].astype(dtype)
        return found

    def packed(
        self,
        names: Sequence[str],
        *,
        positions: Any = False,
        segments: Any = False,
        multiple_of: Any = 1,
        total: Any = None,
        offsets_dtype: Any = np.int32,
        dtypes: Mapping[str, Any] | None = None,
        value: Any = 0,
    ) -> dict[str, Array]:
        """Columns of ragged fields, one row behind the other, and the further columns of axes."""
        fields, n_rows, dtypes = self.twin.fields, len(self.cells), dtypes or {}
        named = [fields[name].axis for name in names if name in fields]
        named += [axis for name in names if (axis := self.twin.counts[name]) is not None]
        found: dict[str, Array] = {}
        bounds: dict[str, list[int]] = {}
        for axis in self.twin.axes:
            if axis not in named or axis in fields:  # a text has an axis of its name
                continue
            counts = self.lengths(axis)
            multiple, exact = by_axis(multiple_of, axis, 1), by_axis(total, axis)
            whole = up_to(sum(counts), multiple) if exact is None else exact
            if sum(counts) > whole:
                raise ValueError("the rows have too many items")
            if exact is not None or multiple > 1:
                counts.append(whole - sum(counts))
            bounds[axis] = offsets(counts)
            marks = {"offsets": bounds[axis]}
            if positions is True or (positions and axis in positions):
                marks["positions"] = [k for n in counts for k in range(n)]
            if segments is True or (segments and axis in segments):
                marks["segments"] = [row for row, n in enumerate(counts) for _ in range(n)]
            for kind, numbers in marks.items():
                dtype = dtypes.get(f"{axis}_{kind}", offsets_dtype)
                found[f"{axis}_{kind}"] = np.array(numbers, dtype)
            found[f"{axis}_longest"] = np.array(max(counts, default=0))
        for name in names:
            if name not in fields and self.twin.counts[name] is not None:
                found[name] = self._counting(name, bounds[self.twin.counts[name]])
            if name not in fields or fields[name].is_text:
                continue
            one, dtype = fields[name], dtypes.get(name, fields[name].dtype)
            parts = [items.astype(dtype) for items in self.values(one)]
            rest = one.empty(bounds[one.axis][-1] - bounds[one.axis][n_rows]).astype(dtype)
            if one.counts is not None:
                starts = bounds[one.counts]
                parts = [
                    part + part.dtype.type(start)
                    for part, start in zip(parts, starts[:n_rows], strict=True)
                ]
                rest[...] = starts[n_rows] if starts[n_rows] < starts[-1] else 0
            elif by_axis(value, name, 0) != 0:
                rest[...] = by_axis(value, name, 0)
            found[name] = np.concatenate([*parts, rest], one.axis_at)
        return found

    def _counting(self, name: str, starts: list[int]) -> Array:
        """A field of fixed shape whose values count items, in a packed batch."""
        column = self.fixed(name).reshape(len(self.cells), *self.twin.like[name].shape)
        for k, cell in enumerate(self.cells):
            if cell is not None:
                column[k, ...] += column.dtype.type(starts[k])
        return column.reshape(*self.lead, *self.twin.like[name].shape)
