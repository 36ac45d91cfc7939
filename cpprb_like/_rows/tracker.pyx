"""Which rows were edited since a time: what a save that follows another one writes again.

Compiled because it is told in the middle of an edit, where no Python code may run. Not here: rows
that were added since, which their ids tell.
"""

cimport cython

from cpprb_like._c.arrays cimport c_check_array
from cpprb_like._c.typedefs cimport intp_t, uint8_t

cimport numpy as cnp
import numpy as np

cnp.import_array()


@cython.final
cdef class Tracker:
    """The slots whose rows were edited: values replaced, a row hidden, an episode ended.

    Parameters
    ----------
    capacity : int
        Slots that there are. Memory: a bit for each.
    """

    def __cinit__(self, intp_t capacity):
        self.capacity = capacity
        self.bits = np.zeros((capacity + 7) >> 3, np.uint8)

    cdef void c_mark(self, intp_t slot) noexcept nogil:
        """The row in this slot was edited."""
        self.bits[slot >> 3] |= <uint8_t> (1 << (slot & 7))

    def mark(self, slots):
        """The rows in these slots were edited, as somebody has found out."""
        c_check_array(slots, "slots", cnp.NPY_INTP, -1)
        cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(slots)
        cdef intp_t k, n = cnp.PyArray_DIM(slots, 0)
        if n and not 0 <= slots.min() <= slots.max() < self.capacity:
            raise IndexError(f"slots: expected 0 to {self.capacity - 1}")
        for k in range(n):
            self.c_mark(values[k])

    def slots(self):
        """The slots that were marked, ascending. Cost: proportional to all slots, a bit each."""
        cdef object bits = np.asarray(self.bits)
        used = np.flatnonzero(bits)
        marked = np.unpackbits(bits[used], bitorder="little").reshape(-1, 8)
        places, within = np.nonzero(marked)
        return (8 * used[places] + within).astype(np.intp)
