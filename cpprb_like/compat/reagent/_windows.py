"""Which rows a transition of several steps is made of."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cpprb_like.compat.reagent._errors import InputError
from cpprb_like.compat.reagent._store import END, FINAL_FOLLOWS, FLAGS, TERMINAL, Read, Store

__all__ = ["Windows", "invalid_range", "stacks"]

Slots = NDArray[np.intp]

GOES_ON = np.arange(16) & 1 == 0  # by the flags that a ring has
EVERY = np.arange(8)  # flags of a row
IS_END = (EVERY & END) != 0
IS_TERMINAL = (EVERY & TERMINAL) != 0
IS_OVER = IS_END & ((EVERY & FINAL_FOLLOWS) == 0)  # and no row of the episode follows


class Windows(NamedTuple):
    """The rows from drawn rows on, up to the end of the episode or for ``horizon`` steps.

    Attributes
    ----------
    first : ndarray of intp, shape (n,)
        Slots of the drawn rows.
    inside : ndarray of intp, shape (n, horizon)
        Slots of the steps; -1 behind the last of them.
    steps : ndarray of int64, shape (n,)
        How many there are.
    terminal : ndarray of bool, shape (n,)
        Whether the last of them is a terminal one.
    next : ndarray of intp, shape (n,)
        Slot of the row behind the last step; -1 if that is no row of the same episode.
    """

    first: Slots
    inside: Slots
    steps: NDArray[np.int64]
    terminal: NDArray[np.bool_]
    next: Slots

    @classmethod
    def of(cls, store: Store, read: Read, slots: Slots, horizon: int) -> Windows:
        """The windows of rows that are stored."""
        inside, counts, flags = store.rows.ring.windows(slots, 0, horizon - 1, repeat=False)
        following = counts[:, 1]
        steps = following + 1
        steps[GOES_ON.take(flags)] = horizon
        last = read(FLAGS, store.place(slots + following)[:, np.newaxis])[:, 0]
        behind = store.place(slots + steps)
        behind[IS_OVER.take(last)] = -1
        return cls(slots, inside, steps, IS_TERMINAL.take(last), behind)

    def timeline(self, store: Store, *, ahead: bool) -> Slots:
        """The steps of all windows one after the other, or, ``ahead``, the row behind each."""
        steps: NDArray[Any] = self.steps
        ends = np.cumsum(steps)
        within = np.arange(len(steps) and int(ends[-1])) - np.repeat(ends - steps, steps)
        slots = store.place(np.repeat(self.first, steps) + within + ahead)
        if ahead:
            slots[ends - 1] = self.next
        return slots


def stacks(store: Store, slots: Slots, depth: int) -> Slots:
    """The slots of the stacks that end at these slots, shape ``(n, depth)``; all -1 for -1."""
    if depth == 1:
        return slots[:, np.newaxis]
    stacked = store.place(slots[:, np.newaxis] + _back(depth))
    stacked[slots < 0] = -1
    return stacked


@lru_cache(maxsize=8)
def _back(depth: int) -> Slots:
    """From the newest frame of a stack to each of its frames."""
    return np.arange(1 - depth, 1)


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
