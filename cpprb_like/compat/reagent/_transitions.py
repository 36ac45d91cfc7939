"""Batches of transitions, put together of the rows of a buffer.

Not here: which rows they are made of (``_windows``), and which transitions are drawn (``_draws``).
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like.compat.reagent._elements import REQUIRED_KEYS, ElementMetadata, column
from cpprb_like.compat.reagent._errors import InputError
from cpprb_like.compat.reagent._settings import Settings
from cpprb_like.compat.reagent._store import Store
from cpprb_like.compat.reagent._windows import Windows, stacks

__all__ = ["batch_type", "read_transitions", "transition_names"]

Array = NDArray[Any]
Slots = NDArray[np.intp]
Read = Callable[[Store, str, Slots], Array]


def transition_names(elements: Iterable[str]) -> list[str]:
    """The names of what a batch consists of, for a buffer of these fields."""
    extras = [name for name in elements if name not in REQUIRED_KEYS]
    return [
        *("state", "action", "reward", "next_state", "next_action", "next_reward"),
        *("terminal", "indices", "step"),
        *(f"{prefix}{name}" for name in extras for prefix in ("", "next_")),
    ]


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
    windows = Windows.of(rows, slots, settings.update_horizon)
    batch = _pairs(settings, rows, windows, elements, read)
    return batch | {
        "reward": _rewards(settings, rows, windows, batch.get("reward")),
        "terminal": column(windows.terminal),
        "indices": column(slots.astype(np.int64)),
        "step": column(windows.steps),
    }


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
        slots = stacks(rows, windows.first, depth)
        line = stacks(rows, windows.timeline(rows, ahead=True), depth)
    else:
        slots = stacks(rows, np.concatenate([windows.first, windows.next]), depth)
    pairs = {}
    for name, kind in elements.items():
        if name != "terminal":
            out = "state" if name == "observation" else name
            values = read(rows, name, slots)
            if out != "reward" or line is not None or settings.return_everything_as_stack:
                pairs[out] = kind.output(values[:n])  # else it is a sum
            pairs[f"next_{out}"] = (
                kind.output(values[n:])
                if line is None
                else kind.output_lists(read(rows, name, line), windows.steps)
            )
    return pairs


def _rewards(settings: Settings, rows: Store, windows: Windows, stacked: Any) -> Any:
    """The rewards of the transitions; ``stacked`` are those at the first steps."""
    if settings.return_as_timeline_format:
        line = stacks(rows, windows.timeline(rows, ahead=False), settings.stack_size)
        return rows.elements["reward"].output_lists(rows.read("reward", line), windows.steps)
    if settings.return_everything_as_stack:
        return stacked
    rewards = rows.read("reward", windows.inside).astype(np.float64)
    powers = _powers(settings.gamma, settings.update_horizon)
    return column(np.einsum("nh...,h->n...", rewards, powers).astype(np.float32))


@lru_cache(maxsize=8)
def _powers(gamma: float, horizon: int) -> NDArray[np.float64]:
    """What the rewards of the steps count."""
    return np.asarray(gamma ** np.arange(float(horizon)))
