"""Batches of transitions, put together of the rows of a buffer.

Not here: which rows they are made of (``_rows``), and which transitions are drawn (``_valid``).
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Array, Slots
from cpprb_like.compat.reagent._elements import REQUIRED_KEYS, ElementMetadata, column
from cpprb_like.compat.reagent._errors import InputError
from cpprb_like.compat.reagent._rows import Rows, Windows
from cpprb_like.compat.reagent._settings import Settings

__all__ = ["batch_type", "read_transitions", "transition_names"]

Read = Callable[[str, Slots], Array]


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


def read_transitions(
    settings: Settings,
    rows: Rows,
    slots: Slots,
    elements: Mapping[str, ElementMetadata],
    read: Read,
) -> dict[str, Any]:
    """The transitions from these slots on.

    ``elements`` are the fields that are given out, and ``read`` reads one of them.
    """
    windows = Windows.of(rows, slots)
    is_timeline, n = settings.return_as_timeline_format, len(slots)
    ahead = windows.line(ahead=True) if is_timeline else windows.next
    stacks = rows.stacks(np.concatenate([slots, ahead]))
    batch: dict[str, Any] = {}
    for name, kind in elements.items():
        if name == "terminal":
            continue
        out = "state" if name == "observation" else name
        values = read(name, stacks)
        batch[out], later = kind.output(values[:n]), values[n:]
        batch[f"next_{out}"] = (
            kind.output_lists(later, windows.steps) if is_timeline else kind.output(later)
        )
    if is_timeline:
        line = rows.stacks(windows.line(ahead=False))
        batch["reward"] = elements["reward"].output_lists(read("reward", line), windows.steps)
    elif not settings.return_everything_as_stack:
        # Rows behind the last step, and final observations, have rewards of 0.
        rewards = read("reward", windows.slots)[:, :-1].astype(np.float64)
        factors = _factors(settings.gamma, settings.update_horizon)
        total = rewards @ factors if rewards.ndim == 2 else np.tensordot(factors, rewards, (0, 1))
        batch["reward"] = column(total.astype(np.float32))
    batch["terminal"] = column(windows.terminal)
    batch["indices"] = column(slots.astype(np.int64))
    batch["step"] = column(windows.steps)
    return batch


@lru_cache(maxsize=8)
def _factors(gamma: float, horizon: int) -> NDArray[np.float64]:
    """Discount factors of the rewards of a transition."""
    return np.asarray(gamma ** np.arange(float(horizon)))
