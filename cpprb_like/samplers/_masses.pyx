"""``Masses``: weights of rows times the mass that a rule gives each of them.

A rule reads values of the row, and masses are 0 for rows that it leaves out. Masses of new and edited
rows are computed before a draw (``stale``, ``put``): so ``add`` and ``update`` cost nothing. Changed
weights are followed by a log. Not here: rules, and when masses are computed (``_ruled``).
"""

cimport cython
cimport numpy as cnp
from libc.stdint cimport int8_t

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
        """Slots whose masses have to be computed, slots without a row, and a moment for ``put``.

        The first are those of rows that were added, oldest first, and then of rows that were edited, since
        the last ``put``; an edited row may come twice. The second are those whose rows have gone since.
        Without any the result is None.
        """
        cdef Ring ring = self.ring
        cdef int64_t written = ring.state[WRITTEN], edits = ring.n_edited - self.edited
        cdef int64_t oldest = written - c_stored(ring), kept = ring.c_first()
        cdef int64_t row, entry, first = max(self.seen, oldest), left = max(self.told, oldest)
        cdef intp_t k, count = 0, gone = 0, size, n
        cdef bint all_rows = (
            self.clears != ring.state[CLEARS] or edits > ring.edited.shape[0]
            or ring.n_hidden - self.hidden > ring.hidden.shape[0]
        )
        if all_rows:
            first, edits = oldest, 0
        elif first == written and edits == 0 and self.hidden == ring.n_hidden and left >= kept:
            return None
        n = <intp_t> (written - first + edits)
        size = n + <intp_t> max(min(kept, first) - left, 0)
        if all_rows:
            size += max(self.known - c_stored(ring), 0)
        else:
            for entry in range(self.hidden, ring.n_hidden):
                size += <intp_t> max(self.c_last_hidden(entry) + 1 - self.c_first_hidden(entry), 0)
        cdef cnp.ndarray found = c_numbers(1, &n, cnp.NPY_INTP)
        cdef cnp.ndarray lost = c_numbers(1, &size, cnp.NPY_INTP)
        cdef intp_t* slots = <intp_t*> cnp.PyArray_DATA(found)
        cdef intp_t* others = <intp_t*> cnp.PyArray_DATA(lost)
        for row in range(left, min(kept, first)):
            others[gone] = <intp_t> (row % ring.capacity)
            self.c_take_out(others[gone])
            gone += 1
        for k in range(n):
            if k < n - edits:
                row = first + k
                slots[count] = <intp_t> (row % ring.capacity)
            else:
                row = kept
                slots[count] = ring.edited[(ring.n_edited - n + k) & (ring.edited.shape[0] - 1)]
            if row >= kept and self.c_has_row(slots[count]):
                count += 1
                continue
            others[gone] = slots[count]
            self.c_take_out(slots[count])
            gone += 1
        if all_rows:
            for k in range(c_stored(ring), self.known):
                others[gone] = k
                gone += 1
        else:  # a follower logs no edits
            for entry in range(self.hidden, ring.n_hidden):
                for row in range(self.c_first_hidden(entry), self.c_last_hidden(entry) + 1):
                    others[gone] = <intp_t> (row % ring.capacity)
                    gone += not self.c_has_row(others[gone])
        moment = written, ring.state[CLEARS], ring.n_edited, ring.n_hidden, kept, all_rows
        return found[:count], lost[:gone], moment

    cdef int64_t c_first_hidden(self, int64_t entry) noexcept:
        """The first row in the ring that an entry of the log of hidden rows is about."""
        cdef int64_t first = self.ring.hidden[entry & (self.ring.hidden.shape[0] - 1), 0]
        return max(first, self.ring.state[WRITTEN] - c_stored(self.ring))

    cdef int64_t c_last_hidden(self, int64_t entry) noexcept:
        """The last row that an entry of the log of hidden rows is about."""
        cdef int64_t last = self.ring.hidden[entry & (self.ring.hidden.shape[0] - 1), 1]
        return min(last, self.ring.state[WRITTEN] - 1)

    cdef bint c_has_row(self, intp_t slot) noexcept:
        """Whether a slot has a row; if not, its mass becomes 0."""
        if slot < c_stored(self.ring) and not self.ring.c_is_absent(slot):
            return True
        self.c_take_out(slot)
        return False

    @property
    def cuts_only(self):
        """Whether each mass is 0 or 1."""
        return self.n_others == 0

    cdef void c_put_mass(self, intp_t slot, float64_t mass) noexcept nogil:
        """Set the mass of a slot: its leaf follows."""
        cdef float64_t old = self.masses[slot]
        self.n_rows += (mass != 0.0) - (old != 0.0)
        self.n_others += (mass != 0.0 and mass != 1.0) - (old != 0.0 and old != 1.0)
        self.masses[slot] = mass

    cdef void c_take_out(self, intp_t slot) noexcept nogil:
        """Set the mass of a slot to 0."""
        if self.masses[slot] != 0.0:
            self.c_put_mass(slot, 0.0)
            self.c_set_leaf(slot)
            self.tree.c_sum_above(slot, slot)

    def put(self, cnp.ndarray slots not None, cnp.ndarray masses not None, tuple moment):
        """Set the masses of rows; ``slots`` and ``moment`` are from ``stale``.

        Returns false, and changes nothing, if the ring was cleared since. Without a moment, masses of rows
        that were set before change.
        """
        cdef intp_t n = cnp.PyArray_DIM(slots, 0)
        c_check_array(slots, "slots", cnp.NPY_INTP, n)
        c_check_array(masses, "masses", cnp.NPY_FLOAT64, n)
        return self.c_put(
            <const intp_t*> cnp.PyArray_DATA(slots), <const float64_t*> cnp.PyArray_DATA(masses), n, moment
        )

    cdef bint c_put(
        self, const intp_t* slots, const float64_t* masses, intp_t n, tuple moment
    ) except -1:
        """``put`` in C."""
        cdef Ring ring = self.ring
        cdef intp_t k
        cdef int64_t clears = self.clears if moment is None else moment[1]
        if ring.state[CLEARS] != clears:
            return False
        self.c_sync_weights()
        if moment is not None and moment[5]:
            self.masses[:] = 0.0
            self.n_rows = self.n_others = 0
            self.tree.c_clear_first(self.tree.capacity)
        for k in range(n):
            if not 0 <= slots[k] < ring.capacity:
                raise IndexError(f"slots[{k}]: expected 0 to {ring.capacity - 1}, got {slots[k]}")
        for k in range(n):
            if moment is not None or self.c_has_row(slots[k]):
                self.c_put_mass(slots[k], masses[k])
                self.c_set_leaf(slots[k])
        if n:
            self.tree.c_set(slots, NULL, n)
        if moment is not None:
            self.seen, self.clears, self.edited, self.hidden, self.told, _ = moment
            self.known = max(self.known, c_stored(ring))
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
        cdef intp_t k, n, count
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
            count = 0
            for k in range(n):
                slots[k] = self.weights.changes[(self.changes + k) & (self.weights.changes.shape[0] - 1)]
                c_prefetch(&self.masses[slots[k]])
                c_prefetch(self.weights.tree.c_level(0) + slots[k])
                c_prefetch(self.tree.c_level(0) + slots[k])
            for k in range(n):
                if self.masses[slots[k]] != 0.0:  # else the leaf stays 0
                    slots[count] = slots[k]
                    self.c_set_leaf(slots[count])
                    count += 1
            self.tree.c_set(slots, NULL, count)
            self.changes += n


