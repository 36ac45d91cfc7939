"""The replay buffer of Berkeley's DQN course code, and its schedules.

``ReplayBuffer`` stores single frames and joins the newest of them to the agent's view when it is
drawn; ``sample_n_unique``, ``LinearSchedule`` and ``PiecewiseSchedule`` are the helpers beside it.
The rows are those of a ``cpprb_like.ReplayBuffer``.
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
