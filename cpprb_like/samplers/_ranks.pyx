"""Ranks of the slots by their priorities, and the weight ``rank ** -alpha`` of each.

Slots are sorted now and then (Schaul et al., 2016, appendix B.2.1): when as many priorities have
changed as there were slots at the last sort, or a quarter as many where the sum of the weights is
off. A sort divides the slots into groups of neighbouring ranks, 64 for each doubling of the rank.
Between two sorts a slot whose priority changes moves to another group, and gets the mean weight of
its ranks: its rank to a few percent. Compiled because each update searches two groups. Not here:
the sum tree over the weights, and which rows of a ring have a rank (``_row_weights``).
"""

cimport cython
cimport numpy as cnp
from libc.math cimport INFINITY, NAN

from cpprb_like._c.arrays cimport c_index
from cpprb_like._c.copying cimport FETCHED, c_prefetch
from cpprb_like._c.typedefs cimport float64_t, int64_t, intp_t

import numpy as np

cnp.import_array()

cdef enum:
    BITS = 6                 # 64 groups for each doubling: ranks are exact to 1 part in 64 to 128
    HASTE = 4                # factor by which a sort comes earlier where priorities drift

cdef float64_t STRAY = 0.25  # share of the weight of all ranks; below 0.05 while priorities do not drift


cdef inline intp_t c_cell_of(int64_t rank, intp_t bits) noexcept nogil:
    cdef intp_t shift = 0
    while rank >> shift >> (bits + 1):
        shift += 1
    return (shift << bits) + <intp_t> (rank >> shift)


def groups_nbytes(capacity):
    """Bytes that ``Ranks`` allocates: 3 KiB for each doubling of ``capacity``."""
    cdef intp_t count = c_cell_of(max(c_index(capacity), 1), BITS) + 1
    return 8 * (6 * count + 3)


