"""Attributes and C signatures of ``SumTree`` and ``MinTree``."""

from numpy cimport ndarray
from numpy.random cimport bitgen_t

from cpprb_like._tree_node cimport Level, Shape
from cpprb_like._typedefs cimport float64_t, intp_t


cdef class MinTree:
    cdef float64_t[::1] nodes
    cdef Shape shape

    cdef float64_t* c_level(self, intp_t level) noexcept nogil


cdef class SumTree:
    cdef readonly intp_t capacity    # leaves
    cdef readonly float64_t largest  # that a leaf may be
    cdef float64_t[::1] nodes
    cdef Shape shape
    cdef MinTree minima              # over the same leaves, or None
    cdef object lock                 # held while the interpreter lock is not
    cdef bint busy                   # whether it is held

    cdef float64_t* c_level(self, intp_t level) noexcept nogil
    cdef float64_t c_total(self) noexcept nogil
    cdef bint c_enter(self, intp_t n) except -1
    cdef int c_leave(self) except -1
    cdef void c_clear(self, intp_t first) noexcept nogil
    cdef void c_rebuild(self) noexcept nogil
    cdef intp_t c_check_indexes(self, indexes) except -1
    cdef int c_check_values(self, values, intp_t n) except -1
    cdef void c_set(self, const intp_t* leaves, const float64_t* values, intp_t n) noexcept nogil
    cdef void c_set_range(self, intp_t first, const float64_t* values, intp_t n) noexcept nogil
    cdef Level c_between(self, intp_t level) noexcept nogil
    cdef void c_sum_above(self, intp_t level, intp_t first, intp_t last) noexcept nogil
    cdef void c_get(self, const intp_t* leaves, float64_t* values, intp_t n) noexcept nogil
    cdef bint c_targets_fit(self, const float64_t* targets, intp_t n) noexcept nogil
    cdef bint c_draw(
        self, bitgen_t* bitgen, bint stratified, intp_t* leaves, float64_t* values, intp_t n
    ) noexcept nogil
