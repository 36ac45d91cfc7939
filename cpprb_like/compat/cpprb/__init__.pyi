from cpprb_like.compat.cpprb._hindsight import HindsightReplayBuffer as HindsightReplayBuffer
from cpprb_like.compat.cpprb._processes import (
    MPPrioritizedReplayBuffer as MPPrioritizedReplayBuffer,
)
from cpprb_like.compat.cpprb._processes import MPReplayBuffer as MPReplayBuffer
from cpprb_like.compat.cpprb._selective import SelectiveReplayBuffer as SelectiveReplayBuffer
from cpprb_like.compat.cpprb._training import train as train
