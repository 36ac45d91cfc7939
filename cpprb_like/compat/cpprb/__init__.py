"""Classes that only cpprb has: hindsight, whole episodes, processes, and its training loop.

``from cpprb_like import MPReplayBuffer`` gives each of these names, as in programs written for
cpprb. ``__all__`` of the package lists none of them.
"""

from cpprb_like.compat.cpprb._hindsight import HindsightReplayBuffer
from cpprb_like.compat.cpprb._processes import MPPrioritizedReplayBuffer, MPReplayBuffer
from cpprb_like.compat.cpprb._selective import SelectiveReplayBuffer
from cpprb_like.compat.cpprb._training import train

__all__ = [
    "HindsightReplayBuffer",
    "MPPrioritizedReplayBuffer",
    "MPReplayBuffer",
    "SelectiveReplayBuffer",
    "train",
]
