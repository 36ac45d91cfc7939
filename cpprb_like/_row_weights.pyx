"""The weights of a ring's rows, brought up to date when somebody asks for them.

A row that is added costs nothing here. The next draw or update sees how many rows have come, gives
them their weight, and sums the nodes above them once. Compiled because it looks at every new row
and every drawn one. Not here: how weights are summed and searched (``_segment_tree``), and how a
priority becomes a weight (``priorities``).
"""

cimport cython
cimport numpy as cnp

from cpprb_like._core cimport REVISION, WRITTEN, Ring
from cpprb_like._segment_tree cimport MaxTree, MinTree, SumTree
from cpprb_like._typedefs cimport float64_t, int64_t, intp_t, uint64_t

import numpy as np

cnp.import_array()


@cython.final
cdef class RowWeights:
    """Weights of the rows of a ring.

    Absent rows, and rows that are no longer in the ring, weigh nothing. Any number of threads may
    call, and add to the ring meanwhile.

    Parameters
    ----------
    ring : Ring
        The rows.
    tree : SumTree
        Of as many leaves as the ring has slots, and all zero.
    minima : MinTree
        Over the leaves of ``tree``.
    maxima : MaxTree, optional
        The same. With it, new rows weigh as much as the heaviest row in the ring; without, as much
        as the heaviest so far.
    first : float
        What new rows weigh as long as no weight was given.
    """

    def __cinit__(
        self, Ring ring not None, SumTree tree not None, MinTree minima not None, MaxTree maxima,
        float64_t first,
    ):
        self.ring = ring
        self.tree = tree
        self.minima = minima
        self.maxima = maxima
        self.first = self.newest_weight = first
        self.greatest_priority = 1.0
        self.revision = ring.state[REVISION]

    # ------------------------------------------------------------------ following the ring

    cdef int c_begin(self) noexcept:
        """Forget all weights if the ring was cleared."""
        if self.revision == self.ring.state[REVISION]:
            return 0
        self.revision = self.ring.state[REVISION]
        self.tree.c_clear(0)
        self.base += (self.summed + self.ring.capacity - 1) // self.ring.capacity * (
            self.ring.capacity
        )
        self.filled = self.summed = self.drawn = 0
        self.newest_weight = self.first
        self.greatest_priority = 1.0
        return 0

    cdef int c_sync(self, int64_t stop) except -1:
        """Bring the tree up to date for the rows before ``stop``."""
        if self.revision == self.ring.state[REVISION] and self.summed == stop:
            return 0
        cdef bint locked = self.tree.c_enter(0)
        self.c_sync_entered(stop)
        if locked:
            self.tree.c_leave()
        return 0

    cdef void c_sync_entered(self, int64_t stop) noexcept:
        """As ``c_sync``, inside the gate of the tree."""
        self.c_begin()
        self.c_sync_to(stop)

    cdef void c_sync_to(self, int64_t stop) noexcept nogil:
        """Fill the leaves of the rows before ``stop``, then sum the nodes above those that are new."""
        cdef intp_t capacity = self.ring.capacity
        cdef int64_t row
        self.summed = max(self.summed, stop - capacity)
        self.c_fill(stop)
        if self.summed >= stop:
            return
        if self.ring.c_absent():
            for row in range(self.summed, stop):
                if self.ring.c_is_absent(<intp_t> (row % capacity)):
                    self.tree.c_level(0)[row % capacity] = 0.0
        cdef intp_t first = <intp_t> (self.summed % capacity), n = <intp_t> (stop - self.summed)
        cdef intp_t run = min(n, capacity - first)
        self.tree.c_sum_above(1, first, first + run - 1)
        if run < n:
            self.tree.c_sum_above(1, 0, n - run - 1)
        self.summed = stop

    cdef void c_fill(self, int64_t stop) noexcept nogil:
        """Give a weight to the rows before ``stop`` that have none yet."""
        cdef intp_t capacity = self.ring.capacity
        cdef float64_t* leaves = self.tree.c_level(0)
        cdef float64_t weight = self.newest_weight
        cdef intp_t slot
        cdef int64_t row
        if self.filled >= stop:
            return
        if self.maxima is not None:
            weight = self.maxima.c_level(self.maxima.shape.levels - 1)[0]
            weight = weight if weight > 0.0 else self.first
        row = max(self.filled, stop - capacity)
        slot = <intp_t> (row % capacity)
        while row < stop:
            leaves[slot] = weight
            slot = slot + 1 if slot + 1 < capacity else 0
            row += 1
        self.filled = stop

    def follow(self):
        """Bring the weights up to date.

        To be called before and after absent rows are added, if there are ``maxima``: the heaviest
        row may leave the ring while rows come that weigh nothing. Otherwise it is never needed.
        """
        self.c_sync(self.ring.state[WRITTEN])

    def stage(
        self, int64_t first, int64_t revision, cnp.ndarray priorities, cnp.ndarray weights
    ):
        """Note the weights of the rows from row id ``first`` on, which have just been written.

        ``priorities`` and ``weights`` are dense 1-d arrays of float64 of the same length. If the
        ring has another revision by now, the rows are gone.
        """
        cdef const float64_t* values = <const float64_t*> cnp.PyArray_DATA(priorities)
        cdef const float64_t* given = <const float64_t*> cnp.PyArray_DATA(weights)
        cdef intp_t k, n = cnp.PyArray_DIM(weights, 0)
        cdef bint locked = self.tree.c_enter(0)
        if self.ring.state[REVISION] == revision:
            self.c_begin()
            if self.maxima is not None:
                self.c_sync_to(first)
            self.c_fill(first)
            self.c_write(first, given, n)
            for k in range(n):
                if self.ring.c_absent() and self.ring.c_is_absent(
                    <intp_t> ((first + k) % self.ring.capacity)
                ):
                    continue
                self.newest_weight = max(self.newest_weight, given[k])
                self.greatest_priority = max(self.greatest_priority, values[k])
            if self.maxima is not None:
                self.c_sync_to(self.ring.state[WRITTEN])
        if locked:
            self.tree.c_leave()

    cdef void c_write(self, int64_t first, const float64_t* weights, intp_t n) noexcept nogil:
        """Write the leaves of n rows, and note that the nodes above them are to be summed."""
        cdef float64_t* leaves = self.tree.c_level(0)
        cdef intp_t capacity = self.ring.capacity
        cdef int64_t row
        for row in range(max(first, self.ring.state[WRITTEN] - capacity), first + n):
            leaves[row % capacity] = weights[row - first] + 0.0  # never minus zero
        self.filled = max(self.filled, first + n)
        self.summed = min(self.summed, first)

    # ------------------------------------------------------------------ drawing and updating

    def draw(self, n, rng, bint replace, bint stratified):
        """Draw n slots, and return them and their weights.

        See ``SumTree.draw`` and, without ``replace``, ``SumTree.draw_distinct``.
        """
        cdef int64_t written = self.ring.state[WRITTEN]
        self.c_sync(written)
        if replace:
            drawn = self.tree.draw(n, rng, stratified)
        else:
            drawn = self.tree.draw_distinct(n, rng)
        self.drawn = written
        return drawn

    @property
    def least(self):
        """The weight of the lightest row that weighs something; infinity if none does."""
        self.c_sync(self.ring.state[WRITTEN])
        return self.minima.min

    @property
    def total(self):
        """The weight of all rows."""
        self.c_sync(self.ring.state[WRITTEN])
        return self.tree.total

    @property
    def newest(self):
        """What the next row will weigh."""
        self.c_sync(self.ring.state[WRITTEN])
        if self.maxima is None:
            return self.newest_weight
        return self.maxima.max or self.first

    @property
    def largest_priority(self):
        """The greatest priority that any row was given, 1.0 at first."""
        self.c_sync(self.ring.state[WRITTEN])
        return self.greatest_priority

    def get(self, cnp.ndarray slots):
        """The weights of the slots, a dense 1-d array of intp."""
        self.c_sync(self.ring.state[WRITTEN])
        return self.tree.get(slots)

    def tag(self, cnp.ndarray slots):
        """Numbers of uint64 that tell the rows at these slots from all others there will be.

        Modulo the capacity they are the slots; they are no slots themselves.
        """
        cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(slots)
        cdef intp_t k, n = cnp.PyArray_DIM(slots, 0)
        cdef cnp.ndarray tags = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_UINT64)
        cdef uint64_t* out = <uint64_t*> cnp.PyArray_DATA(tags)
        for k in range(n):
            out[k] = self.base + self.ring.capacity + self.c_row_at(values[k])
        return tags

    cdef int64_t c_row_at(self, intp_t slot) noexcept nogil:
        """The row id of the row in a slot that is in use."""
        cdef int64_t last = self.ring.state[WRITTEN] - 1
        return last - (last - slot) % self.ring.capacity

    def update(
        self, cnp.ndarray indexes, cnp.ndarray priorities, cnp.ndarray weights, bint tagged
    ):
        """Set the weights of rows: of duplicates the last wins.

        ``indexes`` are slots, as uint64. If ``tagged``, they may be tags too; rows that were
        overwritten since they got their tag are passed over, and slots that were overwritten since
        the last draw. Raises ``IndexError`` for a slot that holds no step; then nothing changes.
        All arrays are dense and of the same length.
        """
        cdef intp_t n = cnp.PyArray_DIM(indexes, 0), count
        cdef cnp.ndarray slots = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_INTP)
        cdef cnp.ndarray kept = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_FLOAT64)
        cdef Update change
        change.indexes = <const uint64_t*> cnp.PyArray_DATA(indexes)
        change.priorities = <const float64_t*> cnp.PyArray_DATA(priorities)
        change.weights = <const float64_t*> cnp.PyArray_DATA(weights)
        change.slots = <intp_t*> cnp.PyArray_DATA(slots)
        change.kept = <float64_t*> cnp.PyArray_DATA(kept)
        change.heaviest = self.newest_weight
        change.greatest_priority = self.greatest_priority
        cdef bint locked = self.tree.c_enter(0)
        self.c_sync_entered(self.ring.state[WRITTEN])
        count = self.c_find_rows(&change, n, tagged)
        if count >= 0:
            self.tree.c_set(change.slots, change.kept, count)
            self.newest_weight = change.heaviest
            self.greatest_priority = change.greatest_priority
        if locked:
            self.tree.c_leave()
        if count < 0:
            wrong = -1 - count
            raise IndexError(
                f"indexes[{wrong}]: expected a slot from 0 to {self.ring.c_stored() - 1} that "
                f"holds a step, got {indexes[wrong]}"
            )

    cdef intp_t c_find_rows(self, Update* change, intp_t n, bint tagged) noexcept nogil:
        """Collect the slots to set and their weights; how many. Below 0: one holds no step."""
        cdef intp_t k, count = 0, slot
        cdef int64_t row, written = self.ring.state[WRITTEN]
        cdef uint64_t index, capacity = self.ring.capacity
        for k in range(n):
            index = change.indexes[k]
            if index < capacity:
                slot = <intp_t> index
                if slot >= self.ring.c_stored() or self.ring.c_is_absent(slot):
                    return -1 - k
                if tagged and self.drawn and self.c_row_at(slot) >= self.drawn:
                    continue
            elif tagged and index - capacity < <uint64_t> (self.base + written):
                row = <int64_t> (index - capacity) - self.base
                if row < 0 or row < written - self.ring.capacity:
                    continue
                slot = <intp_t> (row % self.ring.capacity)
                if self.ring.c_is_absent(slot):
                    return -1 - k
            else:
                return -1 - k
            change.slots[count] = slot
            change.kept[count] = change.weights[k]
            change.heaviest = max(change.heaviest, change.weights[k])
            change.greatest_priority = max(change.greatest_priority, change.priorities[k])
            count += 1
        return count

    # ------------------------------------------------------------------ saving

    def save(self):
        """All that a new object over an equal ring needs to go on like this one."""
        self.c_sync(self.ring.state[WRITTEN])
        leaves = np.asarray(self.tree.nodes)[: self.ring.c_stored()].copy()
        rows = self.ring.capacity, self.ring.state[WRITTEN], self.ring.state[REVISION]
        return rows, leaves, self.newest_weight, self.greatest_priority, self.drawn, self.base

    def load(self, saved):
        """Go on where another object was saved.

        A ring without rows may be another one: then this begins anew. Raises ``ValueError`` for
        another ring that has rows.
        """
        rows = self.ring.capacity, self.ring.state[WRITTEN], self.ring.state[REVISION]
        if rows != saved[0]:
            if len(self.ring):
                raise ValueError("the sampler keeps priorities of the rows of another buffer")
            return
        _, leaves, self.newest_weight, self.greatest_priority, self.drawn, self.base = saved
        np.asarray(self.tree.nodes)[: len(leaves)] = leaves
        self.tree.rebuild()
        self.revision = self.ring.state[REVISION]
        self.filled = self.summed = self.ring.state[WRITTEN]
