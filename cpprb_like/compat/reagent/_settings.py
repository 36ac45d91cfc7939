"""Arguments of the constructors: fields that the first step shows, or fields that are declared.

ReAgent had the second kind until July 2020; which one a call means is seen from
``observation_shape``. Not here: what is done with it (``_buffer``).
"""

from __future__ import annotations

import inspect
import math
import numbers
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from cpprb_like._arguments.checks import as_int
from cpprb_like.compat.reagent._elements import (
    DenseMetadata,
    ElementMetadata,
    InputError,
    ReplayElement,
)

__all__ = ["Settings", "declare_spaces", "read_settings"]


@dataclass(frozen=True)
class Settings:
    """Parameters of a buffer, checked; fields are declared, or the first step shows them."""

    stack_size: int
    replay_capacity: int
    batch_size: int
    return_everything_as_stack: bool
    return_as_timeline_format: bool
    update_horizon: int
    gamma: float
    strict: bool = False
    is_declared: bool = False


def read_settings(
    inferred: Callable[..., Settings], args: tuple[Any, ...], options: Mapping[str, Any]
) -> tuple[Settings, dict[str, ElementMetadata] | None]:
    """The settings that these arguments of a constructor mean, and the fields if it declares them.

    ``inferred`` has the parameters for fields that are inferred, ``declared`` those for the others.
    """
    is_declared = "observation_shape" in options or (args and not hasattr(args[0], "__index__"))
    signature = inspect.signature(declared if is_declared else inferred)
    try:
        bound = signature.bind(*args, **options)
    except TypeError as error:
        raise TypeError(f"{error}; expected {signature}") from None
    if is_declared:
        return declared(*bound.args, **bound.kwargs)
    return inferred(*bound.args, **bound.kwargs), None


def uniform(
    stack_size: int = 1,
    replay_capacity: int = 10000,
    batch_size: int = 1,
    return_everything_as_stack: bool | None = False,
    return_as_timeline_format: bool | None = False,
    update_horizon: int = 1,
    gamma: float = 0.99,
    *,
    strict: bool = False,
) -> Settings:
    """Parameters of ``ReplayBuffer``."""
    if not _is_finite(gamma):
        raise InputError(f"gamma: expected a finite number, got {gamma!r}")
    settings = Settings(
        stack_size=as_int("stack_size", stack_size, 1),
        replay_capacity=as_int("replay_capacity", replay_capacity, 1),
        batch_size=as_int("batch_size", batch_size, 0),
        return_everything_as_stack=bool(return_everything_as_stack),
        return_as_timeline_format=bool(return_as_timeline_format),
        update_horizon=as_int("update_horizon", update_horizon, 1),
        gamma=float(gamma),
        strict=bool(strict),
    )
    if settings.replay_capacity < settings.update_horizon + settings.stack_size:
        raise InputError(
            "There is not enough capacity to cover update_horizon and stack_size: expected at "
            f"least {update_horizon} + {stack_size}, got {replay_capacity}"
        )
    if settings.return_as_timeline_format and settings.update_horizon == 1:
        warnings.warn(
            "return_as_timeline_format: with update_horizon=1 all lists have one item",
            stacklevel=4,
        )
    return settings


def _is_finite(number: object) -> bool:
    return isinstance(number, numbers.Real) and math.isfinite(number)


def prioritized(
    stack_size: int,
    replay_capacity: int,
    batch_size: int,
    update_horizon: int = 1,
    gamma: float = 0.99,
    max_sample_attempts: int = 1000,
    *,
    return_everything_as_stack: bool | None = False,
    return_as_timeline_format: bool | None = False,
    strict: bool = False,
) -> Settings:
    """Parameters of ``PrioritizedReplayBuffer``; without rejection there are no attempts."""
    del max_sample_attempts
    return uniform(
        stack_size,
        replay_capacity,
        batch_size,
        return_everything_as_stack,
        return_as_timeline_format,
        update_horizon,
        gamma,
        strict=strict,
    )