def put_by_value(
    list trees not None, cnp.ndarray known not None, cnp.ndarray of_rows not None, int bits, intp_t ring,
    cnp.ndarray slots not None, cnp.ndarray masses not None, cnp.ndarray lost not None, tuple moment,
):
    """Set the masses of rows in the tree of their value, and 0 in the one that had them before.

    ``known`` has, by slot, 1 more than the number of the value in whose tree a row has a mass, or 0; it
    is brought up to date. ``of_rows`` has the same of now, by slot with the number of the ring in the low
    ``bits``. Slots, masses and moment are as for ``Masses.put``; ``lost`` are slots without a row.
    """
    cdef intp_t n_lost = cnp.PyArray_DIM(lost, 0), n = n_lost + cnp.PyArray_DIM(slots, 0)
    cdef intp_t k, count, slot
    cdef int value, n_values = len(trees)
    cdef bint is_of_all = moment is not None and moment[5]
    c_check_array(slots, "slots", cnp.NPY_INTP, n - n_lost)
    c_check_array(lost, "lost", cnp.NPY_INTP, n_lost)
    c_check_array(masses, "masses", cnp.NPY_FLOAT64, n - n_lost)
    c_check_array(known, "known", cnp.NPY_INT8, -1)
    c_check_array(of_rows, "of_rows", cnp.NPY_INT8, -1)
    cdef intp_t capacity = min(cnp.PyArray_DIM(known, 0), cnp.PyArray_DIM(of_rows, 0) >> bits)
    cdef cnp.ndarray own_slots = c_numbers(1, &n, cnp.NPY_INTP)
    cdef cnp.ndarray own_masses = c_numbers(1, &n, cnp.NPY_FLOAT64)
    cdef cnp.ndarray values = c_numbers(1, &n, cnp.NPY_INT8)
    cdef cnp.ndarray before = c_numbers(1, &n, cnp.NPY_INT8)
    cdef intp_t* own = <intp_t*> cnp.PyArray_DATA(own_slots)
    cdef float64_t* given = <float64_t*> cnp.PyArray_DATA(own_masses)
    cdef int8_t* new = <int8_t*> cnp.PyArray_DATA(values)
    cdef int8_t* old = <int8_t*> cnp.PyArray_DATA(before)
    cdef int8_t* states = <int8_t*> cnp.PyArray_DATA(known)
    cdef const int8_t* now = <const int8_t*> cnp.PyArray_DATA(of_rows)
    cdef const float64_t* of_slots = <const float64_t*> cnp.PyArray_DATA(masses) - n_lost
    cdef const intp_t* gone = <const intp_t*> cnp.PyArray_DATA(lost)
    cdef const intp_t* there = <const intp_t*> cnp.PyArray_DATA(slots) - n_lost
    for k in range(n):
        slot = gone[k] if k < n_lost else there[k]
        if not 0 <= slot < capacity:
            raise IndexError(f"slots: expected 0 to {capacity - 1}, got {slot}")
        new[k] = 0 if k < n_lost else now[slot << bits | ring]
        old[k] = 0 if is_of_all else states[slot]
    if is_of_all:
        known[:] = 0
    for k in range(n):
        states[gone[k] if k < n_lost else there[k]] = new[k]
    for value in range(1, n_values + 1):
        count = 0
        for k in range(n):
            if new[k] == value or old[k] == value:
                own[count] = gone[k] if k < n_lost else there[k]
                given[count] = of_slots[k] if new[k] == value else 0.0
                count += 1
        if count or is_of_all:
            (<Masses?> trees[value - 1]).c_put(own, given, count, moment)


def members_of(const intp_t[::1] nexts not None, const intp_t[::1] leaders not None, intp_t k):
    """The rows of groups of k, linked in circles by ``nexts``, that begin behind ``leaders``: shape (n, k)."""
    cdef intp_t group, _place, row, dims[2]
    dims[0], dims[1] = leaders.shape[0], k
    cdef cnp.ndarray found = c_numbers(2, dims, cnp.NPY_INTP)
    cdef intp_t* out = <intp_t*> cnp.PyArray_DATA(found)
    for group in range(dims[0]):
        row = leaders[group]
        for _place in range(k):
            if not 0 <= row < nexts.shape[0]:
                raise IndexError(f"leaders: expected rows below {nexts.shape[0]}, got {row}")
            row = nexts[row]
            out[0] = row
            out += 1
    return found
