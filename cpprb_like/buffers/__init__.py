"""What users hold: buffers, and what is made of buffers.

``add`` is a compiled call of ``_entry``. ``sample`` asks the sampler of the buffer for slots, its
view for a batch of them, and the ring whether all of it was of one moment. ``Hindsight`` and
``Mixture`` draw from buffers. May import: all rooms but ``integrations`` and ``compat``.
"""

from cpprb_like.buffers._create import create_buffer
from cpprb_like.buffers._episodes import Episode, Episodes, Spread, Statistics
from cpprb_like.buffers._hindsight import Hindsight
from cpprb_like.buffers._mixture import Mixture
from cpprb_like.buffers._prioritized import PrioritizedReplayBuffer
from cpprb_like.buffers._replay import Batch, ReplayBuffer
from cpprb_like.buffers._replay_memory import ReplayMemory
from cpprb_like.buffers._reverse import ReverseReplayBuffer

__all__ = [
    "Batch",
    "Episode",
    "Episodes",
    "Hindsight",
    "Mixture",
    "PrioritizedReplayBuffer",
    "ReplayBuffer",
    "ReplayMemory",
    "ReverseReplayBuffer",
    "Spread",
    "Statistics",
    "create_buffer",
]
