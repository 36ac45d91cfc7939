"""Attributes and C signatures of ``RowTags``."""

from numpy cimport ndarray

from cpprb_like._core cimport Ring
from cpprb_like._typedefs cimport int64_t, intp_t, uint64_t


cdef class RowTags:
    cdef readonly Ring ring
    cdef int64_t revision            # of the ring; all below belongs to it
    cdef int64_t base                # what tags have above row ids, a multiple of the capacity
    cdef int64_t tagged              # rows from this one on have no tag
    cdef int64_t drawn               # rows written when rows were drawn last

    cdef void c_begin(self) noexcept nogil
    cdef ndarray c_indexes(self, ndarray slots, bint tagged)
    cdef int64_t c_row_at(self, intp_t slot) noexcept nogil
    cdef intp_t c_find(
        self, const uint64_t* indexes, intp_t n, bint tagged, intp_t* slots, intp_t* places
    ) noexcept nogil
    cdef int c_refuse(self, ndarray indexes, intp_t place) except -1
