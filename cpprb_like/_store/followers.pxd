"""Attributes and C signatures of ``Followers``."""

from numpy cimport ndarray

from cpprb_like._core cimport Ring
from cpprb_like._c.typedefs cimport intp_t


cdef class Followers:
    cdef readonly intp_t width       # rings, at most
    cdef readonly int bits           # of a row's number that say which ring it is in
    cdef intp_t mask                 # the same bits
    cdef list members                # Follower or None
    cdef list rings                  # their rings, or None
    cdef list usable                 # whether rows of each may be drawn

    cdef Ring c_ring(self, intp_t number)
    cdef bint c_is_usable(self, intp_t number) noexcept
    cdef int c_check_rows(self, rows) except -1
    cdef int c_fill(self, list arrays, tuple columns, ndarray rows) except -1
    cdef void c_fill_block(
        self, Ring ring, char* out, const char** bases, const char** wholes, intp_t place,
        const intp_t* rows, intp_t n,
    ) noexcept
