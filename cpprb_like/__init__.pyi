from cpprb_like._machine.blocks import get_num_threads as get_num_threads
from cpprb_like._machine.blocks import set_num_threads as set_num_threads
from cpprb_like.buffers import Mixture as Mixture
from cpprb_like.buffers import PrioritizedReplayBuffer as PrioritizedReplayBuffer
from cpprb_like.buffers import ReplayBuffer as ReplayBuffer
from cpprb_like.buffers import ReplayMemory as ReplayMemory
from cpprb_like.buffers import ReverseReplayBuffer as ReverseReplayBuffer
from cpprb_like.buffers import create_buffer as create_buffer
from cpprb_like.compat.cpprb import HindsightReplayBuffer as HindsightReplayBuffer
from cpprb_like.compat.cpprb import MPPrioritizedReplayBuffer as MPPrioritizedReplayBuffer
from cpprb_like.compat.cpprb import MPReplayBuffer as MPReplayBuffer
from cpprb_like.compat.cpprb import SelectiveReplayBuffer as SelectiveReplayBuffer
from cpprb_like.compat.cpprb import train as train
from cpprb_like.errors import NotEnoughDataError as NotEnoughDataError
from cpprb_like.integrations.gymnasium import GymnasiumRecorder as GymnasiumRecorder
from cpprb_like.integrations.gymnasium import create_before_add_func as create_before_add_func
from cpprb_like.integrations.gymnasium import create_env_dict as create_env_dict
from cpprb_like.samplers import LaBERlazy as LaBERlazy
from cpprb_like.samplers import LaBERmax as LaBERmax
from cpprb_like.samplers import LaBERmean as LaBERmean
from cpprb_like.views import Among as Among
from cpprb_like.views import FrameStacks as FrameStacks
from cpprb_like.views import Hindsight as Hindsight
from cpprb_like.views import NStep as NStep
from cpprb_like.views import Sequences as Sequences
from cpprb_like.views import sequence_priorities as sequence_priorities

__version__: str
