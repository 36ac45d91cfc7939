"""Rows of ReAgent's buffers: which slots can be drawn, and the transitions read from them.

Rows of zeros, steps and final observations are rows of one ``cpprb_like.ReplayBuffer``, so slots
are ReAgent's slots. Not here: arguments of calls, and tensors of single fields (``_elements``).
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like._arguments.arrays import Array, Slots
from cpprb_like._machine.machine_memory import CHECKED_NBYTES
from cpprb_like.compat.reagent._elements import (
    REQUIRED_KEYS,
    DenseMetadata,
    ElementMetadata,
    InputError,
    column,
)
from cpprb_like.compat.reagent._settings import Settings
from cpprb_like.samplers import Prioritized, Where
from cpprb_like.views._stacking import take_stacks

CHUNK = 1 << 16  # rows whose windows are computed at once
PRIORITY = "priority"
PRIORITY_KIND = DenseMetadata((), np.dtype(np.float32))
# Fields of this module. Names of users' fields are Python identifiers, so none of them has a "$".
STEP = "$step"  # 1 in a step; 0 in a row of zeros and in a final observation
OVERRIDE = "$said"  # set by ``set_index_valid_status``: 1 valid, -1 invalid, 0 never set
TERMINAL = "$terminal"  # 1 in the last row of a terminated episode
TRUNCATED = "$truncated"  # 1 in the last row of a truncated episode
# Columns of a batch that are ``state`` and ``next_state`` under the name of the stored field.
ALIASES = {"observation": "state", "next_observation": "next_state"}
# Tables: the flags that ``Ring.windows`` returns for the last row of a window, to a bool.
IS_END, IS_TERMINAL = (np.arange(16) & bit != 0 for bit in (1, 2))


class Rows:
    """Rows with named fields, and a flag for each slot: whether it can be drawn.

    A slot is valid if its row is a step, all frames of its stack are stored, and
    ``update_horizon`` steps or the end of the episode follow. ``update_flags`` computes ``flags``.
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
        self.seen = 0  # rows written at the last ``update_flags``
        self.stale: int | None = None  # slot whose ``OVERRIDE`` changed after its flag was computed
        self.count: int | None = 0  # number of flags that are set; None while flags change
        self._columns = {x.name: x for x in rows.ring.columns if x.objects is None}
        self._fields = {field.name: field for field in rows.schema.fields}
        self._outputs = dict(elements)
        if rows.has_priorities and not settings.is_declared:
            self._outputs[PRIORITY] = PRIORITY_KIND
        names = transition_names(elements, rows.has_priorities, settings.is_declared)
        self.batch_type = _batch_type(names)

    @classmethod
    def empty(
        cls, elements: Mapping[str, ElementMetadata], settings: Settings, seed: int, by_weight: bool
    ) -> Rows:
        """Rows of these fields, none written yet; ``InputError`` if ``ReplayBuffer`` refuses."""
        declared: dict[str, Any] = {name: kind.declaration() for name, kind in elements.items()}
        declared |= {name: {"shape": (), "dtype": bool} for name in (STEP, TERMINAL, TRUNCATED)}
        declared[OVERRIDE] = {"shape": (), "dtype": np.int8}
        options: dict[str, Any] = {"terminated": TERMINAL, "truncated": TRUNCATED, "seed": seed}
        make: Any = ReplayBuffer
        if by_weight:
            make = PrioritizedReplayBuffer
            options["sampler"] = Prioritized(1.0, beta=0.0, eps=0.0, check_for_update=False)
        try:
            rows = make(settings.replay_capacity, declared, **options)
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
        """Add a step, with rows of zeros before it and a final observation, in one call.

        Raises ``InputError``, which names the field, if a value is not representable in its dtype.
        """
        place = 0 if self.ring.episode_len(0) else self.padding
        n = place + 1 + (final is not None)
        columns = {
            **step,
            STEP: True,
            OVERRIDE: 0,
            TERMINAL: is_terminal,
            TRUNCATED: is_end and not is_terminal,
        }
        beside: dict[str, Any] = {}
        if priority is not None:
            beside["priorities"] = np.zeros(n)
            beside["priorities"][place] = priority
        try:
            if n > 1:
                for name, value in columns.items():
                    field = self._fields[name]
                    blank = None if field.dtype.kind == "O" else field.dtype.type()
                    columns[name] = np.full((n, *field.shape), blank, field.dtype)
                    columns[name][place] = field.convert(value, 1)[0]
                if final is not None:  # the last row ends the episode, and not the step
                    columns["observation"][-1] = self._fields["observation"].convert(final, 1)[0]
                    for name in (TERMINAL, TRUNCATED):
                        columns[name][-2:] = columns[name][[-1, -2]]
            self.rows.add(**columns, **beside)
        except ValueError as error:
            raise InputError(str(error)) from error

    def fill(self, columns: Mapping[str, Array], count: int, priorities: Array | None) -> None:
        """Add columns that ReAgent stored by slot, from a buffer of ``count`` rows ever written.

        Each row keeps its slot. Rows of zeros follow on a terminal step. In a full ring, the rows
        of zeros of the oldest episode are not known. So the same number of rows of this episode is
        never valid, because frames of their stacks are overwritten.
        """
        capacity = self.ring.capacity
        stored = min(count, capacity)
        slots = np.arange(count - stored, count) % capacity
        is_end = columns["terminal"] != 0
        is_first = np.append(count <= capacity, is_end[slots])[:stored]
        is_padding = np.zeros(stored, np.bool_)
        for place in range(self.padding):
            is_padding[place:] |= is_first[: stored - place]
        is_step = np.zeros(capacity, np.bool_)
        is_step[slots] = ~is_padding
        found = {**columns, STEP: is_step, TERMINAL: is_end, TRUNCATED: is_end & False}
        found[OVERRIDE] = np.zeros(capacity, np.int8)
        if priorities is not None:
            found["priorities"] = priorities
        try:
            # Slots before the cursor are written twice, so the next row goes to the cursor.
            for stop in (stored, count % capacity if count > capacity else 0):
                self.rows.add(**{name: values[:stop] for name, values in found.items()})
        except ValueError as error:
            raise InputError(str(error)) from error

    # ------------------------------------------------------------------ which can be drawn

    def update_flags(self) -> NDArray[np.bool_]:
        """The flags, up to date. The next call completes an interrupted one."""
        if self.ring.written != self.seen or self.stale is not None:
            self.rows._hold(False, self._update_flags)
        return self.flags

    def _update_flags(self) -> None:
        """``update_flags`` under the lock of the buffer."""
        written, capacity = self.ring.written, self.ring.capacity
        if written != self.seen:
            oldest = max(0, written - capacity)
            # The last ``horizon`` old rows too, as their next steps are among the new rows.
            for start in range(max(oldest, self.seen - self.horizon), written, CHUNK):
                self._look(np.arange(start, min(start + CHUNK, written)) % capacity)
            if oldest:  # frames of the oldest stacks are overwritten: no override makes them valid
                self._set(np.arange(oldest, oldest + self.padding) % capacity, False)
            self.seen = written
        if self.stale is not None:
            self._look(np.array([self.stale]))
            self.stale = None

    def _look(self, slots: Slots) -> None:
        """Compute the flags of different slots, by the rule of the class."""
        window, counts, flags = self.ring.windows(slots, self.padding, self.horizon)
        is_step = self.read(STEP, window.take([self.padding, -1], axis=1))
        has_end = IS_TERMINAL[flags] | (IS_END[flags] & ~is_step[:, 1])
        valid = is_step[:, 0] & (has_end | (counts[:, 1] == self.horizon))
        override = self.read(OVERRIDE, slots[:, np.newaxis])[:, 0]
        valid &= (counts[:, 0] == self.padding) & (override >= 0)
        self._set(slots, valid | (override > 0))

    def _set(self, slots: Slots, flags: NDArray[np.bool_] | bool) -> None:
        before, self.count = self.size(), None  # an interrupted call leaves no wrong count
        before -= int(np.count_nonzero(self.flags[slots]))
        self.flags[slots] = flags
        self.count = before + int(np.count_nonzero(self.flags[slots]))

    def size(self) -> int:
        """Number of flags that are set."""
        return int(np.count_nonzero(self.flags)) if self.count is None else self.count

    def override(self, slot: int, is_valid: bool) -> None:
        """Declare a stored row valid or invalid."""
        self.rows._hold(False, self._override, slot, is_valid)

    def _override(self, slot: int, is_valid: bool) -> None:
        """``override`` under the lock. ``update_flags`` completes an interrupted call."""
        self._update_flags()
        self.stale = slot
        self.rows.update([slot], **{OVERRIDE: [1 if is_valid else -1]})
        self._update_flags()

    def draw(self, n: int) -> Slots:
        """Draw slots of valid rows with the sampler of the rows."""
        sampler: Any = self.rows.sampler
        if not sampler.has_priorities:
            return self._draw_valid(n)
        # Most draws hit valid rows only, and take a third of the time. Other draws keep their valid
        # rows: repeated stratified draws would prefer the rows beside invalid ones.
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

    @property
    def sampler(self) -> Prioritized:
        """The sampler of a prioritized buffer."""
        return cast("Prioritized", self.rows.sampler)

    def read(self, name: str, slots: Slots) -> Array:
        """The values of a field at a 2-d array of slots, shape ``(*slots.shape, *shape)``.

        At slot -1 the value is zeros, or ``None`` in a field of lists.
        """
        found = self._columns.get(name)
        if found is not None and slots.size * found.nbytes < CHECKED_NBYTES:
            dense = np.ascontiguousarray(slots)
            return take_stacks(self.ring, found, dense, 0)  # half the time of ``stack``
        if name != PRIORITY or PRIORITY in self.elements:
            return self.rows.stack(name, slots, axis=0)
        priorities = np.zeros(slots.shape, np.float32)
        priorities[slots >= 0] = self.sampler.rows.get(slots[slots >= 0])
        return priorities

    def column(self, name: str) -> Array:
        """The values of a field at all slots."""
        slots = np.arange(self.ring.capacity, dtype=np.intp)
        return self.read(name, np.where(slots < self.ring.stored, slots, -1)[:, np.newaxis])[:, 0]

    def transitions(self, slots: Slots, names: Collection[str]) -> tuple[Slots, dict[str, Any]]:
        """The oldest slot read for each transition, and the columns of these names.

        The result may have further columns, which are computed together with these.
        """
        window, counts, flags = self.ring.windows(slots, self.padding, self.horizon, repeat=False)
        ahead, is_end = counts[:, 1], IS_END[flags]
        # Indexes into the flat windows: the oldest frame of each transition, and the frames of a
        # stack relative to it.
        firsts = np.arange(len(slots)) * window.shape[1]
        frames = np.arange(self.padding + 1)
        last = window.take(firsts + (self.padding + ahead))
        is_final = is_end & ~self.read(STEP, last[:, np.newaxis])[:, 0]
        steps = np.where(is_end, np.minimum(ahead + 1 - is_final, self.horizon), self.horizon)
        terminal = IS_TERMINAL[flags] & (is_final | (ahead < self.horizon))

        is_timeline = self.settings.return_as_timeline_format
        following = firsts + steps
        if is_timeline:
            is_within = np.arange(self.horizon) < steps[:, np.newaxis]
            following = (firsts[:, np.newaxis] + np.arange(1, self.horizon + 1))[is_within]
        picked = window.take(np.concatenate([firsts, following])[:, np.newaxis] + frames)
        picked[picked[:, -1] < 0] = -1  # states after the end of an episode are zeros
        batch: dict[str, Any] = {}
        for name, kind in self._outputs.items():
            out = "state" if name == "observation" else name
            if (name == "terminal" or out not in names) and f"next_{out}" not in names:
                continue
            values = self.read(name, picked)
            now, later = values[: len(slots)], values[len(slots) :]
            batch[out] = kind.output(now)
            batch[f"next_{out}"] = (
                kind.output_lists(later, steps) if is_timeline else kind.output(later)
            )
        if is_timeline:
            rewards = self.read("reward", window.take((following - 1)[:, np.newaxis] + frames))
            batch["reward"] = self._outputs["reward"].output_lists(rewards, steps)
        elif not self.settings.return_everything_as_stack:
            # Rewards after the last step, and of final observations, are 0.
            rewards = self.read("reward", window[:, self.padding : -1]).astype(np.float64)
            factors = self.settings.gamma ** np.arange(float(self.horizon))
            total = np.moveaxis(rewards, 1, -1) @ factors if rewards.ndim > 2 else rewards @ factors
            batch["reward"] = column(total.astype(np.float32))
        batch["terminal"] = column(terminal)
        batch["indices"] = column(slots.astype(np.int64))
        batch["step"] = column(steps)
        if self.rows.has_priorities:
            self._add_probabilities(batch, slots)
        return window.take(firsts + (self.padding - counts[:, 0])), batch

    def _add_probabilities(self, batch: dict[str, Any], slots: Slots) -> None:
        """Add the columns ``sampling_probabilities`` (priorities) and ``probabilities``."""
        weights = self.sampler.rows
        priorities = weights.get(slots)
        batch["sampling_probabilities"] = column(priorities.astype(np.float32))
        if not self.settings.is_declared:
            others = np.flatnonzero(~self.flags[: self.ring.stored])
            total = weights.total - weights.get(others).sum()
            probabilities = priorities / (total if total > 0 else 1.0)
            batch["probabilities"] = column(probabilities.astype(np.float32))


