"""What users hold: buffers, and what is made of buffers.

``add`` is a compiled call of ``_entry``. ``sample`` asks the sampler of the buffer for slots, a
reader for a batch of them, and the ring whether all of it was of one moment. Whatever can be drawn
from is a ``Source``: a buffer, a ``View`` of one, a ``Mixture`` of sources. May import: all rooms
but ``integrations`` and ``compat``.
"""

from cpprb_like.buffers._batches import Batch, Batches
from cpprb_like.buffers._create import create_buffer
from cpprb_like.buffers._episodes import Episode, Episodes, Spread, Statistics
from cpprb_like.buffers._mixture import Mixture
from cpprb_like.buffers._prioritized import PrioritizedReplayBuffer
from cpprb_like.buffers._replay import ReplayBuffer
from cpprb_like.buffers._replay_memory import ReplayMemory
from cpprb_like.buffers._reverse import ReverseReplayBuffer
from cpprb_like.buffers._source import ColumnSpec, Source
from cpprb_like.buffers._tensors import TensorBatch
from cpprb_like.buffers._view import View

__all__ = [
    "Batch",
    "Batches",
    "ColumnSpec",
    "Episode",
    "Episodes",
    "Mixture",
    "PrioritizedReplayBuffer",
    "ReplayBuffer",
    "ReplayMemory",
    "ReverseReplayBuffer",
    "Source",
    "Spread",
    "Statistics",
    "TensorBatch",
    "View",
    "create_buffer",
]
