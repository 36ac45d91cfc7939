"""Rank-based prioritized experience replay (Schaul et al., 2016).

Not here: ranks and their weights (``_ranks``), which rows have one (``_row_weights``), and what
rank-based and proportional prioritization share (``_prioritized``).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import DTypeLike

from cpprb_like._arguments.arrays import Floats
from cpprb_like._core import Ring
from cpprb_like._files.arenas import allocate_floats
from cpprb_like._segment_tree import MinTree, SumTree, min_tree_size, tree_size
from cpprb_like.samplers._base import Slots
from cpprb_like.samplers._prioritized import ByPriority, memory_of
from cpprb_like.samplers._ranks import Ranks, groups_nbytes
from cpprb_like.samplers._row_weights import RowWeights
from cpprb_like.schedules import Schedule

__all__ = ["RankBased"]


class RankBased(ByPriority):
    """Rank-based prioritized experience replay (Schaul et al., 2016).

    P(i) is proportional to ``rank(i) ** -alpha``. The row with the greatest priority has rank 1.
    Only the order of priorities counts, so outliers do no harm. Rows of equal priority have equal
    probabilities, from the mean of ``rank ** -alpha`` over their ranks. An example is all rows that
    were never learned from, which have the greatest priority.

    Parameters
    ----------
    alpha : float
        Prioritization exponent, at least 0: P(i) is proportional to ``rank(i) ** -alpha``. 0 is
        uniform.
    beta, check_for_update, stratified, probabilities, weights_dtype
        As for ``Prioritized``.

    Raises
    ------
    TypeError, ValueError
        A parameter has a wrong type or value; the message names it.

    Notes
    -----
    A batch gets two columns: the importance-sampling ``weights``, shape ``(n,)``, which are
    ``(P(i) / min P) ** -beta``; and ``indexes``, shape ``(n,)`` and int64, for
    ``update_priorities``. New rows have the greatest priority so far, at least 1.0.

    Rows are sorted at intervals, as in the paper. The first draw sorts. A later draw sorts when as
    many priorities have changed (by updates, new rows and deleted rows) as there were rows at the
    last sort. A quarter as many changes are enough if the sum of all weights is off by a quarter.
    After a sort, ranks are exact. Between sorts, a row with a new priority gets its current rank,
    to a few percent, and other rows keep their ranks. ``probabilities`` and ``weights`` always
    match the draws, so the correction is exact.

    Without replacement, rows are drawn one after another, each in proportion to its weight among
    the remaining rows. These draws are not stratified.

    Cost: n times the logarithm of the capacity for a draw or an update of n rows. The cost of a
    draw that sorts is proportional to the rows: 0.2 seconds for a million, and 80 bytes a row while
    it runs. Memory: 17 bytes a row.

    Source: Schaul, Quan, Antonoglou and Silver (2016), "Prioritized Experience Replay", section
    3.3, second variant, section 3.4, and appendix B.2.1. There, ranks between two sorts are places
    in a heap.

    Examples
    --------
    >>> from cpprb_like import PrioritizedReplayBuffer
    >>> from cpprb_like.samplers import RankBased
    >>> sampler = RankBased(alpha=1.0, probabilities=True)
    >>> rb = PrioritizedReplayBuffer(10, {"x": {"shape": ()}}, sampler=sampler, seed=0)
    >>> rb.add(x=[0, 1], priorities=[7.0, 1000.0])
    0
    >>> batch = rb.sample(3)
    >>> batch["x"].tolist(), batch["probabilities"].round(2).tolist()
    ([0.0, 1.0, 1.0], [0.33, 0.67, 0.67])
    """

    def __init__(
        self,
        alpha: float = 0.7,
        *,
        beta: float | Schedule = 0.5,
        check_for_update: bool = True,
        stratified: bool = True,
        probabilities: bool = False,
        weights_dtype: DTypeLike = np.float32,
    ) -> None:
        super().__init__(
            alpha,
            beta,
            check_for_update=check_for_update,
            stratified=stratified,
            probabilities=probabilities,
            weights_dtype=weights_dtype,
        )

    BY_ROWS = True

    def nbytes_for(self, capacity: int) -> int:
        """Bytes to allocate for a ring of this capacity."""
        floats = capacity + tree_size(capacity) + min_tree_size(capacity)
        return 8 * floats + groups_nbytes(capacity)

    def _mapped(self, capacity: int) -> tuple[str, dict[str, int]]:
        what, sizes = super()._mapped(capacity)
        return what, sizes | {"priorities": capacity}

    def _keep(self, ring: Ring, mapped: Mapping[str, Floats]) -> RowWeights:
        capacity = ring.capacity
        if capacity**-self.alpha < np.finfo(np.float64).tiny:
            raise ValueError(f"alpha: {self.alpha} is too large, because {capacity} ** -alpha is 0")
        tree = SumTree(memory_of(mapped, "weights", tree_size(capacity)), capacity)
        minima = MinTree(allocate_floats(min_tree_size(capacity)), tree)
        ranks = Ranks(memory_of(mapped, "priorities", capacity), self.alpha)
        return RowWeights(ring, tree, minima, 1.0, ranks)

    def row_priorities(self, slots: Slots) -> Floats:
        """See ``Sampler.row_priorities``."""
        self.rows.sync()
        ranks = self.rows.ranks
        assert ranks is not None
        found: Floats = ranks.priorities[slots]
        return found

    def _weighs_all(self) -> bool:
        return True

    def _weigh(self, priorities: Floats) -> Floats:
        return priorities  # ``RowWeights`` ranks them
