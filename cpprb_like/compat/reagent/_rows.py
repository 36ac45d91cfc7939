"""The rows of a buffer: which can be drawn, and the transitions that they make.

Rows of zeros, steps and final observations are rows of one ``cpprb_like.ReplayBuffer``, so slots
are ReAgent's slots. Not here: arguments of calls, and tensors of single fields (``_elements``).
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like._arguments.arrays import Array, Slots
from cpprb_like.compat.reagent._elements import (
    REQUIRED_KEYS,
    ElementMetadata,
    InputError,
    column,
)
from cpprb_like.compat.reagent._settings import Settings
from cpprb_like.samplers import Prioritized, Where
from cpprb_like.views._stacking import CHECKED_NBYTES, take_stacks

__all__ = ["Rows", "batch_type", "invalid_range", "transition_names"]

CHUNK = 1 << 16  # rows whose windows are in memory at once
PRIORITIES = "priorities"  # argument of ``PrioritizedReplayBuffer.add``
# Names that a buffer with priorities has for itself, and those of such fields of the user inside.
INSIDE = {name: f"${name}" for name in (PRIORITIES, "weights", "indexes")}
# Fields beside those of the user, whose names are names of Python.
STEP = "$step"  # 1 in a step; 0 in a row of zeros and in a final observation
TERMINAL = "$terminal"  # 1 in the last row of an episode that was terminated
TRUNCATED = "$truncated"  # the same, of other episodes

# By the flags of the last row of a window, see ``Ring.windows``.
IS_END, IS_TERMINAL = (np.arange(16) & bit != 0 for bit in (1, 2))


class Rows:
    """Rows of named elements, and flags of the slots that can be drawn.

    A slot is valid if its row is a step whose stack is there, and so is what follows for
    ``update_horizon`` steps, or the end of the episode. Flags follow the rows at the next look.

    Parameters
    ----------
    rows : ReplayBuffer
        Of the fields that ``empty`` declares.
    elements : dict
        The kind of each field.
    settings : Settings
        Of the buffer.

    Attributes
    ----------
    flags : ndarray of bool, shape (capacity,)
        Whether each slot can be drawn, at the last ``follow``; to be read only.
    seen, open : int
        Rows that were written at the last ``follow``, and those of them in an open episode.
    """

    def __init__(
        self, rows: ReplayBuffer, elements: Mapping[str, ElementMetadata], settings: Settings
    ) -> None:
        self.rows = rows
        self.ring = rows.ring
        self.elements = dict(elements)
        self.settings = settings
        self.padding = settings.stack_size - 1
        self.horizon = settings.update_horizon
        self.flags: NDArray[np.bool_] = np.zeros(settings.replay_capacity, np.bool_)
        self.valid = Where(rows.ring, self.flags.take)
        self.seen = self.open = 0
        self._count: int | None = 0  # of the flags that are set; None while they change
        self._columns = {x.name: x for x in rows.ring.columns if x.objects is None}
        self._fields = {field.name: field for field in rows.schema.fields}
        self._renamed = [name for name in INSIDE if name in elements]

    @classmethod
    def empty(
        cls, elements: Mapping[str, ElementMetadata], settings: Settings, seed: int, by_weight: bool
    ) -> Rows:
        """No rows yet, of these fields; ``InputError`` if there can be no such rows."""
        declared: dict[str, Any] = {
            INSIDE.get(name, name): kind.declaration() for name, kind in elements.items()
        }
        for name in (STEP, TERMINAL, TRUNCATED):
            declared[name] = {"shape": (), "dtype": bool}
        sampler = Prioritized(1.0, beta=0.0, eps=0.0, check_for_update=False)
        make = partial(PrioritizedReplayBuffer, sampler=sampler) if by_weight else ReplayBuffer
        try:
            rows = make(
                settings.replay_capacity,
                declared,
                terminated=TERMINAL,
                truncated=TRUNCATED,
                seed=seed,
            )
        except (TypeError, ValueError) as error:
            raise InputError(str(error)) from error
        return cls(rows, elements, settings)

    # ------------------------------------------------------------------ adding

    def add(
        self,
        step: dict[str, Any],
        is_terminal: bool,
        is_end: bool,
        final: Any,
        priority: float | None,
    ) -> None:
        """Add a step, in one call together with rows of zeros before it and a final observation.

        ``InputError`` names the field that has no faithful value of its dtype.
        """
        padding = 0 if self.ring.episode_len(0) else self.padding
        for name in self._renamed:
            step[INSIDE[name]] = step.pop(name)
        step |= {STEP: True, TERMINAL: is_terminal, TRUNCATED: is_end and not is_terminal}
        n = padding + 1 + (final is not None)
        beside: dict[str, Any] = {}
        if priority is not None:
            beside[PRIORITIES] = np.zeros(n)
            beside[PRIORITIES][padding] = priority
        try:
            if n == 1:
                self.rows.add(**step, **beside)
                return
            columns = {name: self._zeros(name, n) for name in self._fields}
            for name, value in step.items():
                columns[name][padding] = self._fields[name].convert(value, 1)[0]
            if final is not None:  # the last row instead of the step
                columns["observation"][-1] = self._fields["observation"].convert(final, 1)[0]
                for name in (TERMINAL, TRUNCATED):
                    columns[name][-2:] = False, columns[name][-2]
            self.rows.add(**columns, **beside)
        except ValueError as error:
            raise InputError(str(error)) from error

    def _zeros(self, name: str, n: int) -> Array:
        field = self._fields[name]
        blank = None if field.dtype.kind == "O" else field.dtype.type()
        return np.full((n, *field.shape), blank, field.dtype)

    def fill(self, columns: Mapping[str, Array], count: int, priorities: Array | None) -> None:
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
        found = {INSIDE.get(name, name): values for name, values in columns.items()}
        found |= {STEP: is_step, TERMINAL: is_end, TRUNCATED: is_end & False}
        if priorities is not None:
            found[PRIORITIES] = priorities
        try:
            # Slots before the cursor a second time, so that the next row goes behind them.
            for stop in (stored, count % capacity if count > capacity else 0):
                self.rows.add(**{name: values[:stop] for name, values in found.items()})
        except ValueError as error:
            raise InputError(str(error)) from error

    # ------------------------------------------------------------------ which can be drawn

    def follow(self) -> None:
        """Set the flags of the rows that were added since the last call.

        An interrupted call is repeated by the next one.
        """
        if self.ring.written != self.seen:
            self.rows._hold(False, self._take_in)

    def _take_in(self) -> None:
        """``follow``, while other threads that write wait."""
        written, capacity = self.ring.written, self.ring.capacity
        oldest = max(0, written - capacity)
        # Steps of an open episode lacked what follows; users may have set their flags.
        first = self.seen - min(self.horizon, self.open)
        for start in range(max(oldest, first), written, CHUNK):
            slots = np.arange(start, min(start + CHUNK, written)) % capacity
            flags, n = self._are_valid(slots), max(0, self.seen - start)
            flags[:n] |= self.flags[slots[:n]]
            self.set_flags(slots, flags)
        if oldest and self.padding:  # broken stacks
            self.set_flags(np.arange(oldest, oldest + self.padding) % capacity, False)
        self.open = self.ring.episode_len(0)
        self.seen = written

    def _are_valid(self, slots: Slots) -> NDArray[np.bool_]:
        """The rule of the class, for rows that are stored."""
        window, counts, flags = self.ring.windows(slots, self.padding, self.horizon)
        is_step = self.read(STEP, window.take([self.padding, -1], axis=1))
        has_end = IS_TERMINAL[flags] | (IS_END[flags] & ~is_step[:, 1])
        has_future = (counts[:, 1] == self.horizon) | has_end
        valid: NDArray[np.bool_] = is_step[:, 0] & has_future & (counts[:, 0] == self.padding)
        return valid

    def set_flags(self, slots: Slots, flags: NDArray[np.bool_] | bool) -> None:
        """Set the flags of slots, each of which is there once."""
        count, self._count = self.count, None  # an interrupted call leaves no wrong count
        count -= int(np.count_nonzero(self.flags[slots]))
        self.flags[slots] = flags
        self._count = count + int(np.count_nonzero(self.flags[slots]))

    @property
    def count(self) -> int:
        """How many flags are set."""
        known = self._count
        return self._counted() if known is None else known

    def _counted(self) -> int:
        return int(np.count_nonzero(self.flags))

    def draw(self, n: int) -> Slots:
        """Slots of valid rows, drawn as the sampler of the rows draws them."""
        sampler: Any = self.rows.sampler
        if not sampler.has_priorities:
            return self._draw_valid(n)
        # Most draws hit none but valid rows: a third of the time. The others keep their valid rows,
        # as a stratified draw with none but valid rows would prefer those beside the invalid ones.
        slots: Slots = sampler.draw(self.ring, n, self.rows.rng, replace=True)[0]
        wrong = np.flatnonzero(~self.flags[slots])
        if len(wrong):
            slots[wrong] = self._draw_valid(len(wrong))
        return slots

    def _draw_valid(self, n: int) -> Slots:
        sampler: Any = self.rows.sampler
        slots: Slots = sampler.draw_starts(self.valid, n, self.rows.rng, replace=True)[0]
        return slots

    # ------------------------------------------------------------------ reading

    def read(self, name: str, slots: Slots) -> Array:
        """A field at these slots, shape ``(*slots.shape, *shape)``, slots in two dimensions.

        The slot -1 stands for zeros, or ``None`` where the field holds lists.
        """
        name = INSIDE.get(name, name)
        found = self._columns.get(name)
        if found is None or slots.size * found.nbytes >= CHECKED_NBYTES:
            return self.rows.stack(name, slots, axis=0)
        return take_stacks(self.ring, found, slots, 0)  # half the time of ``stack``

    def column(self, name: str, slots: Slots) -> Array:
        """A field at slots in one dimension."""
        return self.read(name, slots[:, np.newaxis])[:, 0]

    def place(self, slots: Slots) -> Slots:
        """Slots around the end of the ring; -1 for those that were never written."""
        places = slots % self.ring.capacity
        places[places >= self.ring.stored] = -1
        return places

    def _stacks(self, slots: Slots) -> Slots:
        """The slots of the stacks that end at these slots, shape ``(n, depth)``; all -1 for -1."""
        if not self.padding:
            return slots[:, np.newaxis]
        stacked = self.place(slots[:, np.newaxis] + np.arange(-self.padding, 1))
        stacked[slots < 0] = -1
        return stacked

    def transitions(
        self,
        slots: Slots,
        elements: Mapping[str, ElementMetadata],
        read: Callable[[str, Slots], Array],
    ) -> dict[str, Any]:
        """The transitions from these slots on, as tensors by name.

        ``elements`` are the fields that are given out, and ``read`` reads one of them.
        """
        window, counts, flags = self.ring.windows(slots, 0, self.horizon, repeat=False)
        ahead, is_end = counts[:, 1], IS_END.take(flags)
        is_final = is_end & ~self.column(STEP, self.place(slots + ahead))
        steps = np.minimum(ahead + 1 - is_final, self.horizon)
        steps[~is_end] = self.horizon
        terminal = IS_TERMINAL.take(flags) & (is_final | (ahead < self.horizon))

        n, width = window.shape
        is_timeline = self.settings.return_as_timeline_format
        is_within = np.arange(self.horizon) < steps[:, np.newaxis] if is_timeline else None
        # The row behind the last step; -1 if that is no row of the same episode.
        behind = window.take(np.arange(0, n * width, width) + steps)
        later = behind if is_within is None else window[:, 1:][is_within]
        stacks = self._stacks(np.concatenate([slots, later]))
        batch: dict[str, Any] = {}
        for name, kind in elements.items():
            if name == "terminal":
                continue
            out = "state" if name == "observation" else name
            values = read(name, stacks)
            batch[out], following = kind.output(values[:n]), values[n:]
            batch[f"next_{out}"] = (
                kind.output_lists(following, steps) if is_timeline else kind.output(following)
            )
        if is_within is not None:
            rewards = read("reward", self._stacks(window[:, :-1][is_within]))
            batch["reward"] = elements["reward"].output_lists(rewards, steps)
        elif not self.settings.return_everything_as_stack:
            # Rows behind the last step, and final observations, have rewards of 0.
            rewards = read("reward", window)[:, :-1].astype(np.float64)
            factors = _factors(self.settings.gamma, self.horizon)
            plain = rewards.ndim == 2
            total = rewards @ factors if plain else np.tensordot(factors, rewards, (0, 1))
            batch["reward"] = column(total.astype(np.float32))
        batch["terminal"] = column(terminal)
        batch["indices"] = column(slots.astype(np.int64))
        batch["step"] = column(steps)
        return batch


@lru_cache(maxsize=8)
def _factors(gamma: float, horizon: int) -> NDArray[np.float64]:
    """Discount factors of the rewards of a transition."""
    return np.asarray(gamma ** np.arange(float(horizon)))


@lru_cache(maxsize=64)
def transition_names(elements: tuple[str, ...]) -> tuple[str, ...]:
    """The names of what a batch consists of, for a buffer of these fields."""
    extras = [name for name in elements if name not in REQUIRED_KEYS]
    return (
        *("state", "action", "reward", "next_state", "next_action", "next_reward"),
        *("terminal", "indices", "step"),
        *(f"{prefix}{name}" for name in extras for prefix in ("", "next_")),
    )


@lru_cache(maxsize=64)
def batch_type(names: tuple[str, ...]) -> Any:
    """The class of batches with these names; making one takes longer than drawing a batch."""
    try:
        return namedtuple("batch_type", names)  # noqa: PYI024 (the names are known when it runs)
    except ValueError as error:
        raise InputError(f"names of fields: {error}, in {list(names)}") from None


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
