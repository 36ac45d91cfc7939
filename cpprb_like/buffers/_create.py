"""``create_buffer``: the class of buffer that fits the options."""

from __future__ import annotations

from typing import Any

from cpprb_like.buffers._prioritized import PrioritizedReplayBuffer
from cpprb_like.buffers._replay import ReplayBuffer

__all__ = ["create_buffer"]


def create_buffer(
    size: float, env_dict: object, *, prioritized: bool = False, **options: Any
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
