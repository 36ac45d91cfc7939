"""How far absent rows reach: what lets a stream be followed over a pause in one step.

The first and the last row of each run of absent rows know its length, so a row that becomes absent
joins two runs in constant time, and whoever comes from a row that holds a step passes over all of a
run at once. Eight bytes a slot, from the first absent row on. Compiled because it is asked at each
row that follows another. Not here: which rows are absent (``_core``).
"""

cimport cython
cimport numpy as cnp

from cpprb_like._c.typedefs cimport int32_t, int64_t, intp_t

import numpy as np

cnp.import_array()

cdef enum:
    LONGEST = 0x7FFFFFFF             # a longer run is passed over in parts


@cython.final
cdef class AbsentRuns:
    """Lengths of the runs of absent rows of a ring.

    What a row knows stays true as long as it is in the ring, for absent rows stay absent; rows in
    the middle of a run may know of a part of it only.

    Parameters
    ----------
    capacity, n_envs : int
        Slots, and streams that rows belong to in turn.
    """

    def __cinit__(self, intp_t capacity, intp_t n_envs):
        self.capacity = capacity
        self.n_envs = n_envs

    @property
    def nbytes(self):
        """Bytes of memory."""
        return 0 if self.memory is None else self.memory.nbytes

    cdef int c_prepare(self) except -1:
        """Make sure that rows can become absent. Memory that is never touched takes no room."""
        if self.memory is None:
            self.memory = np.zeros(2 * self.capacity, np.int32)
            self.onward = <int32_t*> cnp.PyArray_DATA(self.memory)
            self.back = self.onward + self.capacity
        return 0

    cdef void c_join(self, int64_t row, intp_t before, intp_t after) noexcept nogil:
        """A row became absent, between runs of so many absent rows that are in the ring."""
        cdef intp_t slot = <intp_t> (row % self.capacity)
        cdef int64_t first = row - <int64_t> before * self.n_envs
        cdef int64_t last = row + <int64_t> after * self.n_envs
        self.onward[slot] = <int32_t> min(1 + after, LONGEST)
        self.back[slot] = <int32_t> min(1 + before, LONGEST)
        self.onward[first % self.capacity] = <int32_t> min(1 + before + after, LONGEST)
        self.back[last % self.capacity] = <int32_t> min(1 + before + after, LONGEST)