class Columns(NamedTuple):
    """The columns of a batch."""

    batch_type: Any
    sources: tuple[str, ...]  # name of each column among the columns of ``Rows.transitions``
    missing: frozenset[str]  # names that ``Rows.transitions`` does not have

    @classmethod
    def of(cls, names: Iterable[str], rows: Rows) -> Columns:
        """The columns of these names. Raises ``InputError`` for next values that are not stored."""
        names = tuple(names)
        sources = tuple(ALIASES.get(name, name) for name in names)
        missing = frozenset(sources) - {*rows.batch_type._fields, "next_terminal"}
        unknown = [name for name in names if name in missing and name.startswith("next_")]
        if unknown:
            raise InputError(f"{unknown[0]}: expected a stored field, {list(rows.elements)}")
        is_usual = names == rows.batch_type._fields
        return cls(rows.batch_type if is_usual else _batch_type(names), sources, missing)


def transition_kinds(
    elements: Mapping[str, ElementMetadata], names: Iterable[str], stack_size: int
) -> dict[str, tuple[tuple[int, ...], DTypeLike]]:
    """The shape of one row and the dtype of each column, in ReAgent's signature.

    ``elements`` are declared fields.
    """
    kinds: dict[str, tuple[tuple[int, ...], DTypeLike]] = {
        name: (kind.shape, kind.dtype)
        for name, kind in elements.items()
        if isinstance(kind, DenseMetadata)
    }
    shape, dtype = kinds["observation"]
    kinds |= {
        "state": ((*shape, stack_size), dtype),
        "indices": ((), np.int32),
        "step": ((), np.int32),
        "sampling_probabilities": ((), np.float32),
    }
    return {name: kinds[name if name in kinds else name.removeprefix("next_")] for name in names}


