"""Arguments of the constructors, with declared fields or with fields of the first step.

ReAgent had declared fields until July 2020. Not here: the buffers (``_buffer``).
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from cpprb_like._arguments.checks import as_int
from cpprb_like.compat.reagent._elements import (
    ElementMetadata,
    InputError,
    ReplayElement,
    read_signature,
)

LEAST = {"stack_size": 1, "replay_capacity": 1, "batch_size": 0, "update_horizon": 1}
FLAGS = ("return_everything_as_stack", "return_as_timeline_format")
BY_NAME = "pass update_horizon and gamma by name"


@dataclass
class Settings:
    """Checked parameters of ``ReplayBuffer``."""

    stack_size: int = 1
    replay_capacity: int = 10000
    batch_size: int = 1
    return_everything_as_stack: bool | None = False
    return_as_timeline_format: bool | None = False
    update_horizon: int = 1
    gamma: float = 0.99
    is_declared: bool = field(default=False, kw_only=True)  # whether fields are declared

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            setattr(self, name, as_int(name, getattr(self, name), least))
        gamma: Any = self.gamma
        if not isinstance(gamma, numbers.Real) or not math.isfinite(gamma):
            raise InputError(f"gamma: expected a finite number, got {gamma!r}")
        self.gamma = float(gamma)
        for name in FLAGS:
            flag = getattr(self, name)
            # A number is another argument: ReAgent's flags were not there before May 2020.
            if not isinstance(flag, (bool, np.bool_, NoneType)):
                raise InputError(f"{name}: expected a bool, got {flag!r}; {BY_NAME}")
            setattr(self, name, bool(flag))
        if self.replay_capacity < self.update_horizon + self.stack_size:
            raise InputError(
                "There is not enough capacity to cover update_horizon and stack_size: expected at "
                f"least {self.update_horizon} + {self.stack_size}, got {self.replay_capacity}"
            )


Declared = tuple[Settings, dict[str, ElementMetadata]]  # parameters and declared fields


def prioritized(
    stack_size: int,
    replay_capacity: int,
    batch_size: int,
    update_horizon: int = 1,
    gamma: float = 0.99,
    max_sample_attempts: int = 1000,  # noqa: ARG001 (no draw is rejected)
    **flags: bool | None,
) -> Settings:
    """Parameters of ``PrioritizedReplayBuffer``, in its order."""
    sizes = stack_size, replay_capacity, batch_size
    return Settings(*sizes, update_horizon=update_horizon, gamma=gamma, **flags)  # type: ignore[arg-type]


def declared(
    observation_shape: tuple[int, ...],
    stack_size: int,
    replay_capacity: int,
    batch_size: int,
    return_everything_as_stack: bool | None = False,
    return_as_timeline_format: bool | None = False,
    update_horizon: int = 1,
    gamma: float = 0.99,
    max_sample_attempts: int = 1000,  # noqa: ARG001 (no draw is rejected)
    extra_storage_types: Iterable[tuple[str, Any, DTypeLike]] | None = None,
    observation_dtype: DTypeLike = np.uint8,
    action_shape: tuple[int, ...] = (),
    action_dtype: DTypeLike = np.int32,
    reward_shape: tuple[int, ...] = (),
    reward_dtype: DTypeLike = np.float32,
    terminal_dtype: DTypeLike = np.uint8,
) -> Declared:
    """Parameters of ``ReplayBuffer`` until July 2020, in its order, and the declared fields."""
    settings = Settings(
        stack_size,
        replay_capacity,
        batch_size,
        return_everything_as_stack,
        return_as_timeline_format,
        update_horizon,
        gamma,
        is_declared=True,
    )
    signature = [
        ("observation", observation_shape, observation_dtype),
        ("action", action_shape, action_dtype),
        ("reward", reward_shape, reward_dtype),
        ("terminal", (), terminal_dtype),
    ]
    for name, shape, dtype in extra_storage_types or ():  # of these, ReAgent takes lists as shapes
        signature.append((name, tuple(shape) if isinstance(shape, list) else shape, dtype))
    return settings, read_signature(signature)


def declared_prioritized(
    observation_shape: tuple[int, ...],
    stack_size: int,
    replay_capacity: int,
    batch_size: int,
    update_horizon: int = 1,
    gamma: float = 0.99,
    max_sample_attempts: int = 1000,
    extra_storage_types: Iterable[tuple[str, Any, DTypeLike]] | None = None,
    observation_dtype: DTypeLike = np.uint8,
    terminal_dtype: DTypeLike = np.uint8,
    action_shape: tuple[int, ...] = (),
    action_dtype: DTypeLike = np.int32,
    reward_shape: tuple[int, ...] = (),
    reward_dtype: DTypeLike = np.float32,
    **flags: bool | None,
) -> Declared:
    """As ``declared``, in the order of ``PrioritizedReplayBuffer``."""
    return declared(
        observation_shape,
        stack_size,
        replay_capacity,
        batch_size,
        update_horizon=update_horizon,
        gamma=gamma,
        max_sample_attempts=max_sample_attempts,
        extra_storage_types=extra_storage_types,
        observation_dtype=observation_dtype,
        terminal_dtype=terminal_dtype,
        action_shape=action_shape,
        action_dtype=action_dtype,
        reward_shape=reward_shape,
        reward_dtype=reward_dtype,
        **flags,
    )


# ---------------------------------------------------------------------- fields of an environment


def declare_spaces(env: Any, *, store_log_prob: bool) -> dict[str, Any]:
    """The arguments of ``declared`` for the spaces of an environment of gym or Gymnasium.

    Spaces are recognized by the names of their classes. Raises ``NotImplementedError`` for spaces
    that ReAgent has no fields for.
    """
    space, action = env.observation_space, env.action_space
    extras: list[ReplayElement] = []
    if _is(space, "Dict") and {"user", "doc", "response"} <= set(space.spaces):  # RecSim
        extras = list(_recommendation_fields(space.spaces))
        space = space.spaces["user"]
    if not _is(space, "Box"):
        raise NotImplementedError(f"observation_space: expected a Box, got {space}")
    if not _is(action, "Box", "MultiDiscrete", "Discrete"):
        raise NotImplementedError(
            f"action_space: expected a Box, MultiDiscrete or Discrete, got {action}"
        )
    extras += [ReplayElement(name, (), np.int64) for name in ("mdp_id", "sequence_number")]
    if store_log_prob:
        extras.append(ReplayElement("log_prob", (), np.float32))
    return {
        "observation_shape": tuple(space.shape),
        "observation_dtype": space.dtype,
        "action_shape": () if _is(action, "Discrete") else tuple(action.shape),
        "action_dtype": action.dtype,
        "extra_storage_types": extras,
    }


def _is(space: Any, *names: str) -> bool:
    return any(base.__name__ in names for base in type(space).__mro__)


def _recommendation_fields(spaces: Mapping[str, Any]) -> Iterator[ReplayElement]:
    """Yield fields of RecSim's documents and responses. Their first axis counts the documents."""
    for name, kind in (("doc", "Dict"), ("augmentation", "Dict"), ("response", "Tuple")):
        if name not in spaces:
            continue
        if not _is(spaces[name], kind) or not len(spaces[name].spaces):
            raise NotImplementedError(f"{name}: expected a {kind} of spaces, got {spaces[name]}")
        found = spaces[name].spaces
        parts = list(found.values() if kind == "Dict" else found)
        first = parts[0]  # ReAgent assumes that all are alike
        named = {name: first}
        if _is(first, "Dict"):
            named = {f"{name}_{key}": part for key, part in first.spaces.items()}
        for field_name, part in named.items():
            if not _is(part, "Box") and (part is first or not _is(part, "Discrete")):
                raise NotImplementedError(f"{field_name}: expected a Box or Discrete, got {part}")
            yield ReplayElement(field_name, (len(parts), *(part.shape or ())), part.dtype)
