"""Draws by the rank of a priority.

Not here: the order of the rows (``_row_ranks``, ``_ranking``), and what a priority is
(``priorities``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from cpprb_like._core import Moment, Ring
from cpprb_like._ranking import Ranking, ranking_size
from cpprb_like._row_ranks import RowRanks
from cpprb_like._segment_tree import SumTree, tree_size
from cpprb_like.priorities import ByPriority, read_indexes, read_priorities
from cpprb_like.samplers import Slots
from cpprb_like.schedules import Schedule
from cpprb_like.storage import allocate_floats

__all__ = ["RankBased"]

Floats = NDArray[np.float64]


class RankBased(ByPriority[RowRanks]):
    """Rank-based prioritization: the r-th row is drawn in proportion to ``r ** -alpha``.

    The first row is that with the largest priority; of equal ones, that in the lowest slot. How
    large priorities are makes no difference, only which is larger, so outliers do no harm.

    Parameters
    ----------
    alpha : float
        How much ranks count, at least 0: 0 is uniform.
    beta : float or schedule
        How far the weights correct for the draws being uneven, at least 0: 0 not at all, 1 in full.
        The time of a schedule is the number of batches drawn so far.
    check_for_update : bool
        Pass over priorities of rows that were overwritten since they were drawn. Then ``indexes``
        tell a row from those before and after it in its slot: they are no slots, but ``indexes %
        capacity`` are.
    stratified : bool
        Draw one row from each of n equal parts of the sum of all probabilities, which varies less;
        if not, each from the whole.
    probabilities : bool
        Add the column ``probabilities``.
    weights_dtype : {float64, float32}
        Of the weights.

    Raises
    ------
    TypeError, ValueError
        A parameter is of a wrong type or value; the message names it.

    Notes
    -----
    A batch gets the columns ``weights``, shape ``(n,)``: ``(P(i) / min P) ** -beta``, where P is
    the probability to be drawn, so the row of the last rank weighs 1.0; and ``indexes``, shape
    ``(n,)`` and int64, for ``update_priorities``. New rows have the greatest priority so far.

    Ranks are exact at each draw. A draw or an update of n rows costs in proportion to n and the
    logarithm of the capacity; the first draw after an update also takes a time in proportion to a
    hundredth of the rows. Memory: 42 bytes a row.

    Without replacement the rows are drawn one after another, each in proportion among those that
    are left, unstratified.

    Source: Schaul, Quan, Antonoglou and Silver (2016), "Prioritized Experience Replay", section
    3.3, second variant, and section 3.4; there ranks are taken from a heap, and only nearly right.

    Examples
    --------
    >>> from cpprb_like import PrioritizedReplayBuffer
    >>> from cpprb_like.ranked import RankBased
    >>> sampler = RankBased(alpha=1.0, probabilities=True)
    >>> rb = PrioritizedReplayBuffer(10, {"x": {"shape": ()}}, sampler=sampler, seed=0)
    >>> rb.add(x=[0, 1], priorities=[7.0, 1000.0])
    0
    >>> batch = rb.sample(3)
    >>> batch["x"].tolist(), batch["probabilities"].round(2).tolist()
    ([1.0, 1.0, 0.0], [0.67, 0.67, 0.33])
    """

    def __init__(
        self,
        alpha: float = 0.7,
        *,
        beta: float | Schedule = 0.5,
        check_for_update: bool = False,
        stratified: bool = True,
        probabilities: bool = False,
        weights_dtype: DTypeLike = np.float64,
    ) -> None:
        super().__init__(
            alpha,
            beta,
            check_for_update=check_for_update,
            stratified=stratified,
            probabilities=probabilities,
            weights_dtype=weights_dtype,
        )

    def nbytes_for(self, capacity: int) -> int:
        """Bytes that it allocates for a ring of so many rows."""
        return 8 * (capacity + ranking_size(capacity) + tree_size(capacity))

    def _keep(self, ring: Ring) -> RowRanks:
        if ring.capacity**-self.alpha < np.finfo(np.float64).tiny:
            raise ValueError(
                f"alpha: {self.alpha} is too large, because {ring.capacity} ** -alpha is 0"
            )
        capacity = ring.capacity
        keys = allocate_floats(capacity)
        keys[:] = np.nan
        ranking = Ranking(keys, allocate_floats(ranking_size(capacity)))
        tree = SumTree(allocate_floats(tree_size(capacity)), capacity)
        return RowRanks(ring, ranking, tree, self.alpha)

    def stage(self, first: int, revision: int, priorities: Floats) -> None:
        """See ``PrioritySampler.stage``."""
        self.rows.stage(first, revision, priorities)

    def update_priorities(self, indexes: ArrayLike, priorities: ArrayLike) -> None:
        """Set the priorities of rows; see ``PrioritizedReplayBuffer.update_priorities``."""
        values = read_priorities(priorities)
        self.rows.update(read_indexes(indexes, len(values)), values, self.check_for_update)

    def drop(self, slots: Slots, moment: Moment) -> None:
        """See ``ByPriority.drop``."""
        self.rows.drop(slots, moment)
