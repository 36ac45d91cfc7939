"""Which rows are drawn: samplers, and the weights that they keep for rows.

A sampler is asked for ``n`` rows of a ring and returns their slots, with further columns for the
batch such as importance-sampling weights. It never sees the values of the rows; ``views`` read
those. ``cpprb_like._segment_tree`` belongs to this room.
May import: ``_store`` and what that may.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpprb_like._c.later import later
from cpprb_like.samplers._base import Extra, Sampler, Slots
from cpprb_like.samplers._prioritized import Prioritized, PrioritySampler
from cpprb_like.samplers._uniform import LegacyUniform, Uniform

if TYPE_CHECKING:
    from cpprb_like.samplers._laber import LaBERlazy, LaBERmax, LaBERmean
    from cpprb_like.samplers._rank_based import RankBased
    from cpprb_like.samplers._recency import Recency
    from cpprb_like.samplers._reverse import Reverse
    from cpprb_like.samplers._trees import new_sum_tree

__all__ = [
    "Extra",
    "LaBERlazy",
    "LaBERmax",
    "LaBERmean",
    "LegacyUniform",
    "Prioritized",
    "PrioritySampler",
    "RankBased",
    "Recency",
    "Reverse",
    "Sampler",
    "Slots",
    "Uniform",
    "new_sum_tree",
]

# Few buffers are drawn from by these.
_LATER = {
    "LaBERlazy": "_laber",
    "LaBERmax": "_laber",
    "LaBERmean": "_laber",
    "RankBased": "_rank_based",
    "Recency": "_recency",
    "Reverse": "_reverse",
    "new_sum_tree": "_trees",
}
__getattr__ = later(__name__, _LATER)


def __dir__() -> list[str]:
    """The public names, those that are imported later too."""
    return sorted(__all__)
