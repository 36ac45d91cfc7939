"""Experience replay for reinforcement learning: store steps once, derive the rest when drawn."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from cpprb_like._c.cores import get_num_threads, set_num_threads
from cpprb_like.buffers import PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like.errors import NotEnoughDataError

if TYPE_CHECKING:
    from cpprb_like.buffers import Mixture, ReplayMemory, ReverseReplayBuffer, create_buffer
    from cpprb_like.compat.cpprb import (
        HindsightReplayBuffer,
        MPPrioritizedReplayBuffer,
        MPReplayBuffer,
        SelectiveReplayBuffer,
        train,
    )
    from cpprb_like.integrations.gymnasium import (
        GymnasiumRecorder,
        create_before_add_func,
        create_env_dict,
    )
    from cpprb_like.samplers import LaBERlazy, LaBERmax, LaBERmean
    from cpprb_like.views import FrameStacks, Hindsight, NStep, Sequences, sequence_priorities

__all__ = [
    "FrameStacks",
    "GymnasiumRecorder",
    "Hindsight",
    "HindsightReplayBuffer",
    "LaBERlazy",
    "LaBERmax",
    "LaBERmean",
    "MPPrioritizedReplayBuffer",
    "MPReplayBuffer",
    "Mixture",
    "NStep",
    "NotEnoughDataError",
    "PrioritizedReplayBuffer",
    "ReplayBuffer",
    "ReplayMemory",
    "ReverseReplayBuffer",
    "SelectiveReplayBuffer",
    "Sequences",
    "create_before_add_func",
    "create_buffer",
    "create_env_dict",
    "get_num_threads",
    "sequence_priorities",
    "set_num_threads",
    "train",
]
__version__ = "0.1.0"


# Names that are imported when they are asked for: what few programs need, and the outer rooms.
_LATER = {
    "FrameStacks": "views",
    "GymnasiumRecorder": "integrations.gymnasium",
    "Hindsight": "views",
    "HindsightReplayBuffer": "compat.cpprb",
    "LaBERlazy": "samplers",
    "LaBERmax": "samplers",
    "LaBERmean": "samplers",
    "MPPrioritizedReplayBuffer": "compat.cpprb",
    "MPReplayBuffer": "compat.cpprb",
    "Mixture": "buffers",
    "NStep": "views",
    "ReplayMemory": "buffers",
    "ReverseReplayBuffer": "buffers",
    "SelectiveReplayBuffer": "compat.cpprb",
    "Sequences": "views",
    "create_before_add_func": "integrations.gymnasium",
    "create_buffer": "buffers",
    "create_env_dict": "integrations.gymnasium",
    "sequence_priorities": "views",
    "train": "compat.cpprb",
}
_OF_GYMNASIUM = "integrations.gymnasium"

if find_spec("gymnasium") is None:  # a star import asks for each of these names
    __all__[:] = [name for name in __all__ if _LATER.get(name) != _OF_GYMNASIUM]


def __getattr__(name: str) -> Any:
    """Import a name when it is asked for."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    except ImportError as error:
        if _LATER[name] != _OF_GYMNASIUM:
            raise
        # No AttributeError: ``from cpprb_like import name`` would drop its message.
        raise ImportError(
            f"{name} needs gymnasium 1.1 or newer (pip install 'cpprb_like[gymnasium]'): {error}"
        ) from error
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """The public names, those that are imported later too."""
    return sorted([*__all__, "__version__"])
