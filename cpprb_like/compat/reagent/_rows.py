"""The rows of a buffer, and the windows of several steps in them.

Rows of zeros, steps and final observations are rows of one ``cpprb_like.ReplayBuffer``, so that
slots are ReAgent's slots. Not here: which rows were found valid (``_valid``), and what a batch is
made of (``_transitions``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cpprb_like import ReplayBuffer
from cpprb_like._arguments.arrays import Array, Slots
from cpprb_like.compat.reagent._elements import DenseMetadata, ElementMetadata
from cpprb_like.compat.reagent._errors import InputError, need
from cpprb_like.compat.reagent._settings import Settings
from cpprb_like.views._stacking import CHECKED_NBYTES, take_stacks

__all__ = ["FIRST_PRIORITY", "Rows", "Windows", "invalid_range"]


# Fields beside those of the user, whose names are names of Python.
STEP = "$step"  # 1 in a step; 0 in a row of zeros and in a final observation
TERMINAL = "$terminal"  # 1 in the last row of an episode that was terminated
TRUNCATED = "$truncated"  # the same, of other episodes
FIRST_PRIORITY = "$priority"  # that a row came with

# By the flags of the last row of a window, see ``Ring.windows``.
IS_END, IS_TERMINAL = (np.arange(16) & bit != 0 for bit in (1, 2))


class Rows:
    """Rows of named elements, in a ring.

    Parameters
    ----------
    rows : ReplayBuffer
        Of the fields that ``empty`` declares.
    elements : dict
        The kind of each field.
    settings : Settings
        Of the buffer.
    """

    def __init__(
        self, rows: ReplayBuffer, elements: Mapping[str, ElementMetadata], settings: Settings
    ) -> None:
        self.rows = rows
        self.ring = rows.ring
        self.elements = dict(elements)
        self.padding = settings.stack_size - 1
        self.horizon = settings.update_horizon
        self._columns = {x.name: x for x in rows.ring.columns if x.objects is None}
        self._fields = {field.name: field for field in rows.schema.fields}

    @classmethod
    def empty(cls, elements: Mapping[str, ElementMetadata], settings: Settings) -> Rows:
        """No rows yet, of these fields; ``InputError`` if there can be no such rows."""
        declared: dict[str, Any] = {name: kind.declaration() for name, kind in elements.items()}
        numbers = ((STEP, bool), (TERMINAL, bool), (TRUNCATED, bool), (FIRST_PRIORITY, float))
        declared |= {name: {"shape": (), "dtype": dtype} for name, dtype in numbers}
        try:
            rows = ReplayBuffer(
                settings.replay_capacity,
                declared,
                terminated=TERMINAL,
                truncated=TRUNCATED,
                seed=0,
            )
        except (TypeError, ValueError) as error:
            raise InputError(str(error)) from error
        return cls(rows, elements, settings)

    # ------------------------------------------------------------------ adding

    def add(
        self, step: dict[str, Any], is_terminal: bool, is_end: bool, final: Any, priority: float
    ) -> None:
        """Add a step, in one call together with rows of zeros before it and a final observation.

        ``InputError`` names the field that has no faithful value of its dtype.
        """
        padding = 0 if self.ring.episode_len(0) else self.padding
        is_cut = is_end and not is_terminal
        beside = {STEP: True, TERMINAL: is_terminal, TRUNCATED: is_cut, FIRST_PRIORITY: priority}
        try:
            if final is None and not padding:
                self.rows.add(**step, **beside)
                return
            n = padding + 1 + (final is not None)
            columns = {name: self._zeros(name, n) for name in self._fields}
            for name, value in (step | beside).items():
                columns[name][padding] = self._fields[name].convert(value, 1)[0]
            if final is not None:  # the last row instead of the step
                columns["observation"][-1] = self._fields["observation"].convert(final, 1)[0]
                for name in (TERMINAL, TRUNCATED):
                    columns[name][-2:] = False, columns[name][-2]
            self.rows.add(**columns)
        except ValueError as error:
            raise InputError(str(error)) from error

    def _zeros(self, name: str, n: int) -> Array:
        field = self._fields[name]
        blank = None if field.dtype.kind == "O" else field.dtype.type()
        return np.full((n, *field.shape), blank, field.dtype)

    def fill(self, columns: Mapping[str, Array], count: int, priorities: Array | float) -> None:
        """Add rows that ReAgent stored by slot, after ``count`` rows: each goes to its slot.

        Rows of zeros follow terminal steps. Of the oldest episode of a full ring they are not
        known, but so many of its rows have broken stacks.
        """
        capacity = self.ring.capacity
        stored = min(count, capacity)
        slots = np.arange(count - stored, count) % capacity
        ends = columns["terminal"][slots] != 0
        is_first = np.append(count <= capacity, ends)[:stored]
        is_padding = np.zeros(stored, np.bool_)
        for place in range(self.padding):
            is_padding[place:] |= is_first[: stored - place]
        is_step = np.zeros(capacity, np.bool_)
        is_step[slots] = ~is_padding
        is_end = columns["terminal"] != 0
        found = {**columns, STEP: is_step, TERMINAL: is_end, TRUNCATED: is_end & False}
        found[FIRST_PRIORITY] = np.broadcast_to(priorities, capacity)
        try:
            # Slots before the cursor a second time, so that the next row goes behind them.
            for stop in (stored, count % capacity if count > capacity else 0):
                self.rows.add(**{name: values[:stop] for name, values in found.items()})
        except ValueError as error:
            raise InputError(str(error)) from error

    # ------------------------------------------------------------------ reading

    def read(self, name: str, slots: Slots) -> Array:
        """A field at these slots, shape ``(*slots.shape, *shape)``, slots in two dimensions.

        The slot -1 stands for zeros, or ``None`` where the field holds lists.
        """
        column = self._columns.get(name)
        if column is None or slots.size * column.nbytes >= CHECKED_NBYTES:
            return self.rows.stack(name, slots, axis=0)
        return take_stacks(self.ring, column, slots, 0)  # half the time of ``stack``

    def column(self, name: str, slots: Slots) -> Array:
        """A field at slots in one dimension."""
        return self.read(name, slots[:, np.newaxis])[:, 0]

    def place(self, slots: Slots) -> Slots:
        """Slots around the end of the ring; -1 for those that were never written."""
        places = slots % self.ring.capacity
        places[places >= self.ring.stored] = -1
        return places

    def stacks(self, slots: Slots) -> Slots:
        """The slots of the stacks that end at these slots, shape ``(n, depth)``; all -1 for -1."""
        if not self.padding:
            return slots[:, np.newaxis]
        stacked = self.place(slots[:, np.newaxis] + np.arange(-self.padding, 1))
        stacked[slots < 0] = -1
        return stacked

    def tensors(self) -> dict[str, Any]:
        """Each field at all slots, as tensors where the values are arrays; zeros if not written."""
        slots = self.place(np.arange(self.ring.capacity, dtype=np.intp))
        columns = {name: self.column(name, slots) for name in self.elements}
        return {
            name: need("torch").from_numpy(values)
            if isinstance(self.elements[name], DenseMetadata)
            else values
            for name, values in columns.items()
        }

    def valid(self, slots: Slots) -> NDArray[np.bool_]:
        """Which rows are steps whose stack is there, and what follows for ``horizon`` steps too."""
        window, counts, flags = self.ring.windows(slots, self.padding, self.horizon)
        is_step = self.read(STEP, window.take([self.padding, -1], axis=1))
        has_end = IS_TERMINAL[flags] | (IS_END[flags] & ~is_step[:, 1])
        has_future = (counts[:, 1] == self.horizon) | has_end
        valid: NDArray[np.bool_] = is_step[:, 0] & has_future & (counts[:, 0] == self.padding)
        return valid


class Windows(NamedTuple):
    """The rows from drawn rows on, up to the end of the episode or for ``horizon`` steps.

    Attributes
    ----------
    slots : ndarray of intp, shape (n, horizon + 1)
        Slots of the steps and of the row behind them; -1 behind the episode.
    steps : ndarray of int64, shape (n,)
        How many steps there are.
    terminal : ndarray of bool, shape (n,)
        Whether the last of them is a terminal one.
    """

    slots: Slots
    steps: NDArray[np.int64]
    terminal: NDArray[np.bool_]

    @classmethod
    def of(cls, rows: Rows, slots: Slots) -> Windows:
        """The windows of rows that are stored."""
        found, counts, flags = rows.ring.windows(slots, 0, rows.horizon, repeat=False)
        ahead, is_end = counts[:, 1], IS_END.take(flags)
        is_final = is_end & ~rows.column(STEP, rows.place(slots + ahead))
        steps = np.minimum(ahead + 1 - is_final, rows.horizon)
        steps[~is_end] = rows.horizon
        terminal = IS_TERMINAL.take(flags) & (is_final | (ahead < rows.horizon))
        return cls(found, steps, terminal)

    @property
    def next(self) -> Slots:
        """Slot of the row behind the last step; -1 if that is no row of the same episode."""
        n, width = self.slots.shape
        return self.slots.take(np.arange(0, n * width, width) + self.steps)

    def line(self, *, ahead: bool) -> Slots:
        """The steps of all windows in a row, or, ``ahead``, the row behind each."""
        slots = self.slots[:, 1:] if ahead else self.slots[:, :-1]
        return slots[np.arange(slots.shape[1]) < self.steps[:, np.newaxis]]


def invalid_range(
    cursor: int, replay_capacity: int, stack_size: int, update_horizon: int
) -> NDArray[np.int64]:
    """The slots round a cursor that are not sampled while an episode goes on.

    They are the ``update_horizon`` before it and the ``stack_size`` from it on, around the end.
    Raises ``InputError`` unless ``cursor`` is a slot.

    Examples
    --------
    >>> from cpprb_like.compat.reagent.circular_replay_buffer import invalid_range
    >>> invalid_range(1, 10, stack_size=2, update_horizon=3).tolist()
    [8, 9, 0, 1, 2]
    """
    if not 0 <= cursor < replay_capacity:
        raise InputError(f"cursor: expected 0 to {replay_capacity - 1}, got {cursor}")
    around = np.arange(cursor - update_horizon, cursor + stack_size, dtype=np.int64)
    return around % replay_capacity
