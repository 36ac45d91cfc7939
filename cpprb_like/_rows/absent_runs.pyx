"""Lengths of runs of absent rows, so that the next step of a stream is found in constant time.

A run is consecutive absent rows of one stream: a pause of an environment, or a deleted episode. The
length is stored at the first and at the last row of a run, so a row that becomes absent joins two
runs in constant time, and a run is skipped at once. Eight bytes for each slot, allocated with the
first absent row. Compiled because it is asked for each row that follows another. Not here: which
rows are absent (``_core``).
"""

cimport cython
cimport numpy as cnp

from cpprb_like._c.typedefs cimport int32_t, int64_t, intp_t

import numpy as np

cnp.import_array()

cdef enum:
    LONGEST = 0x7FFFFFFF             # a longer run is skipped in parts


@cython.final
cdef class AbsentRuns:
    """Lengths of the runs of absent rows of a ring.

    A stored length stays valid as long as its row is in the ring, as absent rows stay absent. In
    the middle of a run it may be too short.

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
        """Allocate memory, if there is none yet, before a row becomes absent."""
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
