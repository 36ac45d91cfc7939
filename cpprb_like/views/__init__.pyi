from cpprb_like.views._among import Among as Among
from cpprb_like.views._frame_stacks import FrameStacks as FrameStacks
from cpprb_like.views._hindsight import Hindsight as Hindsight
from cpprb_like.views._layer import Layer as Layer
from cpprb_like.views._nstep import NStep as NStep
from cpprb_like.views._sequences import Sequences as Sequences
from cpprb_like.views._sequences import sequence_priorities as sequence_priorities
from cpprb_like.views._windows import Windows as Windows