@cython.final
cdef class Ranks:
    """Ranks of slots, and the weights of the ranks. The greatest priority has rank 1.

    Slots of equal priority have equal weights: the mean of ``rank ** -alpha`` over their ranks.
    ``keys`` is memory for the priority of each slot, to which only this object writes. There are
    ``2 ** bits`` groups for each doubling of the rank. Each call holds the interpreter lock.
    """

    def __cinit__(self, float64_t[::1] keys not None, float64_t alpha, intp_t bits=BITS):
        self.capacity = keys.shape[0]
        self.alpha = alpha
        self.keys = keys
        self.bits = bits
        cells = np.arange(self.c_cell(max(self.capacity, 1)) + 2)
        shifts = np.maximum((cells >> bits) - 1, 0)
        grid = (cells - (shifts << bits)) << shifts
        # All ranks of a cell have the weight of the middle one.
        shares = ((grid[:len(grid) - 1] + 1 + grid[1:]) / 2.0) ** -alpha
        self.grid, self.shares = grid.astype(np.int64, copy=False), shares
        self.sums = np.concatenate([np.zeros(1), np.cumsum(np.diff(grid) * shares)])
        self.bottoms = np.zeros(len(shares), np.float64)
        self.counts = np.empty(len(shares), np.int64)
        self.tree = np.empty(len(grid), np.int64)
        self.c_clear()

    def __len__(self):
        """Number of slots that have a rank."""
        return self.c_before(self.groups)

    @property
    def priorities(self):
        """The priority of each slot as a fresh array, NaN for a slot without a rank."""
        priorities = np.full(self.capacity, NAN)
        priorities[: self.known] = self.keys[: self.known]
        return priorities

    @property
    def group_bottoms(self):
        """The least priority of each group at the last sort, descending; -inf for the last group."""
        bottoms = np.array(self.bottoms[: self.groups])
        bottoms[len(bottoms) - 1] = -INFINITY
        return bottoms

    @property
    def group_counts(self):
        """Number of slots of each group."""
        return np.array(self.counts[: self.groups])

    # ------------------------------------------------------------------ weights of ranks

    cdef intp_t c_cell(self, int64_t rank) noexcept nogil:
        """The cell of ``rank + 1``."""
        return c_cell_of(rank, self.bits)

    cdef float64_t c_sum(self, int64_t rank) noexcept nogil:
        """Sum of the weights of the ranks up to this one."""
        cdef intp_t cell = self.c_cell(rank)
        if self.grid[cell] == rank:  # the last cell has no upper end
            return self.sums[cell]
        return self.sums[cell] + (rank - self.grid[cell]) * self.shares[cell]

    cdef float64_t c_weight(self, intp_t group) noexcept nogil:
        """The mean weight of the ranks of a group that has slots."""
        cdef int64_t before = self.c_before(group), count = self.counts[group]
        if count == 1:
            return self.shares[self.c_cell(before)]
        return (self.c_sum(before + count) - self.c_sum(before)) / count

    # ------------------------------------------------------------------ groups

    cdef intp_t c_group(self, float64_t priority) noexcept nogil:
        """The group of a priority: the number of greater bottoms, the last bottom left out."""
        cdef const float64_t* bottoms = &self.bottoms[0]
        cdef intp_t n = self.groups - 1, half
        if n == 0:
            return 0
        while n > 1:  # without branches, which would be mispredicted
            half = n >> 1
            bottoms += half * (priority < bottoms[half - 1])
            n -= half
        return (bottoms - &self.bottoms[0]) + (priority < bottoms[0])

    cdef void c_count(self, intp_t group, int64_t n) noexcept nogil:
        """Add n to the slots of a group."""
        self.counts[group] += n
        group += 1
        while group <= self.groups:
            self.tree[group] += n
            group += group & -group

    cdef int64_t c_before(self, intp_t group) noexcept nogil:
        """Number of slots of all groups before this one."""
        cdef int64_t count = 0
        while group > 0:
            count += self.tree[group]
            group -= group & -group
        return count

    # ------------------------------------------------------------------ changing

    cdef float64_t c_set(self, intp_t slot, float64_t priority) noexcept nogil:
        """Set the priority of a slot, NaN for none, and return its weight, 0.0 for none."""
        cdef float64_t old
        while self.known <= slot:
            self.keys[self.known] = NAN
            self.known += 1
        old = self.keys[slot]
        self.keys[slot] = priority + 0.0  # never minus zero
        return self.c_move(old, priority)

    cdef float64_t c_move(self, float64_t old, float64_t priority) noexcept nogil:
        """Move a slot from the group of its old priority to that of the new one; return its weight."""
        cdef intp_t group = self.c_group(priority), left
        self.changes += old == old or priority == priority
        if old == old:
            left = self.c_group(old)
            if left == group and priority == priority:
                return self.c_weight(group)
            self.c_count(left, -1)
        if priority != priority:
            return 0.0
        self.c_count(group, 1)
        return self.c_weight(group)

    cdef void c_set_many(self, const intp_t* slots, float64_t* values, intp_t n) noexcept nogil:
        """Set the priorities of slots one after another; ``values`` get their weights."""
        cdef intp_t k, start = 0, stop
        while start < n:
            stop = min(start + FETCHED, n)
            for k in range(start, stop):
                c_prefetch(&self.keys[slots[k]])
            for k in range(start, stop):
                values[k] = self.c_set(slots[k], values[k])
            start = stop

    cdef void c_clear(self) noexcept nogil:
        """Remove all ranks."""
        self.clears += 1
        self.known = 0
        self.ordered = 0
        self.changes = 0
        self.groups = 1
        self.c_forget_groups()

    cdef void c_forget_groups(self) noexcept nogil:
        """Set the number of slots of each group to 0."""
        self.counts[:] = 0
        self.tree[:] = 0

    # ------------------------------------------------------------------ sorting

    cdef bint c_is_due(self, float64_t total) noexcept nogil:
        """Whether a sort is due: as many priorities have changed as the last one sorted.

        A quarter of these suffices if ``total`` differs by a quarter from the weight of all ranks.
        """
        cdef float64_t expected
        if self.changes == 0 or HASTE * self.changes < self.ordered:
            return False
        expected = self.c_sum(self.c_before(self.groups))
        return self.changes >= self.ordered or not (
            total < (1.0 + STRAY) * expected and expected < (1.0 + STRAY) * total
        )

    cdef int c_sort(self, float64_t* weights) except -1:
        """Give each slot that has a rank the weight of its exact rank, and divide all into groups.

        ``weights`` are those of the slots. The sort works on a copy of the priorities, as NumPy may
        release the interpreter lock. Priorities that other threads set in that time are ranked after
        the sort, as after any. Nothing is written if the ranks were cleared in that time.
        """
        cdef int64_t clears = self.clears
        cdef intp_t k, above
        cdef float64_t[::1] keys = np.array(self.keys[: self.known]), found, bottoms
        cdef const intp_t[::1] slots
        cdef int64_t[::1] counts
        slots, found, bottoms, counts = rank_all(np.asarray(keys), self.alpha, np.asarray(self.grid))
        if self.clears != clears:
            return 0
        for k in range(slots.shape[0]):
            weights[slots[k]] = found[k]
        self.c_forget_groups()
        self.groups = counts.shape[0]
        for k in range(self.groups):
            self.bottoms[k], self.counts[k] = bottoms[k], counts[k]
            self.tree[k + 1] += counts[k]
            above = k + 1 + ((k + 1) & -(k + 1))
            if above <= self.groups:
                self.tree[above] += self.tree[k + 1]
        self.ordered = slots.shape[0]
        self.changes = 0
        self.c_set_changed(weights, keys)
        return 0

    cdef void c_set_changed(self, float64_t* weights, float64_t[::1] keys) noexcept nogil:
        """Set the slots again whose priority changed since ``keys`` was copied for a sort."""
        cdef intp_t slot
        cdef float64_t priority, sorted_as
        for slot in range(self.known):
            priority, sorted_as = self.keys[slot], keys[slot] if slot < keys.shape[0] else NAN
            if priority != sorted_as and (priority == priority or sorted_as == sorted_as):
                weights[slot] = self.c_move(sorted_as, priority)

    # ------------------------------------------------------------------ saving

    def left_behind(self, n):
        """The first n priorities that an earlier object wrote to this memory."""
        return np.array(self.keys[:n])

    def save(self):
        """State of the groups, without the priorities."""
        return np.array(self.bottoms[: self.groups]), self.ordered, self.changes

    def load(self, bottoms, ordered, changes):
        """Restore groups that ``save`` of an object with equal parameters returned.

        Raises ``ValueError`` for a state that ``save`` cannot return.
        """
        bottoms = np.asarray(bottoms)
        if (
            bottoms.dtype != np.float64 or bottoms.ndim != 1
            or not 1 <= len(bottoms) <= self.shares.shape[0]
            or not ((bottoms >= 0.0).all() and (bottoms[:len(bottoms) - 1] > bottoms[1:]).all())
        ):
            raise ValueError(f"groups: expected priorities that fall, got {bottoms!r}")
        if not (0 <= ordered <= self.capacity and 0 <= changes < 1 << 62):
            raise ValueError(f"rows at the last sort and changes since: got {ordered}, {changes}")
        self.c_clear()
        self.groups = len(bottoms)
        np.asarray(self.bottoms)[: self.groups] = bottoms
        self.ordered, self.changes = ordered, changes


def rank_all(keys, alpha, grid):
    """The slots that have a rank in falling order of priority, their weights, and their groups.

    ``keys`` are the priorities of all slots, NaN for no rank. Slots of equal priority get the mean of
    their weights. A group has the ranks of a cell of ``grid``, but slots of equal priority stay
    together; of each the least priority and the number of slots are returned.
    """
    slots = np.flatnonzero(keys == keys)
    slots = slots[np.argsort(-keys[slots])]
    ranked = keys[slots]
    n = len(ranked)
    if n == 0:
        return slots, ranked, np.zeros(1), np.zeros(1, np.int64)
    firsts = np.flatnonzero(np.diff(ranked, prepend=np.inf))
    counts = np.diff(firsts, append=n)
    means = np.add.reduceat(np.arange(1.0, n + 1.0) ** -alpha, firsts) / counts
    bottoms = ranked[np.unique(np.minimum(grid[1:], n) - 1)]
    bottoms = bottoms[np.diff(bottoms, prepend=np.inf) != 0.0]
    stops = np.searchsorted(-ranked, -bottoms, side="right")
    return slots, np.repeat(means, counts), bottoms, np.diff(stops, prepend=0)
