"""What users hold: buffers, and what is made of buffers.

``add`` is a compiled call of ``_entry``. ``sample`` asks the sampler of the buffer for slots, a
reader for a batch of them, and the ring whether all of it was of one moment. Whatever can be drawn
from is a ``Source``: a buffer, a ``View`` of one, a ``Mixture`` of sources. May import:
``checkpoint``, and what is below it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpprb_like._c.later import later
from cpprb_like.buffers._batches import Batch, Batches
from cpprb_like.buffers._prioritized import PrioritizedReplayBuffer
from cpprb_like.buffers._replay import ReplayBuffer
from cpprb_like.buffers._source import ColumnSpec, Source

if TYPE_CHECKING:
    from cpprb_like.buffers._create import create_buffer
    from cpprb_like.buffers._episodes import Episode, Episodes, Spread, Statistics
    from cpprb_like.buffers._mixture import Mixture
    from cpprb_like.buffers._replay_memory import ReplayMemory
    from cpprb_like.buffers._reverse import ReverseReplayBuffer
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

# Programs that make and draw from a buffer need none of these.
_LATER = {
    "Episode": "_episodes",
    "Episodes": "_episodes",
    "Mixture": "_mixture",
    "ReplayMemory": "_replay_memory",
    "ReverseReplayBuffer": "_reverse",
    "Spread": "_episodes",
    "Statistics": "_episodes",
    "TensorBatch": "_tensors",
    "View": "_view",
    "create_buffer": "_create",
}
__getattr__ = later(__name__, _LATER)


def __dir__() -> list[str]:
    """The public names, those that are imported later too."""
    return sorted(__all__)
