"""Rank-based prioritized experience replay (Schaul et al., 2016).

One ``RowWeights`` keeps the priorities, as that of ``Prioritized`` keeps weights. Rows are drawn by
a second one, of weights ``rank ** -alpha``, which follows the first at each draw: all but the
priorities is derived. Not here: how both follow the ring (``_row_weights``), and draws by weight
(``_prioritized``).
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from cpprb_like._arguments.arrays import Floats
from cpprb_like._arguments.checks import expect
from cpprb_like._core import Beside, Ring
from cpprb_like._files.arenas import allocate_floats
from cpprb_like._machine.forks import INNERMOST, watch
from cpprb_like._rows.row_handles import find_rows, handles
from cpprb_like._segment_tree import MinTree, SumTree, min_tree_size, tree_size
from cpprb_like.samplers._base import Extra, Slots
from cpprb_like.samplers._prioritized import (
    ByPriority,
    check_weights,
    memory_of,
    read_indexes,
    read_priorities,
)
from cpprb_like.samplers._row_weights import RowWeights
from cpprb_like.samplers._rows import Rows
from cpprb_like.schedules import Schedule, value_at

__all__ = ["RankBased"]

HASTE = 4  # factor by which a sort comes earlier where priorities drift
STRAY = 0.25  # share of the weight of all ranks; below 0.05 while priorities do not drift
SCALE = 2.0**-64  # of kept priorities: their sum stays finite, and no bit is lost
LEAST = 5e-324  # the kept priority 0, as 0 stands for a row that cannot be drawn
NONE = 0xFFFF  # the group of a slot without a rank
SAVED = ("bottoms", "ordered", "changes", "pending")  # of ``Ranks``
NOT_SAVED = ("_rows", "_kept", "_ranks", "_sums", "_lock", "_hints", "_hinted", "_updating")
NO_FLOATS, NO_SLOTS = np.empty(0), np.empty(0, np.intp)


class Update:
    """A call that sets priorities."""


class Ranks:
    """Groups of neighbouring ranks, into which the last sort divided the slots.

    A slot whose priority changes moves to another group, and gets the mean weight of its ranks.
    """

    def __init__(self, ring: Ring, bottoms: Floats = NO_FLOATS) -> None:
        self.clears, self.written, self.first = ring.clears, 0, 0  # rows that were followed
        self.groups = np.full(ring.capacity, NONE, np.uint16)  # of each slot
        self.bottoms = bottoms  # the least kept priority of each group but the last, descending
        self.counts = np.zeros(len(bottoms) + 1, np.int64)  # slots of each group
        self.ordered = 0  # slots at the last sort
        self.changes = 0  # slots that had changed since, at the last draw
        self.pending = NO_SLOTS  # slots that changed since the last draw, some of them repeatedly
        self.waiting = NO_SLOTS  # slots of rows whose n-step window is incomplete

    def groups_of(self, kept: Floats) -> NDArray[np.uint16]:
        """The groups of kept priorities."""
        found = np.searchsorted(-self.bottoms, -kept).astype(np.uint16)
        found[kept == 0.0] = NONE
        return found

    def move(self, slots: Slots, kept: Floats, *, told: bool = True) -> None:
        """Move distinct slots to the groups of their priorities.

        Slots that stay in their group count as changed if a change was ``told``.
        """
        old, new = self.groups[slots], self.groups_of(kept)
        changed = (old != NONE) | (new != NONE) if told else old != new
        slots, old, new = slots[changed], old[changed], new[changed]
        for groups, sign in ((old, -1), (new, 1)):
            self.counts += sign * np.bincount(groups[groups != NONE], minlength=len(self.counts))
        self.groups[slots] = new
        self.pending = np.concatenate([self.pending, slots])
        if len(self.pending) > len(self.groups):
            self.pending = np.unique(self.pending)


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
    many rows have changed (by updates, new rows and deleted rows) as there were rows at the last
    sort. A quarter as many changes are enough if the sum of all weights is off by a quarter. After
    a sort, ranks are exact. Between sorts, a row with a new priority gets the rank that it has at
    the next draw, to a few percent, and other rows keep their ranks. ``probabilities`` and
    ``weights`` always match the draws, so the correction is exact.

    Without replacement, rows are drawn one after another, each in proportion to its weight among
    the remaining rows. These draws are not stratified.

    Cost: n times the logarithm of the capacity for a draw or an update of n rows, and some 100
    microseconds for a draw after a change. The cost of a draw that sorts is proportional to the
    rows: 0.2 seconds for a million, and 80 bytes a row while it runs. Memory: 21 bytes a row. A
    ``SharedReplay`` refuses the sampler.

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

    BITS: ClassVar[int] = 6  # 64 groups for each doubling: ranks are exact to 1 part in 64 to 128

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
        self._saved_ranks: dict[str, Any] | None = None
        self._begin()

    def _begin(self) -> None:
        self._kept: RowWeights | None = None  # the priorities
        self._ranks: Ranks | None = None  # None during a change, and after one that was interrupted
        self._hints: deque[Slots] = deque()  # slots whose priorities may have changed
        self._hinted = 0  # slots of these since they were merged, roughly
        # The last calls that set priorities: those that run may not have hinted after it yet.
        self._updating: deque[weakref.ref[Update]] = deque(maxlen=64)
        self._sums = NO_FLOATS, NO_FLOATS  # see ``sums_of``
        self._lock = threading.RLock()  # of the ranks
        watch(self._lock, INNERMOST)

    # ------------------------------------------------------------------ memory

    def nbytes_for(self, capacity: int) -> int:
        """Bytes to allocate for a ring of this capacity."""
        return 16 * (tree_size(capacity) + min_tree_size(capacity)) + 2 * capacity

    def _mapped(self, capacity: int) -> tuple[str, dict[str, int]]:
        what, sizes = super()._mapped(capacity)
        return f"{what}, priorities", sizes

    def _open(self, ring: Ring, mapped: Mapping[str, Floats], there: bool = False) -> None:
        self._expect_none()
        n = ring.capacity
        if n**-self.alpha < np.finfo(np.float64).tiny:
            raise ValueError(f"alpha: {self.alpha} is too large, because {n} ** -alpha is 0")
        memory = memory_of(mapped, "weights", tree_size(n)), allocate_floats(tree_size(n))
        trees = [SumTree(nodes, n) for nodes in memory]
        minima = [MinTree(allocate_floats(min_tree_size(n)), tree) for tree in trees]
        kept = RowWeights(ring, trees[0], minima[0], SCALE)
        rows = RowWeights(ring, trees[1], minima[1], 1.0)
        if self._saved is not None and not there:
            kept.restore(self._saved)
        if mapped:
            kept.keep_in(mapped["notes"], there, True)
        ranks = Ranks(ring)
        if isinstance(self._saved_ranks, dict) and not there:
            ranks = restored(self._saved_ranks, kept, rows) or ranks
        self._saved = self._saved_ranks = None
        self._sums = sums_of(n, self.alpha, self.BITS)
        self._kept, self._ranks, self._rows = kept, ranks, rows

    def _leave(self) -> None:
        super()._leave()
        self._begin()

    def move(self, slots: Slots, ring: Ring) -> None:
        """See ``Sampler.move``: priorities go by row id, and the next draw sorts."""
        super().move(slots, ring)
        self._saved_ranks = None

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__ | dict.fromkeys(NOT_SAVED)
        if self._rows is None:
            return state
        with self._lock:
            self._follow()
            weights = self.rows.get(np.arange(self.rows.ring.stored))
            saved = {name: getattr(self._ranks, name) for name in SAVED} | {"weights": weights}
            return state | {"_saved": self.kept.save(), "_saved_ranks": saved}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._begin()

    @property
    def kept(self) -> RowWeights:
        """The priorities of the rows: times ``SCALE``, or ``LEAST``."""
        if self._kept is None:
            raise RuntimeError(f"{self!r} belongs to no buffer yet")
        return self._kept

    # ------------------------------------------------------------------ ranks

    def _follow(self, n: int = 0) -> None:
        """Give slots that changed their ranks. A draw of n rows sorts if that is due."""
        kept, rows = self.kept, self.rows
        ring = rows.ring
        with self._lock:
            ranks, self._ranks = self._ranks, None
            is_stale = ranks is None
            if ranks is None or ranks.clears != ring.clears:
                ranks = Ranks(ring)
            hints, self._hinted = list(self._hints), 0
            self._drop(hints)
            first, written = ring.first, ring.written
            alive = max(written - ring.capacity, 0)
            fresh = np.arange(max(ranks.written, alive), written) % ring.capacity
            waiting = waiting_slots(kept)  # before priorities are read: later ones are read again
            changed = np.unique(np.concatenate([fresh, *hints]))
            ranks.move(changed, kept.get(changed))
            if ring.lookahead or first > alive:  # rows that are complete now, and rows that left
                left_out = np.arange(max(ranks.first, alive), first) % ring.capacity
                for late in (left_out, ranks.waiting):  # one by one, as a slot may be in both
                    ranks.move(late, kept.get(late), told=False)
                ranks.waiting = waiting
            if ranks.counts.sum() != len(ring):  # rows were deleted
                ranked = np.flatnonzero(ranks.groups != NONE)
                ranks.move(ranked, kept.get(ranked), told=False)
            ranks.first, ranks.written = first, written
            self._weigh_pending(ranks)
            is_drawn = 0 < n <= ranks.counts.sum()
            if is_drawn:  # not before: a save in between would count a slot twice
                ranks.changes += len(np.unique(ranks.pending))
            if is_stale or (is_drawn and self._is_due(ranks)):
                ranks = self._sort()
            elif is_drawn:
                ranks.pending = NO_SLOTS
            if self._ranks is None:  # else a call within this one has brought it up to date
                self._ranks = ranks

    def _weigh_pending(self, ranks: Ranks) -> None:
        """Give the slots that changed since the last draw the mean weights of their groups."""
        groups = ranks.groups[ranks.pending]
        slots = ranks.pending[groups != NONE]
        sums = np.interp(np.append(0, ranks.counts.cumsum()), *self._sums)
        means = np.diff(sums) / np.maximum(ranks.counts, 1)
        weights = means[groups[groups != NONE]]
        self._set(handles(self.rows.ring, slots), weights)

    def _set(self, rows: NDArray[np.int64], weights: Floats) -> None:
        """Set the weights of rows, by their handles: rows that are gone by now are skipped."""
        self.rows.update(rows, np.zeros(len(rows)), weights, True)

    def _is_due(self, ranks: Ranks) -> bool:
        """Whether a sort is due: as many slots have changed as the last sort had.

        A quarter of them suffices if the sum of all weights differs by a quarter from that of the
        ranks.
        """
        if ranks.changes == 0 or HASTE * ranks.changes < ranks.ordered:
            return False
        total, expected = self.rows.total, np.interp(ranks.counts.sum(), *self._sums)
        apart = max(total, expected) >= (1 + STRAY) * min(total, expected)
        return bool(ranks.changes >= ranks.ordered or apart)

    def _sort(self) -> Ranks:
        """Give each slot the weight of its exact rank, and divide all into groups.

        Slots of equal priority get the mean of their weights, and stay together.
        """
        ring = self.rows.ring
        ranks, first, written = Ranks(ring), ring.first, ring.written
        names, waiting = handles(ring, np.arange(ring.stored)), waiting_slots(self.kept)
        kept = self.kept.get(np.arange(len(names)))
        slots = np.flatnonzero(kept)
        slots = slots[np.argsort(-kept[slots])]
        ranked, n = kept[slots], len(slots)
        if n > 0:
            firsts = np.flatnonzero(np.diff(ranked, prepend=np.inf))
            counts = np.diff(firsts, append=n)
            means = np.add.reduceat(np.arange(1.0, n + 1) ** -self.alpha, firsts) / counts
            self._set(names[slots], np.repeat(means, counts))
            bottoms = ranked[np.minimum(self._sums[0][1:], n).astype(np.intp) - 1]
            ranks = Ranks(ring, np.unique(bottoms)[:0:-1])
        ranks.move(slots, ranked)
        ranks.first, ranks.written = first, written
        ranks.ordered, ranks.changes, ranks.pending, ranks.waiting = n, 0, NO_SLOTS, waiting
        return ranks

    # ------------------------------------------------------------------ drawing

    def draw(
        self,
        ring: Ring,
        n: int,
        rng: np.random.Generator,
        *,
        replace: bool,
        beta: float | Schedule | None = None,
    ) -> tuple[Slots, Extra]:
        """See ``Prioritized.draw``."""
        beta = value_at(self.beta if beta is None else beta, self.draws, "beta", 0)
        self._follow(1 if replace else max(n, 1))
        found = super().draw(ring, n, rng, replace=replace, beta=beta)
        self.kept.drawn = self.rows.drawn
        return found

    def draw_starts(
        self,
        starts: Rows,
        n: int,
        rng: np.random.Generator,
        *,
        replace: bool,
        beta: float | Schedule | None = None,
    ) -> tuple[Slots, Extra]:
        """See ``Prioritized.draw_starts``."""
        beta = value_at(self.beta if beta is None else beta, self.draws, "beta", 0)
        self._follow(1 if replace else max(n, 1))
        found = super().draw_starts(starts, n, rng, replace=replace, beta=beta)
        self.kept.drawn = self.rows.drawn
        return found

    def row_weights(self, slots: Slots) -> Floats:
        """See ``Sampler.row_weights``."""
        self._follow()
        return super().row_weights(slots)

    def row_priorities(self, slots: Slots) -> Floats:
        """See ``Sampler.row_priorities``."""
        kept = self.kept.get(slots)
        return np.where(kept > LEAST, kept / SCALE, 0.0)

    # ------------------------------------------------------------------ priorities

    def _weighs_all(self) -> bool:
        return True

    def _weigh(self, priorities: Floats) -> Floats:
        found: Floats = np.maximum(priorities * SCALE, LEAST)
        return found

    def prepare(self, priorities: ArrayLike) -> Beside:
        """See ``PrioritySampler.prepare``: ``add`` writes rows and priorities in one step."""
        values = read_priorities(priorities)
        return self.kept.beside(values, self._weigh(values))

    def set_new(self, first: int, clears: int, priorities: Floats) -> None:
        """See ``PrioritySampler.set_new``."""
        hint = np.arange(first, first + len(priorities)) % self.kept.ring.capacity
        self._hint(hint)
        self.kept.set_new(first, clears, priorities, self._weigh(priorities))
        self._hint(hint)

    def update_priorities(self, indexes: ArrayLike, priorities: ArrayLike) -> None:
        """Set the priorities of rows; see ``PrioritizedReplayBuffer.update_priorities``."""
        values = read_priorities(priorities)
        given = read_indexes(indexes, len(values))
        hint, _ = find_rows(self.kept.ring, given)
        update = Update()
        self._updating.append(weakref.ref(update))
        self._hint(hint)
        self.kept.update(given, values, self._weigh(values), self.check_for_update)
        self._hint(hint)

    def _hint(self, slots: Slots) -> None:
        """Have slots looked at: before a change, as it may be interrupted, and after it.

        A draw in another thread may look before the change.
        """
        self._hints.append(slots)
        self._hinted += len(slots)
        if self._hinted > self.kept.ring.capacity:
            with self._lock:  # waits for a sort, or hints would pile up
                self._merge_hints()

    def _merge_hints(self) -> None:
        """Keep each slot once. Not within ``_follow``, which takes the hints."""
        hints, self._hinted = list(self._hints), 0
        if hints and self._ranks is not None:
            self._hints.append(np.unique(np.concatenate(hints)))
            self._drop(hints)

    def _drop(self, hints: list[Slots]) -> None:
        """Drop hints, unless a signal handler has drawn, and taken them, in the meantime."""
        for hint in hints:
            with suppress(IndexError):
                if self._hints[0] is hint:
                    self._hints.popleft()

    def get_max_priority(self) -> float:
        """The priority that new rows get: the greatest since ``clear``, at least 1.0."""
        return self.kept.largest_priority

    def _stats(self) -> dict[str, float]:
        return {"updates": self.kept.given, "late_updates": self.kept.late}

    def check_rows(self, ring: Ring, slots: Slots) -> None:
        """See ``Sampler.check_rows``: also checks the groups, unless threads set priorities."""
        super().check_rows(ring, slots)
        check_weights(self.kept, ring.capacity, slots)
        with self._lock:
            given = self.kept.given
            is_updated = any(update() is not None for update in list(self._updating))
            self._follow()
            ranks, kept = self._ranks, self.kept.get(np.arange(ring.capacity))
            if is_updated or self.kept.given != given or ranks is None:
                return
            groups = ranks.groups_of(kept)
            wrong = np.flatnonzero(ranks.groups != groups)[:1]
            expect(not wrong.size, f"group of slot {wrong}", groups[wrong], ranks.groups[wrong])
            counts = np.bincount(groups[groups != NONE], minlength=len(ranks.counts))
            expect((counts == ranks.counts).all(), "slots of groups", counts, ranks.counts)


def waiting_slots(kept: RowWeights) -> Slots:
    """The slots of rows whose priority waits for their n-step window."""
    return (kept.waiting()[0] % kept.ring.capacity).astype(np.intp)


def restored(saved: Mapping[str, Any], kept: RowWeights, rows: RowWeights) -> Ranks | None:
    """Saved ranks, whose weights ``rows`` gets; None if they do not fit the priorities."""
    ring = rows.ring
    slots = np.arange(ring.stored)
    priorities = kept.get(slots)
    values: tuple[Any, ...] = tuple(saved.get(name) for name in ("weights", *SAVED))
    weights, bottoms, ordered, changes, pending = values
    arrays = ((weights, np.float64), (bottoms, np.float64), (pending, np.intp))
    if (
        not all(type(one) is np.ndarray and one.dtype == kind for one, kind in arrays)
        or not all(type(one) is int and 0 <= one < 1 << 62 for one in (ordered, changes))
        or weights.shape != slots.shape
        or not ((weights >= 0.0) & (weights <= 1.0)).all()
        or not ((weights > 0.0) == (priorities > 0.0)).all()
        or bottoms.ndim != 1
        or not len(bottoms) < NONE
        or not (bottoms[:-1] > bottoms[1:]).all()
        or pending.ndim != 1
        or not ((pending >= 0) & (pending < len(slots))).all()
    ):
        return None
    ranks = Ranks(ring, bottoms)
    ranks.move(slots, priorities)
    ranks.first, ranks.written = ring.first, ring.written
    ranks.ordered, ranks.changes, ranks.pending = ordered, changes, pending
    ranks.waiting = waiting_slots(kept)
    rows.sync()
    rows.tree.set_range(0, weights)
    return ranks


def sums_of(capacity: int, alpha: float, bits: int) -> tuple[Floats, Floats]:
    """Edges of cells of ranks, and the sum of the weights of all ranks before each edge.

    All ranks of a cell have the weight of its middle, so sums inside a cell are linear. A cell has
    one rank up to rank ``2 ** (bits + 1)``. Beyond that, a doubled rank doubles its width.
    """
    ends, width = [0.0], 1
    while ends[-1] < capacity:
        if ends[-1] >= width << (bits + 1):
            width *= 2
        ends.append(ends[-1] + width)
    cells = np.array(ends)
    shares = ((cells[:-1] + 1 + cells[1:]) / 2) ** -alpha
    return cells, np.append(0.0, np.cumsum(np.diff(cells) * shares))
