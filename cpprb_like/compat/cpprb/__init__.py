"""Classes that only cpprb has: hindsight, whole episodes, processes, and its training loop.

``from cpprb_like import ...`` gives all of these names, as programs written for cpprb ask for them.
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
