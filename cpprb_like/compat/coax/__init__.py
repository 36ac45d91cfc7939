"""coax's buffers of transitions: ``SimpleReplayBuffer``, ``PrioritizedReplayBuffer``.

They hold ``TransitionBatch``es, which are made by coax's reward tracers or by hand. The arrays of a
batch are fields of a ``ReplayBuffer``. coax and jax are not needed: a batch may be of any class
with the attributes of ``TransitionBatch``, and what is drawn is of the class of what was added
first.
"""

from cpprb_like.compat.coax._buffers import (
    PrioritizedReplayBuffer,
    SimpleReplayBuffer,
)
from cpprb_like.compat.coax._transitions import (
    TransitionBatch,
)

__all__ = [
    "PrioritizedReplayBuffer",
    "SimpleReplayBuffer",
    "TransitionBatch",
]
