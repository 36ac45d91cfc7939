"""Attributes and C signatures of ``ObjectRing``."""

from cpython.object cimport PyObject
from numpy cimport ndarray
from numpy.random cimport bitgen_t

from cpprb_like._c.typedefs cimport intp_t


cdef class ObjectRing:
    cdef list items                  # by place, None where there was none; nobody else has the list
    cdef readonly intp_t max_size
    cdef readonly intp_t index       # place of the next object
    cdef readonly intp_t size        # objects held
    cdef readonly object rng         # Generator, or None: NumPy's global state
    cdef object bits                 # the bit generator that was last drawn from, ...
    cdef bitgen_t* source            # ... what it gives to C, ...
    cdef object acquire, release     # ... and methods of its lock
    cdef readonly bint copies        # whether deep copies are kept

    cdef int c_check(self) except -1
    cdef int c_append_otherwise(self, obj) except -1
    cdef PyObject* c_at(self, intp_t age) noexcept
    cdef intp_t c_place(self, intp_t age) noexcept
    cdef int c_use(self, bits) except -1
    cdef void c_exchange(self, list items) noexcept
    cdef ndarray c_draw(self, intp_t n)
    cdef list c_slice(self, index)
    cdef void c_pick(self, bitgen_t* source, intp_t* out, intp_t n) noexcept


cdef class Shelf:
    cdef list items
