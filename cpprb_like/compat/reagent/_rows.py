"""The rows of a buffer: which can be drawn, and the transitions that they make.

Rows of zeros and steps are rows of one ``cpprb_like.ReplayBuffer``, so slots are ReAgent's slots.
Not here: arguments of calls, and tensors of single fields (``_elements``).
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like._arguments.arrays import Array, Slots
from cpprb_like._machine.machine_memory import CHECKED_NBYTES
from cpprb_like.compat.reagent._elements import (
    REQUIRED_KEYS,
    DenseMetadata,
    InputError,
    column,
)
from cpprb_like.compat.reagent._settings import Settings
from cpprb_like.samplers import Prioritized, Where
from cpprb_like.views._stacking import take_stacks

CHUNK = 1 << 16  # rows whose windows are in memory at once
TRUNCATED = "$truncated"  # a field beside those of the user, whose names are names of Python
IS_TERMINAL = np.arange(16) & 2 != 0  # by the flags of a window, see ``Ring.windows``


class Rows:
    """Rows of named elements, and flags of the slots that can be drawn.

    An episode begins with ``stack_size - 1`` rows of zeros. A slot is valid if as many rows of its
    episode are before its row, and ``update_horizon`` rows or a terminal step behind it. ``flags``
    are those of the last ``follow``.
    """

    def __init__(self, rows: ReplayBuffer, settings: Settings) -> None:
        self.rows = rows
        self.ring = rows.ring
        self.fields = {x.name: x for x in rows.schema.fields}
        self.elements = {
            name: DenseMetadata(field.shape, field.dtype)
            for name, field in self.fields.items()
            if name != TRUNCATED
        }
        self.settings = settings
        self.padding = settings.stack_size - 1
        self.horizon = settings.update_horizon
        self.flags: NDArray[np.bool_] = np.zeros(settings.replay_capacity, np.bool_)
        self.valid = Where(rows.ring, self.flags.take)
        self.seen = 0  # rows written at the last ``follow``
        self.count: int | None = 0  # of the flags that are set; None while they change
        self._columns = {x.name: x for x in rows.ring.columns}
        self._batch_type = _batch_type(transition_names(self.elements, rows.has_priorities))

    @classmethod
    def empty(
        cls, elements: Mapping[str, DenseMetadata], settings: Settings, seed: int, by_weight: bool
    ) -> Rows:
        """No rows yet, of these fields; ``InputError`` if there can be no such rows."""
        declared: dict[str, Any] = {name: vars(kind) for name, kind in elements.items()}
        declared[TRUNCATED] = {"shape": (), "dtype": bool}
        options: dict[str, Any] = {"terminated": "terminal", "truncated": TRUNCATED, "seed": seed}
        make: Any = ReplayBuffer
        if by_weight:
            make = PrioritizedReplayBuffer
            options["sampler"] = Prioritized(1.0, beta=0.0, eps=0.0, check_for_update=False)
        try:
            rows = make(settings.replay_capacity, declared, **options)
        except (TypeError, ValueError) as error:
            raise InputError(str(error)) from error
        return cls(rows, settings)

    # ------------------------------------------------------------------ adding

    def add(self, step: dict[str, Any], is_truncated: bool, priority: float | None) -> None:
        """Add a step, in one call together with rows of zeros before it.

        ``InputError`` names the field that has no faithful value of its dtype.
        """
        padding = 0 if self.ring.episode_len(0) else self.padding
        columns = {**step, TRUNCATED: is_truncated}
        if priority is not None:
            columns["priorities"] = np.zeros(padding + 1)
            columns["priorities"][-1] = priority
        try:
            if padding:
                for name, field in self.fields.items():
                    value = field.convert(columns[name], 1)[0]
                    columns[name] = np.zeros((padding + 1, *field.shape), field.dtype)
                    columns[name][-1] = value
            self.rows.add(**columns)
        except ValueError as error:
            raise InputError(str(error)) from error

    def fill(self, columns: Mapping[str, Array], count: int, priorities: Array | None) -> None:
        """Add rows that ReAgent stored by slot, after ``count`` rows: each goes to its slot."""
        capacity = self.ring.capacity
        found = {**columns, TRUNCATED: np.zeros(capacity, np.bool_)}
        if priorities is not None:
            found["priorities"] = priorities
        try:
            # Slots before the cursor a second time, so that the next row goes behind them.
            for stop in (min(count, capacity), count % capacity if count > capacity else 0):
                self.rows.add(**{name: values[:stop] for name, values in found.items()})
        except ValueError as error:
            raise InputError(str(error)) from error

    # ------------------------------------------------------------------ which can be drawn

    def follow(self) -> NDArray[np.bool_]:
        """The flags, up to date. An interrupted call is repeated by the next one."""
        if self.ring.written != self.seen:
            self.rows._hold(False, self._take_in)
        return self.flags

    def _take_in(self) -> None:
        """Set the flags of new rows, while other threads that write wait."""
        written, capacity = self.ring.written, self.ring.capacity
        oldest = max(0, written - capacity)
        # Steps before the new rows lacked what follows.
        for start in range(max(oldest, self.seen - self.horizon), written, CHUNK):
            slots = np.arange(start, min(start + CHUNK, written)) % capacity
            _, counts, flags = self.ring.windows(slots, self.padding, self.horizon)
            has_future = IS_TERMINAL[flags] | (counts[:, 1] == self.horizon)
            self._set(slots, has_future & (counts[:, 0] == self.padding))
        if oldest:  # the oldest stacks have lost frames
            self._set(np.arange(oldest, oldest + self.padding) % capacity, False)
        self.seen = written

    def _set(self, slots: Slots, flags: NDArray[np.bool_] | bool) -> None:
        before, self.count = self.size(), None  # an interrupted call leaves no wrong count
        before -= int(np.count_nonzero(self.flags[slots]))
        self.flags[slots] = flags
        self.count = before + int(np.count_nonzero(self.flags[slots]))

    def size(self) -> int:
        """How many flags are set."""
        return int(np.count_nonzero(self.flags)) if self.count is None else self.count

    def draw(self, n: int) -> Slots:
        """Slots of valid rows, drawn as the sampler of the rows draws them."""
        sampler: Any = self.rows.sampler
        draw_valid = partial(sampler.draw_starts, self.valid, rng=self.rows.rng, replace=True)
        if not sampler.has_priorities:
            return draw_valid(n=n)[0]  # type: ignore[no-any-return]
        # Most such draws hit valid rows only, in half the time.
        slots: Slots = sampler.draw(self.ring, n, self.rows.rng, replace=True)[0]
        wrong = np.flatnonzero(~self.flags[slots])
        if len(wrong):
            slots[wrong] = draw_valid(n=len(wrong))[0]
        return slots

    # ------------------------------------------------------------------ reading

    def read(self, name: str, slots: Slots) -> Array:
        """A field at slots in two dimensions, shape ``(*slots.shape, *shape)``; zeros for -1."""
        found = self._columns[name]
        if slots.size * found.nbytes < CHECKED_NBYTES:
            dense = np.ascontiguousarray(slots)
            return take_stacks(self.ring, found, dense, 0)  # half the time of ``stack``
        return self.rows.stack(name, slots, axis=0)

    def column(self, name: str) -> Array:
        """A field at all slots."""
        slots = np.arange(self.ring.capacity, dtype=np.intp)
        return self.read(name, np.where(slots < self.ring.stored, slots, -1)[:, np.newaxis])[:, 0]

    def transitions(self, slots: Slots) -> tuple[Slots, Any]:
        """The oldest slots that are read, and the batch of the transitions from valid slots on."""
        window, counts, _ = self.ring.windows(slots, self.padding, self.horizon, repeat=False)
        is_short = counts[:, 1] < self.horizon  # so the last row is a terminal step
        steps = np.minimum(counts[:, 1] + 1, self.horizon)
        # Places in the flat window: of the first frame of each transition, and of a stack from it.
        firsts = np.arange(len(slots)) * window.shape[1]
        frames = np.arange(self.padding + 1)
        is_timeline = self.settings.return_as_timeline_format
        following = firsts + steps
        if is_timeline:
            is_within = np.arange(self.horizon) < steps[:, np.newaxis]
            following = (firsts[:, np.newaxis] + np.arange(1, self.horizon + 1))[is_within]
        picked = window.take(np.concatenate([firsts, following])[:, np.newaxis] + frames)
        picked[picked[:, -1] < 0] = -1  # behind the end of the episode
        batch: dict[str, Any] = {}
        for name, kind in self.elements.items():
            if name == "terminal":
                continue
            out = "state" if name == "observation" else name
            values = self.read(name, picked)
            now, later = values[: len(slots)], values[len(slots) :]
            batch[out] = kind.output(now)
            batch[f"next_{out}"] = (
                kind.output_lists(later, steps) if is_timeline else kind.output(later)
            )
        if is_timeline:
            rewards = self.read("reward", window.take((following - 1)[:, np.newaxis] + frames))
            batch["reward"] = self.elements["reward"].output_lists(rewards, steps)
        elif not self.settings.return_everything_as_stack:
            # Rows behind the last step have rewards of 0.
            rewards = self.read("reward", window[:, self.padding : -1]).astype(np.float64)
            factors = self.settings.gamma ** np.arange(float(self.horizon))
            total = np.moveaxis(rewards, 1, -1) @ factors if rewards.ndim > 2 else rewards @ factors
            batch["reward"] = column(total.astype(np.float32))
        batch["terminal"] = column(is_short)
        batch["indices"] = column(slots.astype(np.int64))
        batch["step"] = column(steps)
        if self.rows.has_priorities:  # ReAgent's name for them
            sampler: Any = self.rows.sampler
            priorities = sampler.rows.get(slots)
            batch["sampling_probabilities"] = column(priorities.astype(np.float32))
        return window.take(firsts), self._batch_type(**batch)


def transition_names(elements: Iterable[str], has_priorities: bool) -> tuple[str, ...]:
    """The names of what a batch consists of, for a buffer of these fields."""
    extras = [name for name in elements if name not in REQUIRED_KEYS]
    return (
        *("state", "action", "reward", "next_state", "next_action", "next_reward"),
        *("terminal", "indices", "step"),
        *(f"{prefix}{name}" for name in extras for prefix in ("", "next_")),
        *(["sampling_probabilities"] if has_priorities else []),
    )


def _batch_type(names: tuple[str, ...]) -> Any:
    try:
        return namedtuple("batch_type", names)  # noqa: PYI024 (the names are known when it runs)
    except ValueError as error:
        raise InputError(f"names of fields: {error}, in {list(names)}") from None