def declared(
    observation_shape: tuple[int, ...],
    stack_size: int,
    replay_capacity: int,
    batch_size: int,
    return_everything_as_stack: bool | None = False,
    return_as_timeline_format: bool | None = False,
    update_horizon: int = 1,
    gamma: float = 0.99,
    max_sample_attempts: int = 1000,
    extra_storage_types: Iterable[tuple[str, tuple[int, ...], DTypeLike]] | None = None,
    observation_dtype: DTypeLike = np.uint8,
    action_shape: tuple[int, ...] = (),
    action_dtype: DTypeLike = np.int32,
    reward_shape: tuple[int, ...] = (),
    reward_dtype: DTypeLike = np.float32,
    terminal_dtype: DTypeLike = np.uint8,
) -> tuple[Settings, dict[str, ElementMetadata]]:
    """Parameters of both classes until July 2020; without rejection there are no attempts."""
    del max_sample_attempts
    if not isinstance(observation_shape, tuple):
        raise InputError(f"observation_shape: expected a tuple, got {observation_shape!r}")
    plain = uniform(
        stack_size,
        replay_capacity,
        batch_size,
        return_everything_as_stack,
        return_as_timeline_format,
        update_horizon,
        gamma,
    )
    fields = [
        ("observation", observation_shape, observation_dtype),
        ("action", action_shape, action_dtype),
        ("reward", reward_shape, reward_dtype),
        ("terminal", (), terminal_dtype),
        *(extra_storage_types or ()),
    ]
    elements: dict[str, ElementMetadata] = {}
    for name, shape, dtype in fields:
        if name in elements:
            raise InputError(f"extra_storage_types: the field {name} is declared twice")
        elements[name] = _declaration(name, shape, dtype)
    return replace(plain, is_declared=True), elements


def _declaration(name: str, shape: tuple[int, ...], dtype: DTypeLike) -> DenseMetadata:
    if not isinstance(shape, (tuple, list)):
        raise InputError(f"{name}: expected a tuple as its shape, got {shape!r}")
    lengths = tuple(as_int(f"{name}: shape", length) for length in shape)
    return DenseMetadata(lengths, np.dtype(dtype).newbyteorder("="))


# ---------------------------------------------------------------------- fields of an environment


def declare_spaces(env: Any, *, store_log_prob: bool) -> dict[str, Any]:
    """The arguments of ``declared`` that follow from the spaces of an environment.

    Spaces are known by the names of their classes, so that those of gym and Gymnasium will do.

    Raises ``NotImplementedError`` for spaces that ReAgent has no fields for.
    """
    space = env.observation_space
    extras: list[ReplayElement] = []
    if _is(space, "Dict") and {"user", "doc", "response"} <= set(space.spaces):  # RecSim's
        extras = list(_recommendation_fields(space.spaces))
        space = space.spaces["user"]
    if not _is(space, "Box"):
        raise NotImplementedError(f"observation_space: expected a Box, got {space}")
    action = env.action_space
    if not _is(action, "Box", "MultiDiscrete", "Discrete"):
        raise NotImplementedError(
            f"action_space: expected a Box, MultiDiscrete or Discrete, got {action}"
        )
    extras += [
        ReplayElement("mdp_id", (), np.int64),
        ReplayElement("sequence_number", (), np.int64),
    ]
    if store_log_prob:
        extras.append(ReplayElement("log_prob", (), np.float32))
    return {
        "observation_shape": tuple(space.shape),
        "observation_dtype": space.dtype,
        "action_shape": () if _is(action, "Discrete") else tuple(action.shape),
        "action_dtype": action.dtype,
        "reward_shape": (),
        "reward_dtype": np.float32,
        "extra_storage_types": extras,
    }


def _is(space: Any, *names: str) -> bool:
    return any(base.__name__ in names for base in type(space).__mro__)


def _recommendation_fields(spaces: Mapping[str, Any]) -> Iterator[ReplayElement]:
    """The documents and the answers of a user, each with an axis for all of them."""
    documents = _parts("doc", spaces["doc"], "Dict")
    yield from _fields_of("doc", documents)
    if "augmentation" in spaces:
        yield from _fields_of(
            "augmentation", _parts("augmentation", spaces["augmentation"], "Dict")
        )
    yield from _fields_of("response", _parts("response", spaces["response"], "Tuple"))


def _parts(name: str, space: Any, kind: str) -> list[Any]:
    """The spaces of a Dict or Tuple, which ReAgent takes to be all alike."""
    if not _is(space, kind) or not len(space.spaces):
        raise NotImplementedError(f"{name}: expected a {kind} of spaces, got {space}")
    return list(space.spaces.values() if kind == "Dict" else space.spaces)


def _fields_of(name: str, parts: list[Any]) -> Iterator[ReplayElement]:
    first = parts[0]
    named = {name: first}
    if _is(first, "Dict"):
        named = {f"{name}_{key}": part for key, part in first.spaces.items()}
    for field, part in named.items():
        if not _is(part, "Box") and (part is first or not _is(part, "Discrete")):
            raise NotImplementedError(f"{field}: expected a Box or Discrete, got {part}")
        yield ReplayElement(field, (len(parts), *(part.shape or ())), part.dtype)
