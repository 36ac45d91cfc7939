"""Experience replay for reinforcement learning: store steps once, derive the rest when drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cpprb_like.buffers import ReplayBuffer
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.hindsight import Hindsight
from cpprb_like.hindsight_copies import HindsightReplayBuffer
from cpprb_like.laber import LaBERlazy, LaBERmax, LaBERmean
from cpprb_like.mixture import Mixture
from cpprb_like.recipes import PrioritizedReplayBuffer, ReverseReplayBuffer, create_buffer
from cpprb_like.replay_memory import ReplayMemory
from cpprb_like.selective import SelectiveReplayBuffer
from cpprb_like.training import train

if TYPE_CHECKING:
    from cpprb_like.integrations.gymnasium import (
        GymnasiumRecorder,
        create_before_add_func,
        create_env_dict,
    )

__all__ = [
    "GymnasiumRecorder",
    "Hindsight",
    "HindsightReplayBuffer",
    "LaBERlazy",
    "LaBERmax",
    "LaBERmean",
    "Mixture",
    "NotEnoughDataError",
    "PrioritizedReplayBuffer",
    "ReplayBuffer",
    "ReplayMemory",
    "ReverseReplayBuffer",
    "SelectiveReplayBuffer",
    "create_before_add_func",
    "create_buffer",
    "create_env_dict",
    "train",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import the names that need Gymnasium when they are asked for."""
    if name not in ("GymnasiumRecorder", "create_before_add_func", "create_env_dict"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from cpprb_like.integrations import gymnasium  # noqa: PLC0415 (an optional package)
    except ImportError as error:
        raise AttributeError(f"{name} needs the package gymnasium: {error}") from error
    return getattr(gymnasium, name)
