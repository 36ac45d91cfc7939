"""What is read of drawn rows: n-step returns, sequences, frame stacks, relabelled goals.

The layers here are options of a view: ``rb.view(NStep(3), Sequences(64))``. A reader gets slots and
fills a batch. Stored values are gathered; derived values are computed from a window of rows that is
clipped at the end of the episode.
May import: ``samplers``, ``_store`` and what they may.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpprb_like._c.later import later
from cpprb_like.views._layer import Layer

if TYPE_CHECKING:
    from cpprb_like.views._frame_stacks import FrameStacks
    from cpprb_like.views._hindsight import Hindsight
    from cpprb_like.views._nstep import NStep
    from cpprb_like.views._sequences import Sequences, sequence_priorities

__all__ = ["FrameStacks", "Hindsight", "Layer", "NStep", "Sequences", "sequence_priorities"]

# A buffer without a view needs none of them.
_LATER = {
    "FrameStacks": "_frame_stacks",
    "Hindsight": "_hindsight",
    "NStep": "_nstep",
    "Sequences": "_sequences",
    "sequence_priorities": "_sequences",
}
__getattr__ = later(__name__, _LATER)


def __dir__() -> list[str]:
    """The public names, those that are imported later too."""
    return sorted(__all__)
