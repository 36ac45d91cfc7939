"""Attributes and C signatures of ``Starts``."""

from libc.stdint cimport int8_t

from cpprb_like._core cimport Ring
from cpprb_like._random cimport Bits
from cpprb_like._typedefs cimport int64_t, intp_t


cdef class Starts:
    cdef readonly Ring ring
    cdef readonly intp_t rows        # of a sequence
    cdef readonly intp_t least       # rows from the start to the end of an episode that has ended
    cdef readonly bint across        # sequences run over the ends of episodes
    cdef readonly intp_t stride      # rows of a stream from one start to the next

    cdef bint c_is_first(self, int64_t row) noexcept nogil
    cdef bint c_is_on_stride(self, int64_t row) noexcept nogil
    cdef intp_t c_looked_at(self, int64_t row) noexcept nogil
    cdef int c_what(self, intp_t slot) noexcept nogil
    cdef void c_tell(self, const intp_t* slots, intp_t n, int8_t* told) noexcept nogil
    cdef intp_t c_try(self, intp_t* out, intp_t n, Bits* bits) noexcept
