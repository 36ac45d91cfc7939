"""Attributes and C signatures of ``Shuffle``."""

from cpprb_like._c.random_integers cimport Bits
from cpprb_like._c.typedefs cimport intp_t


cdef class Shuffle:
    cdef intp_t n
    cdef intp_t most                 # numbers that there is room for
    cdef intp_t drawn                # of these that were given out
    cdef intp_t* places              # hash table: place, -1 for a free entry; or NULL, then ...
    cdef intp_t* numbers             # the number at that place; ... or of each, less the place
    cdef intp_t mask
    cdef int shift

    cdef intp_t c_next(self, Bits* bits) noexcept nogil
    cdef void c_take(self, Bits* bits, intp_t* numbers, intp_t n) noexcept nogil
