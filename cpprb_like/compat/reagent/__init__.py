"""ReAgent's replay memory: the package ``reagent.replay_memory``.

The modules have ReAgent's names, so that old imports work after

    sys.modules["reagent.replay_memory"] = cpprb_like.compat.reagent

``ReplayBuffer`` and ``PrioritizedReplayBuffer`` need PyTorch, ``replay_buffer_to_pre_timeline_df``
needs pandas, ``SumTree`` neither.
"""

from cpprb_like.compat.reagent import (
    circular_replay_buffer,
    prioritized_replay_buffer,
    sum_tree,
    utils,
)
from cpprb_like.compat.reagent.circular_replay_buffer import ReplayBuffer
from cpprb_like.compat.reagent.prioritized_replay_buffer import PrioritizedReplayBuffer
from cpprb_like.compat.reagent.sum_tree import SumTree
from cpprb_like.compat.reagent.utils import replay_buffer_to_pre_timeline_df

__all__ = [
    "PrioritizedReplayBuffer",
    "ReplayBuffer",
    "SumTree",
    "circular_replay_buffer",
    "prioritized_replay_buffer",
    "replay_buffer_to_pre_timeline_df",
    "sum_tree",
    "utils",
]
