"""Arguments of the constructors: fields that the first step shows, or fields that are declared.

ReAgent had the second kind until July 2020. Not here: the buffers that are made of them
(``_buffer``).
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from cpprb_like._arguments.checks import as_int
from cpprb_like.compat.reagent._elements import DenseMetadata, InputError

LEAST = {"stack_size": 1, "replay_capacity": 1, "batch_size": 0, "update_horizon": 1}


@dataclass
class Settings:
    """Parameters of the buffers, checked."""

    stack_size: int = 1
    replay_capacity: int = 10000
    batch_size: int = 1
    return_everything_as_stack: bool | None = False
    return_as_timeline_format: bool | None = False
    update_horizon: int = 1
    gamma: float = 0.99
    is_declared: bool = False  # whether the fields were, before the first step

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            setattr(self, name, as_int(name, getattr(self, name), least))
        gamma: Any = self.gamma
        if not isinstance(gamma, numbers.Real) or not math.isfinite(gamma):
            raise InputError(f"gamma: expected a finite number, got {gamma!r}")
        self.gamma = float(gamma)
        if self.replay_capacity < self.update_horizon + self.stack_size:
            raise InputError(
                "There is not enough capacity to cover update_horizon and stack_size: expected at "
                f"least {self.update_horizon} + {self.stack_size}, got {self.replay_capacity}"
            )


def declared(
    observation_shape: tuple[int, ...],
    extra_storage_types: Iterable[tuple[str, tuple[int, ...], DTypeLike]] | None = None,
    observation_dtype: DTypeLike = np.uint8,
    action_shape: tuple[int, ...] = (),
    action_dtype: DTypeLike = np.int32,
    reward_shape: tuple[int, ...] = (),
    reward_dtype: DTypeLike = np.float32,
    terminal_dtype: DTypeLike = np.uint8,
    **sizes: Any,
) -> tuple[dict[str, DenseMetadata], dict[str, Any]]:
    """The fields that are declared, and the parameters that declare none."""
    elements: dict[str, DenseMetadata] = {}
    for name, shape, dtype in [
        ("observation", observation_shape, observation_dtype),
        ("action", action_shape, action_dtype),
        ("reward", reward_shape, reward_dtype),
        ("terminal", (), terminal_dtype),
        *(extra_storage_types or ()),
    ]:
        if name in elements:
            raise InputError(f"extra_storage_types: the field {name} is declared twice")
        if not isinstance(shape, tuple):
            raise InputError(f"{name}: expected a tuple as its shape, got {shape!r}")
        lengths = tuple(as_int(f"{name}: shape", length) for length in shape)
        elements[name] = DenseMetadata(lengths, np.dtype(dtype).newbyteorder("="))
    return elements, sizes
