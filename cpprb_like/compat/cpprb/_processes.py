"""cpprb's buffers that several processes share. They are not built: only their names are here.

So programs that import them, and make them in one of their modes only, run in the others.
"""

from __future__ import annotations

from typing import Any

from cpprb_like.buffers import PrioritizedReplayBuffer, ReplayBuffer

__all__ = ["MPPrioritizedReplayBuffer", "MPReplayBuffer"]

INSTEAD = (
    "a buffer that several processes share is not built yet. Hold a {} in one process: any number "
    "of its threads may add and sample, and other processes may send it their steps"
)


class MPReplayBuffer(ReplayBuffer):
    """cpprb's buffer that several processes share: not built yet.

    Parameters
    ----------
    *arguments, **options
        As cpprb's.

    Raises
    ------
    NotImplementedError
        Always.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        raise NotImplementedError(f"MPReplayBuffer: {INSTEAD.format('ReplayBuffer')}")


class MPPrioritizedReplayBuffer(PrioritizedReplayBuffer):
    """cpprb's buffer with priorities that several processes share: not built yet.

    Parameters
    ----------
    *arguments, **options
        As cpprb's.

    Raises
    ------
    NotImplementedError
        Always.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ARG002 (it takes all)
        instead = INSTEAD.format("PrioritizedReplayBuffer")
        raise NotImplementedError(f"MPPrioritizedReplayBuffer: {instead}")
