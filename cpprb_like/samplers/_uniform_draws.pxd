"""Attributes and C signatures of ``Shuffle``."""

from cpprb_like._c.random_integers cimport Bits
from cpprb_like._c.typedefs cimport intp_t


cdef class Shuffle:
    cdef intp_t n
    cdef intp_t most                 # most numbers that can be drawn
    cdef intp_t drawn                # numbers drawn so far
    cdef intp_t* places              # keys of a hash table, -1 for a free entry; NULL if ``numbers`` is an array
    cdef intp_t* numbers             # of each entry: number at the place; array: number less place
    cdef intp_t mask
    cdef int shift

    cdef intp_t c_next_number(self, Bits* bits) noexcept nogil
    cdef void c_take_numbers(self, Bits* bits, intp_t* numbers, intp_t n) noexcept nogil
