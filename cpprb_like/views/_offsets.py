"""``Offsets``: a layer that reads fields at offsets from each row: histories, chunks of actions.

Not here: frame stacks (``_frame_stacks``), consecutive rows of all fields (``_sequences``), and the
places and copies (``_gather_windows``).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cpprb_like._arguments.arrays import Array, Batch, Slots
from cpprb_like._arguments.checks import as_int
from cpprb_like._fields.field import NEXT
from cpprb_like.views._gather_windows import places_at
from cpprb_like.views._layer import IS_PAD, Fields, Layer, ViewedRows, set_options
from cpprb_like.views._rows import read_fields
from cpprb_like.views._stacking import read_stacks
from cpprb_like.views._windows import Windows


class Offsets(Layer):
    """Fields at offsets from the drawn row, in its episode: for each field its own offsets.

    Offset 0 is the drawn row, -1 the row before it, 1 the row behind it. A named field has the
    shape ``(batch_size, len(offsets), *shape)``, in the order of its offsets. Other fields are of
    the drawn row.

    For each named field ``x`` the batch has a further bool column ``x_is_pad``, shape
    ``(batch_size, len(offsets))``. It is true where an offset leads out of the episode, and the
    value is padding. LeRobot's ``delta_timestamps`` give the same values and names.

    Parameters
    ----------
    offsets : dict of str to iterable of int
        Offsets by field, such as ``{"obs": (-1, 0), "act": range(16), "image": (-30, 0)}``, in any
        order.
    padding : {"edge", "zeros"}
        Padding: the first or the last value of the episode repeated, or zeros (``None`` for Python
        objects).

    Raises
    ------
    TypeError, ValueError
        A parameter is of a wrong type or value. By ``view``: there is no such field, it has values
        of any length, or the buffer cannot hold the rows between the offsets.

    Notes
    -----
    A row can be drawn if the rows from its least offset to its greatest are in the buffer, or the
    episode begins or has ended between them. So the newest rows of an unfinished episode are not
    drawn yet, as for ``NStep``. The oldest rows of an episode whose beginning was overwritten are
    not drawn any more, as for ``FrameStacks``.

    Next values continue their field: offset -1 of ``next_obs`` at the first row is the first
    ``obs``. With ``NStep``, offsets of fields that it reads from the last step, such as
    ``next_obs``, count from that step. With ``Sequences`` each row has its own offsets.

    Cost: one copy of the values at the offsets, and a step for each row from the least offset to
    the greatest: 3 to 15 ns for up to some thousands of rows, up to 100 ns for more. Memory of a
    draw: 8 bytes for each of these rows, of each item of the batch.

    Examples
    --------
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.views import Offsets
    >>> fields = {"obs": {"shape": ()}, "act": {"shape": ()}, "done": {"shape": (), "dtype": bool}}
    >>> rb = ReplayBuffer(100, fields, seed=0)
    >>> for t in range(5):
    ...     _ = rb.add(obs=t, act=10 * t, done=t == 4)
    >>> batch = rb.view(Offsets({"obs": (-2, 0), "act": range(3)})).sample(2)
    >>> batch["obs"].tolist(), batch["act"].tolist()
    ([[2.0, 4.0], [1.0, 3.0]], [[40.0, 40.0, 40.0], [30.0, 40.0, 40.0]])
    >>> batch["act_is_pad"].tolist()
    [[False, True, True], [False, False, True]]
    """

    def __init__(
        self,
        offsets: Mapping[str, Iterable[int]],
        *,
        padding: Literal["edge", "zeros"] = "edge",
    ) -> None:
        if not isinstance(offsets, Mapping):
            raise TypeError(f"offsets: expected a dict of offsets by field, got {offsets!r}")
        if not offsets:
            raise ValueError("offsets: expected at least one field, got none")
        self.offsets = {name: _read_offsets(name, found) for name, found in offsets.items()}
        given: object = padding
        if not isinstance(given, str) or given not in ("edge", "zeros"):
            raise ValueError(f"padding: expected 'edge' or 'zeros', got {padding!r}")
        self.padding = padding

    def __setstate__(self, state: dict[str, Any]) -> None:
        set_options(self, Offsets, state)

    def open(self, rows: ViewedRows) -> Layer:
        return _Windows(self, rows)


def _read_offsets(name: object, offsets: Any) -> tuple[int, ...]:
    where = f"offsets[{name!r}]"
    if isinstance(offsets, (str, bytes, Mapping)) or not isinstance(offsets, Iterable):
        raise TypeError(f"{where}: expected offsets such as (-1, 0) or range(16), got {offsets!r}")
    found = tuple(as_int(where, offset, -sys.maxsize, sys.maxsize) for offset in offsets)
    if not found:
        raise ValueError(f"{where}: expected at least one offset, got none")
    return found


class _Windows(Layer):
    """Values at offsets from the rows of one ring, or of several."""

    def __init__(self, layer: Offsets, rows: ViewedRows) -> None:
        self._ring, self._repeats = rows.ring, layer.padding == "edge"
        self._columns = {one.name: one for one in rows.ring.columns if not one.is_entry}
        self._offsets = {name: np.array(found, np.intp) for name, found in layer.offsets.items()}
        most = 1 if rows.nstep is None else rows.nstep.size
        ahead = () if rows.nstep is None else rows.nstep.last_step_fields
        self._partners: dict[str, str] = {}  # by next field: the field that it continues
        self._least = {name: min(found) for name, found in layer.offsets.items()}
        self._before = max(0, -min(self._least.values()))
        self._after = 0
        for name in layer.offsets:
            if name not in self._columns:
                raise ValueError(f"offsets: expected some of {list(self._columns)}, got {name!r}")
            column = self._columns[name]
            if column.axis:
                raise ValueError(f"offsets: field {name!r} has values of any length")
            partner = self._columns.get(name.removeprefix(NEXT), column)
            if partner is not column and (partner.dtype, partner.shape) == (
                column.dtype,
                column.shape,
            ):
                self._partners[name] = partner.name
            behind = max(layer.offsets[name]) + (most - 1) * (name in ahead)
            self._after = max(self._after, behind)

    def around(self, fields: Fields) -> tuple[int, int]:  # noqa: ARG002
        """See ``Layer.around``."""
        return self._before, self._after

    def reads(self, fields: Fields) -> list[str]:  # noqa: ARG002
        """See ``Layer.reads``: the fields that next values continue."""
        return [name for name in self._partners.values() if name not in self._offsets]

    def columns(self, fields: Fields) -> dict[str, tuple[DTypeLike, tuple[int, ...]]]:
        found: dict[str, tuple[DTypeLike, tuple[int, ...]]] = {}
        for name, offsets in self._offsets.items():
            dtype, shape = fields[name]
            found[name] = dtype, (len(offsets), *shape)
            if name + IS_PAD in fields:
                raise ValueError(f"Offsets: {name + IS_PAD!r} is a further column of the view")
            found[name + IS_PAD] = np.bool_, (len(offsets),)
        return found

    def fill(self, windows: Windows, wanted: Fields) -> Batch:
        found: Batch = {}
        rows, counts = windows.rows, windows.counts
        for name, offsets in self._offsets.items():
            steps = windows.steps if name in windows.last_fields else None
            slots, is_pad = places_at(rows, counts, windows.before, offsets, steps, self._repeats)
            if name in wanted:
                column, out = self._columns[name], windows.out.get(name)
                found[name] = read_stacks(self._ring, column, slots, 0, out)
            if name in self._partners and self._least[name] < 0:
                at = offsets if steps is None else (steps - 1)[:, np.newaxis] + offsets
                known = at == -1 - counts[:, :1]  # the first value of the field itself
                if name in wanted:
                    early = at < -counts[:, :1] if self._repeats else known
                    self._put_first(name, found[name], rows, early)
                is_pad &= ~known
            found[name + IS_PAD] = is_pad
        return found

    def _put_first(self, name: str, values: Array, rows: Slots, places: NDArray[np.bool_]) -> None:
        """Put the first value of the episode into places before the first next value."""
        items = places.nonzero()[0]
        if len(items):
            partner = self._partners[name]
            firsts = np.ascontiguousarray(rows[items, 0])
            values[places] = read_fields(self._ring, firsts, {partner})[partner]
