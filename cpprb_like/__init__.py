"""Experience replay for reinforcement learning: store steps once, derive the rest when drawn."""

from importlib.util import find_spec

from cpprb_like._arguments.later import attach
from cpprb_like.buffers._replay import ReplayBuffer as ReplayBuffer

__version__ = "0.1.0"


def _hidden() -> list[str]:
    """Names that can be imported but are not listed in ``__all__``.

    Only programs written for cpprb need them, or their package is not installed. A star import
    imports every listed name.
    """
    of_cpprb = ["cpprb_like.compat.cpprb", "create_before_add_func"]
    return of_cpprb if find_spec("gymnasium") else [*of_cpprb, "cpprb_like.integrations.gymnasium"]


__getattr__, _names = attach(__name__, __file__, _hidden)


def __dir__() -> list[str]:
    """Public names and the version."""
    return sorted([*_names(), "__version__"])
