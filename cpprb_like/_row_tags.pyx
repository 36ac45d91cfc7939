"""Which rows the indexes of a batch mean when they come back with new priorities.

An index is a slot; or a tag, which tells the row that was drawn from those before and after it in
its slot. Compiled because it looks at every row that is updated. Not here: what is kept for the
rows (``_row_weights``, ``ranked``).
"""

cimport cython
cimport numpy as cnp

from cpprb_like._core cimport REVISION, WRITTEN, Ring
from cpprb_like._typedefs cimport int64_t, intp_t, uint64_t

import numpy as np

cnp.import_array()


def waiting_rows(Ring ring not None):
    """The row ids of the rows that wait for others to follow: int64, in no order."""
    cdef cnp.ndarray rows = np.empty(ring.ahead * ring.n_envs, np.int64)
    return rows[: ring.c_waiting(<int64_t*> cnp.PyArray_DATA(rows))]


@cython.final
cdef class RowTags:
    """Tags of the rows of a ring.

    A tag is the row id plus the capacity plus a base, which a ``clear`` moves beyond all tags that
    were given. Modulo the capacity it is the slot, and it is no slot itself.

    Parameters
    ----------
    ring : Ring
        The rows.
    """

    def __cinit__(self, Ring ring not None):
        self.ring = ring
        self.revision = ring.state[REVISION]

    cdef void c_begin(self) noexcept nogil:
        """Begin with an empty ring if it was cleared."""
        cdef intp_t capacity = self.ring.capacity
        if self.revision == self.ring.state[REVISION]:
            return
        self.revision = self.ring.state[REVISION]
        self.base += (self.tagged + capacity - 1) // capacity * capacity
        self.tagged = self.drawn = 0

    def note_draw(self, int64_t written):
        """Rows were drawn when so many had been written; slots mean the rows that were there."""
        self.c_begin()
        self.drawn = written

    def indexes(self, cnp.ndarray slots, bint tagged):
        """The slots as a fresh array of uint64, or the tags of the rows that are there.

        ``slots`` are a dense 1-d array of intp, and in use.
        """
        return self.c_indexes(slots, tagged)

    cdef cnp.ndarray c_indexes(self, cnp.ndarray slots, bint tagged):
        cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(slots)
        cdef intp_t k, n = cnp.PyArray_DIM(slots, 0)
        cdef cnp.ndarray indexes = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_UINT64)
        cdef uint64_t* out = <uint64_t*> cnp.PyArray_DATA(indexes)
        if not tagged:
            for k in range(n):
                out[k] = values[k]
            return indexes
        self.c_begin()
        self.tagged = self.ring.state[WRITTEN]
        for k in range(n):
            out[k] = self.base + self.ring.capacity + self.c_row_at(values[k])
        return indexes

    cdef int64_t c_row_at(self, intp_t slot) noexcept nogil:
        """The row id of the row in a slot that is in use."""
        cdef int64_t last = self.ring.state[WRITTEN] - 1
        return last - (last - slot) % self.ring.capacity

    def find(self, cnp.ndarray indexes, bint tagged):
        """The slots of the rows that are still there, and the places of these in ``indexes``.

        ``indexes`` are slots, as a dense 1-d array of uint64. If ``tagged``, they may be tags too;
        rows that were overwritten since they got their tag are left out, and slots that were
        overwritten since the last draw. Raises ``IndexError`` for a slot that holds no step.
        """
        cdef intp_t n = cnp.PyArray_DIM(indexes, 0), count
        cdef cnp.ndarray slots = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_INTP)
        cdef cnp.ndarray places = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_INTP)
        count = self.c_find(
            <const uint64_t*> cnp.PyArray_DATA(indexes), n, tagged,
            <intp_t*> cnp.PyArray_DATA(slots), <intp_t*> cnp.PyArray_DATA(places),
        )
        if count < 0:
            self.c_refuse(indexes, -1 - count)
        return slots[:count], places[:count]

    cdef intp_t c_find(
        self, const uint64_t* indexes, intp_t n, bint tagged, intp_t* slots, intp_t* places
    ) noexcept nogil:
        """As ``find``: how many rows there are. Below 0: -1 less the place of a bad index."""
        self.c_begin()
        cdef intp_t k, slot, count = 0, stored = self.ring.c_stored()
        cdef int64_t row, written = self.ring.state[WRITTEN]
        cdef uint64_t index, capacity = self.ring.capacity, beyond = self.base + written
        cdef bint any_absent = self.ring.c_absent() > 0
        for k in range(n):
            index = indexes[k]
            slot = <intp_t> index
            if index >= capacity:
                if not tagged or index - capacity >= beyond:
                    return -1 - k
                row = <int64_t> (index - capacity) - self.base
                if row < 0 or row < written - self.ring.capacity:
                    continue
                slot = <intp_t> (row % self.ring.capacity)
            elif slot >= stored:
                return -1 - k
            if any_absent and self.ring.c_is_absent(slot):
                return -1 - k
            if index < capacity and tagged and self.drawn and self.c_row_at(slot) >= self.drawn:
                continue
            slots[count] = slot
            places[count] = k
            count += 1
        return count

    cdef int c_refuse(self, cnp.ndarray indexes, intp_t place) except -1:
        raise IndexError(
            f"indexes[{place}]: expected a slot from 0 to {self.ring.c_stored() - 1} that holds a "
            f"step, got {indexes[place]}"
        )

    # ------------------------------------------------------------------ saving

    def save(self):
        """All that a new object over an equal ring needs to go on like this one."""
        self.c_begin()
        rows = self.ring.capacity, self.ring.state[WRITTEN], self.ring.state[REVISION]
        return *rows, self.base, self.tagged, self.drawn

    def load(self, saved):
        """Go on where another object was saved, and return true.

        A ring without rows may be another one: then this begins anew, and returns false. Raises
        ``ValueError`` for another ring that has rows.
        """
        rows = self.ring.capacity, self.ring.state[WRITTEN], self.ring.state[REVISION]
        if rows != saved[:3]:
            if len(self.ring):
                raise ValueError("the sampler keeps priorities of the rows of another buffer")
            return False
        self.revision, self.base, self.tagged, self.drawn = saved[2:]
        return True
