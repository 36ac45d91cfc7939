"""Draws by the rank of a priority.

Not here: the order of the rows (``_ranking``), the tree that draws ranks (``_segment_tree``), and
what a priority is (``priorities``).
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from cpprb_like._core import FLAG_ABSENT, Moment, Ring
from cpprb_like._ranking import Ranking, ranking_size
from cpprb_like._row_tags import RowTags, waiting_rows
from cpprb_like._segment_tree import SumTree, tree_size
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.priorities import ByPriority, read_indexes, read_priorities
from cpprb_like.samplers import Slots
from cpprb_like.schedules import Schedule
from cpprb_like.storage import allocate_floats

__all__ = ["RankBased"]

Floats = NDArray[np.float64]


class RankBased(ByPriority["RowRanks"]):
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
        return RowRanks(ring, self.alpha)

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


class RowRanks:
    """The order of a ring's rows by priority, and a tree that has a weight for each rank.

    Rows that were added are put in order at the next call. Any number of threads may call, and add
    to the ring or clear it meanwhile: then a call works on the rows that it found when it began.
    """

    def __init__(self, ring: Ring, alpha: float) -> None:
        capacity = ring.capacity
        self.ring = ring
        self._lock = threading.Lock()
        self._alpha = alpha
        self._priorities = allocate_floats(capacity)
        self._priorities[:] = np.nan
        self._ranking = Ranking(self._priorities, allocate_floats(ranking_size(capacity)))
        self._tree = SumTree(allocate_floats(tree_size(capacity)), capacity)
        self._tags = RowTags(ring)
        self._revision = ring.revision
        self._followed = 0  # row ids below this are in order
        self._weighed = 0  # ranks that have their weight in the tree
        self._greatest = 1.0
        self._waiting: dict[int, float] = {}  # priorities of rows that wait for others to follow

    # ------------------------------------------------------------------ following the ring

    def _follow(self, stop: int | None = None) -> int:
        """Put the rows in order that are new, those before row id ``stop``; how many there are."""
        ring = self.ring
        revision, written = ring.revision, ring.written
        while revision != ring.revision:  # cleared between the two
            revision, written = ring.revision, ring.written
        if revision != self._revision:
            self._ranking.clear()
            self._revision, self._followed, self._greatest = revision, 0, 1.0
            self._waiting.clear()
            self._weigh()
        self._release(written)
        first = max(self._followed, written - ring.capacity)
        stop = written if stop is None else min(stop, written)
        if first < stop:
            self._put(first, np.full(stop - first, self._greatest), written)
        self._hold()
        return written

    def _release(self, written: int) -> None:
        """Put the rows that waited back in order, as far as they are in the ring."""
        rows = [row for row in self._waiting if row >= written - self.ring.capacity]
        if rows:
            slots = np.array(rows, np.intp) % self.ring.capacity
            self._ranking.set(slots, np.array([self._waiting[row] for row in rows]))
        self._waiting.clear()

    def _hold(self) -> None:
        """Take the rows out that wait for others to follow, and keep their priorities."""
        if self.ring.ahead:
            rows = waiting_rows(self.ring)
            slots = (rows % self.ring.capacity).astype(np.intp)
            known = self._ranking.get(slots)
            there = ~np.isnan(known)
            self._waiting = dict(zip(rows[there].tolist(), known[there].tolist(), strict=True))
            self._ranking.remove(slots)
            self._weigh()

    def _put(self, first: int, priorities: Floats, written: int) -> None:
        """Set the priorities of the rows from row id ``first`` on, but for those that are gone."""
        capacity, stop = self.ring.capacity, first + len(priorities)
        self._followed = max(self._followed, stop)
        first = max(first, written - capacity)
        if first >= stop:
            return
        priorities = priorities[first - stop :]
        slots = np.arange(first, stop, dtype=np.intp) % capacity
        run = min(len(slots), capacity - int(slots[0]))
        self._ranking.set_range(int(slots[0]), priorities[:run])
        self._ranking.set_range(0, priorities[run:])
        if self.ring.absent:
            self._ranking.remove(slots[(self.ring.flags_at(slots) & FLAG_ABSENT) != 0])
        self._weigh()

    def _weigh(self) -> None:
        """Give each rank that a row has its weight."""
        among = len(self._ranking)
        if among > self._weighed:
            ranks = np.arange(self._weighed + 1, among + 1, dtype=np.float64)
            self._tree.set_range(self._weighed, ranks**-self._alpha)
        else:
            self._tree.set_range(among, np.zeros(self._weighed - among))
        self._weighed = among

    def stage(self, first: int, revision: int, priorities: Floats) -> None:
        """Note the priorities of the rows from row id ``first`` on, which have just been written.

        If the ring has another revision by now, the rows are gone.
        """
        with self._lock:
            written = self._follow(first)
            if self._revision != revision:
                return
            self._note(priorities[~self._absent_from(first, len(priorities))])
            self._release(written)
            self._put(first, priorities, written)
            self._hold()

    def _absent_from(self, first: int, n: int) -> NDArray[np.bool_]:
        """Which of the newest rows hold no step."""
        if not self.ring.absent:
            return np.zeros(n, np.bool_)
        slots = np.arange(first, first + n, dtype=np.intp) % self.ring.capacity
        return np.asarray((self.ring.flags_at(slots) & FLAG_ABSENT) != 0)

    def _note(self, priorities: Floats) -> None:
        """Rows that are there got these priorities: note the greatest."""
        self._greatest = max(self._greatest, float(priorities.max(initial=0.0)))

    # ------------------------------------------------------------------ drawing and updating

    def draw(
        self, n: int, rng: np.random.Generator, replace: bool, stratified: bool, tagged: bool
    ) -> tuple[Slots, NDArray[np.int64], Floats, float, float]:
        """Draw n rows; see ``SumTree.draw`` and, without ``replace``, ``SumTree.draw_distinct``.

        Returns their slots, what ``update`` takes for them, the weights of their ranks; and the
        weight of the last rank and the sum of all.
        """
        with self._lock:
            written = self._follow()
            among = self._weighed
            if among == 0 or (n > among and not replace):
                raise NotEnoughDataError(
                    f"cannot sample {n} distinct rows: the buffer holds {among}"
                )
            if replace:
                places, weights = self._tree.draw(n, rng, stratified)
            else:
                places, weights = self._tree.draw_distinct(n, rng)
            slots = self._ranking.at(places + 1)
            self._tags.note_draw(written)
            least = float(self._tree.get(np.array([among - 1], np.intp))[0])
            return slots, self._tags.indexes(slots, tagged), weights, least, self._tree.total

    def check_draw(self, n: int, replace: bool) -> None:
        """Raise what ``draw`` would raise, without a draw."""
        with self._lock:
            self._follow()
            if self._weighed == 0 or (n > self._weighed and not replace):
                raise NotEnoughDataError(
                    f"cannot sample {n} distinct rows: the buffer holds {self._weighed}"
                )

    def get(self, slots: Slots) -> Floats:
        """The weights of the ranks of rows; 0 for one that has none, since it cannot be drawn."""
        with self._lock:
            self._follow()
            weights = np.zeros(len(slots))
            ranked = ~np.isnan(self._ranking.get(slots))
            weights[ranked] = self._tree.get(self._ranking.ranks_of(slots[ranked]) - 1)
            return weights

    def indexes(self, slots: Slots, tagged: bool) -> NDArray[np.int64]:
        """What ``update`` takes for rows; see ``draw``."""
        with self._lock:
            return self._tags.indexes(slots, tagged)

    def drop(self, slots: Slots, moment: Moment) -> None:
        """Take rows out of the order; see ``ByPriority.drop``."""
        with self._lock:
            self._follow()
            if self.ring.holds(moment, slots):  # later ones are yet to come
                self._ranking.remove(slots)
                self._weigh()

    @property
    def largest_priority(self) -> float:
        """The greatest priority that any row was given, 1.0 at first."""
        with self._lock:
            self._follow()
            return self._greatest

    def update(self, indexes: NDArray[np.int64], priorities: Floats, tagged: bool) -> None:
        """Set the priorities of rows: of duplicates the last wins.

        See ``RowTags.find`` for ``indexes`` and ``tagged``, and for what is raised.
        """
        with self._lock:
            written = self._follow()
            slots, places = self._tags.find(indexes, tagged)
            self._release(written)
            self._ranking.set(slots, priorities[places])
            self._weigh()  # of a row that another thread has just added
            self._hold()
            self._note(priorities[places])

    # ------------------------------------------------------------------ saving

    def save(self) -> tuple[Any, ...]:
        """All that a new object over an equal ring needs to go on like this one."""
        with self._lock:
            self._release(self._follow())
            saved = self._tags.save(), self._priorities[: self.ring.stored].copy(), self._greatest
            self._hold()
            return saved

    def load(self, saved: tuple[Any, ...]) -> None:
        """Go on where another object was saved. See ``RowTags.load``."""
        tags, priorities, greatest = saved
        if not self._tags.load(tags):
            return
        self._priorities[: len(priorities)] = priorities
        self._ranking.rebuild()
        self._revision, self._followed = self.ring.revision, self.ring.written
        self._greatest = greatest
        self._weigh()