def transition_names(
    elements: Iterable[str], has_priorities: bool, is_declared: bool
) -> tuple[str, ...]:
    """The names of the columns of a batch, for a buffer of these fields.

    Batches of ReAgent until July 2020, where fields are declared, have fewer columns of priorities.
    """
    extras = [name for name in elements if name not in REQUIRED_KEYS]
    more: tuple[str, ...] = ()
    if has_priorities:
        extras += [] if is_declared else [PRIORITY]
        more = ("sampling_probabilities", *([] if is_declared else ["probabilities"]))
    return (
        *("state", "action", "reward", "next_state", "next_action", "next_reward"),
        *("terminal", "indices", "step"),
        *(f"{prefix}{name}" for name in extras for prefix in ("", "next_")),
        *more,
    )


def _batch_type(names: tuple[str, ...]) -> Any:
    try:
        return namedtuple("batch_type", names)  # noqa: PYI024 (names at run time)
    except ValueError as error:
        raise InputError(f"names of fields: {error}, in {list(names)}") from None


def invalid_range(
    cursor: int, replay_capacity: int, stack_size: int, update_horizon: int
) -> NDArray[np.int64]:
    """The slots around a cursor that are not sampled while an episode goes on.

    They are ``update_horizon`` slots before the cursor, and ``stack_size`` slots from the cursor
    on, modulo the capacity. Raises ``InputError`` unless ``cursor`` is a slot.

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
