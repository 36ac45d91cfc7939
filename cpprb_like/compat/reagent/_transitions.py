"""Batches of transitions, put together of the rows of a buffer.

Not here: which rows they are made of (``_windows``), and which transitions are drawn (``_draws``).
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like.compat.reagent._elements import REQUIRED_KEYS, ElementMetadata, column
from cpprb_like.compat.reagent._errors import InputError, need
from cpprb_like.compat.reagent._settings import Settings
from cpprb_like.compat.reagent._store import Read, Store
from cpprb_like.compat.reagent._windows import Windows, stacks

__all__ = ["batch_type", "read_transitions", "transition_names"]

Array = NDArray[Any]
Slots = NDArray[np.intp]


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
    rows: Store,
    slots: Slots,
    elements: Mapping[str, ElementMetadata],
    read: Read,
) -> dict[str, Any]:
    """The transitions from these slots on.

    ``elements`` are the fields that are given out, and ``read`` reads one of them.
    """
    windows = Windows.of(rows, read, slots, settings.update_horizon)
    batch = _pairs(settings, rows, windows, elements, read)
    batch["reward"] = _rewards(settings, rows, windows, read, batch.get("reward"))
    tensor = need("torch").from_numpy
    batch["terminal"] = tensor(windows.terminal[:, np.newaxis])
    batch["indices"] = tensor(slots.astype(np.int64)[:, np.newaxis])
    batch["step"] = tensor(windows.steps[:, np.newaxis])
    return batch


def _pairs(
    settings: Settings,
    rows: Store,
    windows: Windows,
    elements: Mapping[str, ElementMetadata],
    read: Read,
) -> dict[str, Any]:
    """The fields at the first steps and, as ``next_``, behind the last ones."""
    depth, n = settings.stack_size, len(windows.first)
    line = None
    if settings.return_as_timeline_format:
        line = stacks(rows, windows.timeline(rows, ahead=True), depth)
        slots = stacks(rows, windows.first, depth)
    else:
        slots = stacks(rows, np.concatenate([windows.first, windows.next]), depth)
    pairs = {}
    for name, kind in elements.items():
        if name == "terminal":
            continue
        out = "state" if name == "observation" else name
        if line is not None:
            pairs[out] = kind.output(read(name, slots))
            pairs[f"next_{out}"] = kind.output_lists(read(name, line), windows.steps)
        elif name == "reward" and not settings.return_everything_as_stack:  # it is a sum
            pairs["next_reward"] = kind.output(read(name, slots[n:]))
        else:
            pairs[out], pairs[f"next_{out}"] = kind.output_parts(read(name, slots), n)
    return pairs


def _rewards(settings: Settings, rows: Store, windows: Windows, read: Read, stacked: Any) -> Any:
    """The rewards of the transitions; ``stacked`` are those at the first steps."""
    if settings.return_as_timeline_format:
        line = stacks(rows, windows.timeline(rows, ahead=False), settings.stack_size)
        return rows.elements["reward"].output_lists(read("reward", line), windows.steps)
    if settings.return_everything_as_stack:
        return stacked
    rewards = read("reward", windows.inside).astype(np.float64)
    powers = _powers(settings.gamma, settings.update_horizon)
    total = rewards @ powers if rewards.ndim == 2 else np.einsum("nh...,h->n...", rewards, powers)
    return column(total.astype(np.float32))


@lru_cache(maxsize=8)
def _powers(gamma: float, horizon: int) -> NDArray[np.float64]:
    """What the rewards of the steps count."""
    return np.asarray(gamma ** np.arange(float(horizon)))
