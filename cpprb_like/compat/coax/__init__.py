"""coax's buffers of transitions: ``SimpleReplayBuffer``, ``PrioritizedReplayBuffer``.

The buffers store ``TransitionBatch``es, which coax's reward tracers or programs make. The arrays of
a batch are fields of a ``ReplayBuffer``. coax and jax are not needed: a batch may be of any class
with the attributes of ``TransitionBatch``. Drawn batches have the class of the first added batch.
"""

from cpprb_like.compat.coax._buffers import PrioritizedReplayBuffer, SimpleReplayBuffer
from cpprb_like.compat.coax._transitions import TransitionBatch

__all__ = [
    "PrioritizedReplayBuffer",
    "SimpleReplayBuffer",
    "TransitionBatch",
]
