"""Draws by the rank of a priority.

Not here: ranks and their weights (``_ranks``), which rows have one (``_row_weights``), and all that
draws by priority have in common (``_prioritized``).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cpprb_like._core import Ring
from cpprb_like._segment_tree import MinTree, SumTree, min_tree_size, tree_size
from cpprb_like._store.arenas import allocate_floats
from cpprb_like.samplers._prioritized import ByPriority
from cpprb_like.samplers._ranks import Ranks
from cpprb_like.samplers._row_weights import RowWeights
from cpprb_like.schedules import Schedule

__all__ = ["RankBased"]

Floats = NDArray[np.float64]


class RankBased(ByPriority):
    """Rank-based prioritization: ``P(i)`` is proportional to ``rank(i) ** -alpha``.

    The row with the largest priority has rank 1. How large priorities are makes no difference, only
    which is larger, so outliers do no harm. Rows of equal priority share the mean of the weights of
    their ranks, as if their order was drawn anew each time: such as all rows that have never been
    learned from, and so have the greatest priority.

    Parameters
    ----------
    alpha : float
        How much ranks count, at least 0: 0 is uniform.
    beta : float or schedule
        How far the weights correct for the draws being uneven, at least 0: 0 not at all, 1 in full.
        The time of a schedule is the number of batches drawn so far.
    check_for_update : bool
        ``update_priorities`` skips rows that were overwritten since they were drawn. Then
        ``indexes`` are handles, which name a row for ever, and ``indexes % capacity`` are their
        slots; without it they are the slots, as in cpprb.
    stratified : bool
        Draw one row from each of n equal parts of the sum of all probabilities, which varies less;
        if not, each from the whole.
    probabilities : bool
        Add the column ``probabilities``.
    weights_dtype : {float32, float64}
        Dtype of the column ``weights``. They are computed in float64 and rounded once.

    Raises
    ------
    TypeError, ValueError
        A parameter is of a wrong type or value; the message names it.

    Notes
    -----
    A batch gets the importance-sampling ``weights``, shape ``(n,)``: ``(P(i) / min P) ** -beta``,
    where P is the probability to be drawn, so the rarest row weighs 1.0; and ``indexes``, shape
    ``(n,)`` and int64, for ``update_priorities``. New rows have the greatest priority so far.

    Ranks are exact when the rows have been sorted: by the first draw, and by each draw before which
    as many priorities have changed (by updates, new rows and deleted ones) as there were rows at
    the last sort, or a quarter where priorities have drifted so far that all weights together are a
    quarter more or less than those of all ranks. In between, a row whose priority changes gets the
    rank that it has then, to a few percent; the others keep their weights. ``P`` and ``weights``
    are those that the draw is made by, however old a rank is, so the correction is exact.

    A draw or an update of n rows costs in proportion to n and the logarithm of the capacity. A draw
    that sorts costs in proportion to the rows: 50 milliseconds for a million, and 32 bytes a
    row as long as it lasts. Memory: 17 bytes a row.

    Without replacement the rows are drawn one after another, each in proportion among those that
    are left, unstratified.

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
        check_for_update: bool = False,
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

    NO_WEIGHT = math.nan

    def nbytes_for(self, capacity: int) -> int:
        """Bytes that it allocates for a ring of so many rows."""
        return 8 * (capacity + tree_size(capacity) + min_tree_size(capacity))

    def _keep(self, ring: Ring) -> RowWeights:
        capacity = ring.capacity
        if capacity**-self.alpha < np.finfo(np.float64).tiny:
            raise ValueError(f"alpha: {self.alpha} is too large, because {capacity} ** -alpha is 0")
        tree = SumTree(allocate_floats(tree_size(capacity)), capacity)
        minima = MinTree(allocate_floats(min_tree_size(capacity)), tree)
        ranks = Ranks(allocate_floats(capacity), self.alpha)
        return RowWeights(ring, tree, minima, None, 1.0, ranks)

    def _weigh(self, priorities: Floats) -> Floats:
        return priorities  # the rows compare them when they get them
