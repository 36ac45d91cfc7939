"""``FrameStacks``: frame stacks, as a layer of a view.

Not here: fields that are added as stacks, of which only frames are stored (``_rows.chained``), and
the copying (``_stacking``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from cpprb_like._arguments.arrays import Array, Batch, Slots
from cpprb_like._arguments.checks import as_int
from cpprb_like._core import Ring
from cpprb_like._machine.aligned import empty
from cpprb_like._rows.column import Column
from cpprb_like.views._layer import Layer
from cpprb_like.views._rows import RowReader, read_fields
from cpprb_like.views._stacking import read_stacks

__all__ = ["FrameStacks", "StackReader"]

Padding = Literal["first", "zeros"]

DEEPEST = 256  # frames of a stack
NEXT = "next_"


class FrameStacks(Layer):
    """Frame stacks of fields that hold single frames.

    The value of a row becomes the stack of the newest ``depth`` frames of its episode up to that
    row. With ``obs`` the field ``next_obs``, if there is one, becomes a stack as well: that of
    ``obs`` shifted by one frame.

    Parameters
    ----------
    depths : dict of str to int
        Number of frames of a stack by field: 1 to 256.
    axis : int
        Axis of the frames in a stack; the last by default. 4 frames of shape ``(84, 84)`` are then
        a stack of shape ``(84, 84, 4)``.
    padding : {"first", "zeros"}
        Padding before the first frame of the episode: that frame repeated, as in Gymnasium's
        ``FrameStackObservation``, or zeros.

    Raises
    ------
    TypeError, ValueError
        A parameter is of a wrong type or value; or, by ``view``, there is no such field, one of
        Python objects, or one without such an axis.

    Notes
    -----
    A row can be drawn when its stack is complete: the frames before it are in the buffer, or the
    episode begins there. So the oldest ``depth - 1`` rows of an episode whose beginning was
    overwritten are never drawn.

    Cost: one copy of the frames. Memory: none beyond the single frames. Where the environment gives
    whole stacks, ``stack_compress`` of the buffer stores them as single frames.

    Source: Mnih et al. (2015), "Human-level control through deep reinforcement learning", Methods:
    4 frames.

    Examples
    --------
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.views import FrameStacks
    >>> fields = {"obs": {"shape": ()}, "done": {"shape": (), "dtype": bool}}
    >>> rb = ReplayBuffer(100, fields, next_of="obs", seed=0)
    >>> for t in range(4):
    ...     _ = rb.add(obs=t, next_obs=t + 1, done=t == 3)
    >>> batch = rb.view(FrameStacks({"obs": 3})).sample(2)
    >>> batch["obs"].tolist(), batch["next_obs"].tolist()
    ([[1.0, 2.0, 3.0], [0.0, 1.0, 2.0]], [[2.0, 3.0, 4.0], [1.0, 2.0, 3.0]])
    """

    def __init__(
        self, depths: Mapping[str, int], *, axis: int = -1, padding: Padding = "first"
    ) -> None:
        if not isinstance(depths, Mapping):
            raise TypeError(f"depths: expected a dict of numbers by field, got {depths!r}")
        if not depths:
            raise ValueError("depths: expected at least one field, got none")
        self.depths = {
            name: as_int(f"depths[{name!r}]", depth, 1) for name, depth in depths.items()
        }
        for name, depth in self.depths.items():
            if depth > DEEPEST:
                raise ValueError(f"depths[{name!r}]: expected at most {DEEPEST}, got {depth}")
        self.axis = as_int("axis", axis)
        if padding not in ("first", "zeros"):
            raise ValueError(f"padding: expected 'first' or 'zeros', got {padding!r}")
        self.padding = padding

    @property
    def before(self) -> int:
        """Rows that are read before each drawn row."""
        return max(self.depths.values()) - 1

    def places(self, columns: tuple[Column, ...]) -> dict[str, tuple[str, int, int]]:
        """For each field that becomes a stack: the field of its frames, depth and axis."""
        by_name = {column.name: column for column in columns}
        found = {}
        for name, depth in self.depths.items():
            if name not in by_name:
                raise ValueError(f"depths: expected some of {list(by_name)}, got {name!r}")
            column = by_name[name]
            if column.dtype.hasobject:
                raise ValueError(f"depths: field {name!r} holds Python objects; expected frames")
            ndim = len(column.shape) + 1
            if not -ndim <= self.axis < ndim:
                raise ValueError(
                    f"axis: expected {-ndim} to {ndim - 1} for field {name!r}, got {self.axis}"
                )
            found[name] = name, depth, self.axis % ndim
            following = by_name.get(NEXT + name)
            if following is not None and following.name not in self.depths:
                if (following.dtype, following.shape) != (column.dtype, column.shape):
                    raise ValueError(
                        f"depths: field {following.name!r}: expected frames like those of {name!r}"
                    )
                found[following.name] = name, depth, self.axis % ndim
        return found


class StackReader:
    """Reads batches of rows, some of whose fields become stacks.

    Parameters
    ----------
    rows : RowReader
        What reads the other fields.
    layer : FrameStacks
        Which fields become stacks.
    """

    def __init__(self, rows: RowReader, layer: FrameStacks) -> None:
        self.ring: Ring = rows.ring
        self.nstep = rows.nstep
        self._rows = rows
        self._repeat = layer.padding == "first"
        self._places = layer.places(rows.ring.columns)
        self.stacked = frozenset(self._places)
        self._last = frozenset() if rows.nstep is None else frozenset(rows.nstep.last_step_fields)
        self._most = 1 if rows.nstep is None else rows.nstep.size
        self._columns = {column.name: column for column in rows.ring.columns}

    def shape(self, column: Column) -> tuple[int, ...]:
        """The shape of a value of a field."""
        if column.name not in self._places:
            return column.shape
        _, depth, axis = self._places[column.name]
        return (*column.shape[:axis], depth, *column.shape[axis:])

    def take(
        self,
        slots: Slots,
        arrays: list[Array] | None = None,
        steps: Slots | None = None,
        columns: tuple[Column, ...] | None = None,
    ) -> Batch:
        """See ``RowReader.take``."""
        columns = self.ring.columns if columns is None else columns
        given: list[Array | None] = [None] * len(columns) if arrays is None else list(arrays)
        pairs = list(zip(columns, given, strict=True))
        others = [(column, array) for column, array in pairs if column.name not in self._places]
        batch = self._rows.take(
            slots,
            None if arrays is None else [array for _, array in others if array is not None],
            steps,
            tuple(column for column, _ in others),
        )
        last = slots
        if self._most > 1 and any(column.name in self._last for column, _ in pairs):
            last = self._last_rows(slots, steps)
        stacks = {}
        for column, array in pairs:
            if column.name in self._places:
                source, depth, axis = self._places[column.name]
                rows = last if column.name in self._last else slots
                take = self._take_next if source != column.name else self._take
                stacks[column.name] = take(column, source, rows, depth, axis, array)
        return {column.name: (batch | stacks)[column.name] for column in columns} | batch

    def _last_rows(self, slots: Slots, steps: Slots | None) -> Slots:
        """The last row of each n-step window."""
        window, counts, _ = self.ring.windows(slots, 0, self._most - 1)
        length = counts[:, 1] if steps is None else np.minimum(counts[:, 1], steps - 1)
        return np.ascontiguousarray(window[np.arange(len(slots)), length])

    def _take(
        self, column: Column, source: str, slots: Slots, depth: int, axis: int, out: Array | None
    ) -> Array:
        """The stacks of frames up to these rows."""
        del source
        rows = self.ring.windows(slots, depth - 1, 0, repeat=self._repeat)[0]
        return read_stacks(self.ring, column, rows, axis, out)

    def _take_next(
        self, column: Column, source: str, slots: Slots, depth: int, axis: int, out: Array | None
    ) -> Array:
        """The same, shifted by one frame."""
        shape = (len(slots), *self.shape(column))
        stacks = empty(shape, column.dtype) if out is None else out
        along = np.moveaxis(stacks, 1 + axis, 1)  # shares its memory
        along[:, depth - 1] = read_fields(self.ring, slots, {column.name})[column.name]
        if depth > 1:
            rows = self.ring.windows(slots, depth - 2, 0, repeat=self._repeat)[0]
            along[:, : depth - 1] = read_stacks(self.ring, self._columns[source], rows, 0)
        return stacks
