"""Attributes and C signatures of ``Overflow``."""

from numpy cimport ndarray

from cpprb_like._c.typedefs cimport int64_t, intp_t


cdef class Overflow:
    cdef readonly intp_t nbytes      # of a value
    cdef intp_t room                 # values that there is memory for
    cdef intp_t head                 # place of the oldest
    cdef readonly intp_t count
    cdef ndarray rows                # their row ids, in a circle from ``head``
    cdef ndarray values              # their bytes, at the same places

    cdef int c_reserve(self, intp_t n) except -1
    cdef intp_t c_place(self, intp_t number) noexcept nogil
    cdef char* c_push(self, int64_t row) noexcept nogil
    cdef void c_drop(self, int64_t before) noexcept nogil
    cdef intp_t c_number(self, int64_t row) noexcept nogil
    cdef char* c_find(self, int64_t row) noexcept nogil
    cdef void c_clear(self) noexcept nogil
