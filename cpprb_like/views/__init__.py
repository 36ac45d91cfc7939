"""What is read of the rows that were drawn: n-step returns, sequences, frame stacks, new goals.

The layers here say how a view of a buffer reads: ``rb.view(NStep(3), Sequences(64))``. A reader is
handed slots and fills a batch: values that are stored are gathered, values that follow from other
rows are put together, each from a window that is clipped at the end of its episode.
May import: ``samplers``, ``_store`` and what they may.
"""

from cpprb_like.views._frame_stacks import FrameStacks
from cpprb_like.views._hindsight import Hindsight
from cpprb_like.views._layer import Layer
from cpprb_like.views._nstep import NStep
from cpprb_like.views._sequences import Sequences, sequence_priorities

__all__ = ["FrameStacks", "Hindsight", "Layer", "NStep", "Sequences", "sequence_priorities"]
