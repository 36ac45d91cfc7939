"""Experience replay for reinforcement learning: store steps once, derive the rest when drawn."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from cpprb_like.buffers import ReplayBuffer
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.recipes import PrioritizedReplayBuffer, ReverseReplayBuffer, create_buffer

if TYPE_CHECKING:
    from cpprb_like.hindsight import Hindsight
    from cpprb_like.hindsight_copies import HindsightReplayBuffer
    from cpprb_like.integrations.gymnasium import (
        GymnasiumRecorder,
        create_before_add_func,
        create_env_dict,
    )
    from cpprb_like.laber import LaBERlazy, LaBERmax, LaBERmean
    from cpprb_like.mixture import Mixture
    from cpprb_like.processes import MPPrioritizedReplayBuffer, MPReplayBuffer
    from cpprb_like.replay_memory import ReplayMemory
    from cpprb_like.selective import SelectiveReplayBuffer
    from cpprb_like.training import train

__all__ = [
    "GymnasiumRecorder",
    "Hindsight",
    "HindsightReplayBuffer",
    "LaBERlazy",
    "LaBERmax",
    "LaBERmean",
    "MPPrioritizedReplayBuffer",
    "MPReplayBuffer",
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


# Names that few programs ask for, and their modules, which are imported only then: so importing the
# package takes a fifth less.
_LATER = {
    "GymnasiumRecorder": "integrations.gymnasium",
    "Hindsight": "hindsight",
    "HindsightReplayBuffer": "hindsight_copies",
    "LaBERlazy": "laber",
    "LaBERmax": "laber",
    "LaBERmean": "laber",
    "MPPrioritizedReplayBuffer": "processes",
    "MPReplayBuffer": "processes",
    "Mixture": "mixture",
    "ReplayMemory": "replay_memory",
    "SelectiveReplayBuffer": "selective",
    "create_before_add_func": "integrations.gymnasium",
    "create_env_dict": "integrations.gymnasium",
    "train": "training",
}
_OF_GYMNASIUM = "integrations.gymnasium"

if find_spec("gymnasium") is None:  # a star import asks for each of these names
    __all__[:] = [name for name in __all__ if _LATER.get(name) != _OF_GYMNASIUM]


def __getattr__(name: str) -> Any:
    """Import a name when it is asked for, or the module of one."""
    if name in _LATER.values():
        return import_module(f"{__name__}.{name}")
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    except ImportError as error:
        if _LATER[name] != _OF_GYMNASIUM:
            raise
        # No AttributeError: ``from cpprb_like import name`` would drop its message.
        raise ImportError(
            f"{name} needs the package gymnasium (pip install 'cpprb_like[gymnasium]'): {error}"
        ) from error
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """The public names, those that are imported later too."""
    return sorted([*__all__, "__version__"])
