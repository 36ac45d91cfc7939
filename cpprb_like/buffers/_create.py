"""``create_buffer``: the class of buffer that fits the options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

from cpprb_like.buffers._prioritized import PrioritizedReplayBuffer
from cpprb_like.buffers._replay import ReplayBuffer
from cpprb_like.typing import FieldSpec, PrioritizedOptions, SamplerOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["create_buffer"]


@overload
def create_buffer(
    size: float,
    env_dict: Mapping[str, FieldSpec],
    *,
    prioritized: Literal[False] = False,
    **options: Unpack[SamplerOptions],
) -> ReplayBuffer: ...


@overload
def create_buffer(
    size: float,
    env_dict: Mapping[str, FieldSpec],
    *,
    prioritized: Literal[True],
    **options: Unpack[PrioritizedOptions],
) -> PrioritizedReplayBuffer: ...


@overload
def create_buffer(
    size: float,
    env_dict: Mapping[str, FieldSpec],
    *,
    prioritized: bool,
    **options: Unpack[PrioritizedOptions],
) -> ReplayBuffer: ...


def create_buffer(
    size: float, env_dict: Mapping[str, FieldSpec], *, prioritized: bool = False, **options: Any
) -> ReplayBuffer:
    """The buffer class that fits the options.

    Parameters
    ----------
    size, env_dict, **options
        As for the class.
    prioritized : bool
        A ``PrioritizedReplayBuffer``, or a ``ReplayBuffer``.

    Returns
    -------
    ReplayBuffer

    Raises
    ------
    TypeError, ValueError, MemoryError
        As the class.

    Examples
    --------
    >>> from cpprb_like import create_buffer
    >>> len(create_buffer(100, {"obs": {"shape": 4}}))
    0
    """
    if prioritized:
        return PrioritizedReplayBuffer(size, env_dict, **options)
    return ReplayBuffer(size, env_dict, **options)
