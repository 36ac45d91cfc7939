"""``Masses``: weights of rows times the mass that a rule gives each of them.

A rule reads values of the row, and masses are 0 for rows that it leaves out. Masses of new and edited
rows are computed before a draw (``stale``, ``put``): so ``add`` and ``update`` cost nothing. Changed
weights are followed by a log. Not here: rules, and when masses are computed (``_ruled``).
"""

cimport cython
cimport numpy as cnp

from cpprb_like._c.arrays cimport c_check_array
from cpprb_like._c.copying cimport FETCHED, c_prefetch
from cpprb_like._core cimport CLEARS, WRITTEN, Ring, c_stored
from cpprb_like._machine.aligned cimport c_numbers
from cpprb_like._segment_tree cimport SumTree
from cpprb_like.samplers._row_weights cimport RowWeights
from cpprb_like._c.typedefs cimport float64_t, int64_t, intp_t

import numpy as np

cnp.import_array()

cdef enum:
    LEAST_LOG = 1024         # least entries of a log
    ROWS_PER_ENTRY = 8       # rows for each entry of a log


@cython.final
cdef class Masses(TreeDraws):
    """A sum tree of weights times masses, of the rows of a ring."""

    def __cinit__(self, Ring ring not None, SumTree tree not None, RowWeights weights):
        cdef intp_t size = LEAST_LOG
        while size < ring.capacity // ROWS_PER_ENTRY:
            size *= 2
        self.ring, self.tree, self.weights = ring, tree, weights
        self.masses = np.zeros(ring.capacity)
        if ring.edited is None:
            ring.edited = np.empty(size, np.intp)
        if weights is not None and weights.changes is None:
            weights.changes = np.empty(size, np.intp)
        self.clears = -1

    def stale(self):
        """Slots of the present rows whose masses have to be computed, and a moment for ``put``.

        Slots are those of rows that were added or edited since the last ``put``, in no order; an edited
        row may come twice. Without any the result is None.
        """
        cdef Ring ring = self.ring
        cdef int64_t written = ring.state[WRITTEN], edits = ring.n_edited - self.edited
        cdef int64_t row, first = max(self.seen, written - c_stored(ring))
        cdef intp_t k, count = 0, n
        cdef const int64_t* entry
        cdef bint all_rows = (
            self.clears != ring.state[CLEARS] or edits > ring.edited.shape[0]
            or ring.n_hidden - self.hidden > ring.hidden.shape[0]
        )
        if all_rows:
            first, edits = written - c_stored(ring), 0
        elif first == written and edits == 0 and self.hidden == ring.n_hidden:
            return None
        n = <intp_t> (written - first + edits)
        cdef cnp.ndarray found = c_numbers(1, &n, cnp.NPY_INTP)
        cdef intp_t* slots = <intp_t*> cnp.PyArray_DATA(found)
        for row in range(first, written):
            slots[count] = <intp_t> (row % ring.capacity)
            if row < ring.c_first():
                self.c_take_out(slots[count])
            else:
                count += self.c_has_row(slots[count])
        for k in range(edits):
            slots[count] = ring.edited[(self.edited + k) & (ring.edited.shape[0] - 1)]
            count += self.c_has_row(slots[count])
        while not all_rows and self.hidden < ring.n_hidden:  # a follower logs no edits
            entry = &ring.hidden[self.hidden & (ring.hidden.shape[0] - 1), 0]
            for row in range(max(entry[0], written - c_stored(ring)), min(entry[1], written - 1) + 1):
                self.c_has_row(<intp_t> (row % ring.capacity))
            self.hidden += 1
        moment = written, ring.state[CLEARS], ring.n_edited, ring.n_hidden, all_rows
        return found[:count], moment

    cdef bint c_has_row(self, intp_t slot) noexcept:
        """Whether a slot has a row; if not, its mass becomes 0."""
        if slot < c_stored(self.ring) and not self.ring.c_is_absent(slot):
            return True
        self.c_take_out(slot)
        return False

    cdef void c_take_out(self, intp_t slot) noexcept nogil:
        """Set the mass of a slot to 0."""
        if self.masses[slot] != 0.0:
            self.masses[slot] = 0.0
            self.c_set_leaf(slot)
            self.tree.c_sum_above(slot, slot)

    def put(self, cnp.ndarray slots not None, cnp.ndarray masses not None, tuple moment not None):
        """Set the masses of rows; ``slots`` and ``moment`` are from ``stale``.

        Returns false, and changes nothing, if the ring was cleared since.
        """
        cdef Ring ring = self.ring
        cdef intp_t k, n = cnp.PyArray_DIM(slots, 0)
        c_check_array(masses, "masses", cnp.NPY_FLOAT64, n)
        cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(slots)
        cdef const float64_t* given = <const float64_t*> cnp.PyArray_DATA(masses)
        cdef int64_t written = moment[0], clears = moment[1], edited = moment[2], hidden = moment[3]
        cdef bint all_rows = moment[4]
        if ring.state[CLEARS] != clears:
            return False
        self.c_sync_weights()
        if all_rows:
            self.masses[:] = 0.0
            self.cuts_only = True
            self.tree.c_clear_first(self.tree.capacity)
        for k in range(n):
            self.masses[values[k]] = given[k]
            self.cuts_only = self.cuts_only and (given[k] == 0.0 or given[k] == 1.0)
            self.c_set_leaf(values[k])
        if n:
            self.tree.c_set(values, NULL, n)
        self.seen, self.clears, self.edited, self.hidden = written, clears, edited, hidden
        return True

    def forget(self):
        """Have ``stale`` return all rows."""
        self.clears = -1

    def at(self, cnp.ndarray slots not None):
        """The masses of slots, as ``put`` set them: without weights. 0 for rows that the ring leaves out."""
        return np.asarray(self.masses)[slots]

    cdef void c_set_leaf(self, intp_t slot) noexcept nogil:
        """Set a leaf: the nodes above it need new sums."""
        cdef float64_t leaf = self.masses[slot]
        if self.weights is not None:
            leaf *= self.weights.tree.c_level(0)[slot]
        self.tree.c_level(0)[slot] = min(leaf, self.tree.largest) + 0.0

    cdef void c_sync_weights(self) noexcept nogil:
        """Follow rows that left, and weights that changed, since the last call."""
        cdef intp_t[FETCHED] slots
        cdef intp_t k, n
        cdef intp_t capacity = self.ring.capacity
        cdef int64_t row, first = max(self.oldest, self.ring.state[WRITTEN] - capacity)
        if self.clears == self.ring.state[CLEARS]:
            for row in range(first, min(self.ring.c_first(), self.seen)):  # rows that the ring leaves out
                self.c_take_out(<intp_t> (row % capacity))
        self.oldest = self.ring.c_first()
        if self.weights is None:
            return
        self.weights.c_sync_weights()
        if self.weights.n_changes - self.changes > self.weights.changes.shape[0]:
            for k in range(c_stored(self.ring)):
                self.c_set_leaf(k)
            self.tree.c_rebuild_nodes()
            self.changes = self.weights.n_changes
        while self.changes < self.weights.n_changes:
            n = min(self.weights.n_changes - self.changes, FETCHED)
            for k in range(n):
                slots[k] = self.weights.changes[(self.changes + k) & (self.weights.changes.shape[0] - 1)]
                c_prefetch(&self.masses[slots[k]])
                c_prefetch(self.weights.tree.c_level(0) + slots[k])
                c_prefetch(self.tree.c_level(0) + slots[k])
            for k in range(n):
                self.c_set_leaf(slots[k])
            self.tree.c_set(slots, NULL, n)
            self.changes += n
