"""``FrameStacks``: a layer that makes frame stacks of fields of single frames.

Not here: fields that are added as stacks, of which only frames are stored (``_rows.chained``), and
the copying (``_stacking``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from numpy.typing import DTypeLike

from cpprb_like._arguments.arrays import Batch
from cpprb_like._arguments.checks import as_int
from cpprb_like._core import Ring
from cpprb_like._fields.derived import MOST_FRAMES
from cpprb_like._fields.field import NEXT
from cpprb_like._machine.aligned import empty
from cpprb_like.views._layer import Fields, Layer, ViewedRows, set_options
from cpprb_like.views._stacking import read_stacks, take_stacks
from cpprb_like.views._windows import Windows

Padding = Literal["first", "zeros"]


class FrameStacks(Layer):
    """Frame stacks of fields that hold single frames.

    The value of a row becomes the stack of the newest ``depth`` frames of its episode up to that
    row. With ``obs`` the field ``next_obs``, if there is one, becomes a stack as well: the stack
    of ``obs`` shifted by one frame.

    Parameters
    ----------
    depths : dict of str to int
        Number of frames in a stack, by field: 1 to 256.
    axis : int
        Axis of the frames in a stack; the last by default. 4 frames of shape ``(84, 84)`` are then
        a stack of shape ``(84, 84, 4)``.
    padding : {"first", "zeros"}
        Padding before the first frame of the episode: that frame repeated, as in Gymnasium's
        ``FrameStackObservation``, or zeros.

    Raises
    ------
    TypeError, ValueError
        A parameter is of a wrong type or value. By ``view``: there is no such field, or the field
        holds Python objects or has no such axis. Or ``next_x`` has frames unlike those of ``x``.

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
            if depth > MOST_FRAMES:
                raise ValueError(f"depths[{name!r}]: expected at most {MOST_FRAMES}, got {depth}")
        self.axis = as_int("axis", axis)
        given: object = padding
        if not isinstance(given, str) or given not in ("first", "zeros"):
            raise ValueError(f"padding: expected 'first' or 'zeros', got {padding!r}")
        self.padding = padding

    def __setstate__(self, state: dict[str, Any]) -> None:
        set_options(self, FrameStacks, state)

    def open(self, rows: ViewedRows) -> Layer:
        return _Stacks(self, rows.ring)

    def stacks(self) -> dict[str, tuple[int, int]]:
        return {name: (depth, self.axis) for name, depth in self.depths.items()}


class _Stacks(Layer):
    """Frame stacks of the rows of one ring."""

    def __init__(self, layer: FrameStacks, ring: Ring) -> None:
        self._ring = ring
        self._repeat = layer.padding == "first"
        self._before = max(layer.depths.values()) - 1
        self._columns = {one.name: one for one in ring.columns if not one.is_entry}
        # By field that becomes a stack: the field of its frames, depth and axis.
        self._places: dict[str, tuple[str, int, int]] = {}
        for name, depth in layer.depths.items():
            self._places.update(self._places_of(name, depth, layer))
        self._axes, self._read = {}, {}
        for name, (source, _, axis) in self._places.items():
            column = self._columns[source]
            others = range(1, 2 + len(column.shape))
            # Axes of a batch of stacks, with the axis of the frames moved behind that of the items.
            self._axes[name] = 0, 1 + axis, *(k for k in others if k != 1 + axis)
            self._read[name] = take_stacks if column in ring.stored_columns else read_stacks

    def _places_of(
        self, name: str, depth: int, layer: FrameStacks
    ) -> dict[str, tuple[str, int, int]]:
        if name not in self._columns:
            raise ValueError(f"depths: expected some of {list(self._columns)}, got {name!r}")
        column = self._columns[name]
        if column.dtype.hasobject or column.axis:
            what = "values of any length" if column.axis else "Python objects"
            raise ValueError(f"depths: field {name!r} holds {what}; expected frames")
        ndim = len(column.shape) + 1
        if not -ndim <= layer.axis < ndim:
            raise ValueError(
                f"axis: expected {-ndim} to {ndim - 1} for field {name!r}, got {layer.axis}"
            )
        place = name, depth, layer.axis % ndim
        following = self._columns.get(NEXT + name)
        if following is None or following.name in layer.depths:
            return {name: place}
        if (following.dtype, following.shape) != (column.dtype, column.shape):
            raise ValueError(
                f"depths: field {following.name!r}: expected frames like those of {name!r}"
            )
        return {name: place, following.name: place}

    def around(self, fields: Fields) -> tuple[int, int]:  # noqa: ARG002
        """See ``Layer.around``."""
        return self._before, 0

    def reads(self, fields: Fields) -> list[str]:  # noqa: ARG002
        """See ``Layer.reads``: the newest frame of a next stack is a next value."""
        return [name for name, (source, _, _) in self._places.items() if source != name]

    def columns(self, fields: Fields) -> dict[str, tuple[DTypeLike, tuple[int, ...]]]:
        found: dict[str, tuple[DTypeLike, tuple[int, ...]]] = {}
        for name, (_, depth, axis) in self._places.items():
            dtype, shape = fields[name]
            found[name] = dtype, (*shape[:axis], depth, *shape[axis:])
        return found

    def fill(self, windows: Windows, wanted: Fields) -> Batch:
        found = {}
        for name in wanted:
            source, depth, axis = self._places[name]
            column, read, out = self._columns[source], self._read[name], windows.out.get(name)
            last = name in windows.last_fields
            if source == name:
                rows = windows.up_to(depth, last=last, repeat=self._repeat)
                found[name] = read(self._ring, column, rows, axis, out)
                continue
            stacks = out
            if stacks is None:
                stacks = empty((len(windows.slots), *wanted[name].shape), column.dtype)
            along = stacks.transpose(self._axes[name])  # a view of the memory
            along[:, depth - 1] = windows.values[name]
            if depth > 1:
                rows = windows.up_to(depth - 1, last=last, repeat=self._repeat)
                along[:, : depth - 1] = read(self._ring, column, rows, 0, None)
            found[name] = stacks
        return found
