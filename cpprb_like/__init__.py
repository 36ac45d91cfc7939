"""Experience replay for reinforcement learning: store steps once, derive the rest when drawn."""

from importlib.util import find_spec

from cpprb_like._arguments.later import attach
from cpprb_like.buffers._prioritized import PrioritizedReplayBuffer as PrioritizedReplayBuffer
from cpprb_like.buffers._replay import ReplayBuffer as ReplayBuffer

__version__ = "0.1.0"


def _hidden() -> list[str]:
    """What can be imported and is not listed.

    These are the names that only programs written for cpprb need, and those of a package that is
    not installed: a star import takes each name that is listed.
    """
    of_cpprb = ["cpprb_like.compat.cpprb", "create_before_add_func"]
    return of_cpprb if find_spec("gymnasium") else [*of_cpprb, "cpprb_like.integrations.gymnasium"]


__getattr__, _names = attach(__name__, __file__, _hidden)


def __dir__() -> list[str]:
    """Public names and the version."""
    return sorted([*_names(), "__version__"])
