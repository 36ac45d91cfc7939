"""The replay buffer of Berkeley's DQN course code, and its schedules.

``ReplayBuffer`` stores single frames in a ``cpprb_like.ReplayBuffer``, and stacks them when a batch
is drawn. ``sample_n_unique``, ``LinearSchedule`` and ``PiecewiseSchedule`` are helpers beside it.
"""

from cpprb_like.compat.dqn._replay import (
    Batch,
    NotEnoughFramesError,
    ReplayBuffer,
    StoredField,
    sample_n_unique,
)
from cpprb_like.compat.dqn._schedules import (
    LinearSchedule,
    OutsideScheduleError,
    PiecewiseSchedule,
    linear_interpolation,
)

__all__ = [
    "Batch",
    "LinearSchedule",
    "NotEnoughFramesError",
    "OutsideScheduleError",
    "PiecewiseSchedule",
    "ReplayBuffer",
    "StoredField",
    "linear_interpolation",
    "sample_n_unique",
]
