"""Attributes and C signatures of ``SumTree``, and of ``MinTree`` over its leaves.

Another compiled module may write leaves itself, with the interpreter lock held. It fills
``c_level(0)`` with weights of 0.0 (never -0.0) to ``largest`` and calls ``c_sum_above(first, last)``
for the leaves that it wrote. Until then the nodes above them are out of date, and no other method
may be called.
"""

from numpy.random cimport bitgen_t

from cpprb_like._c.tree_node cimport Shape
from cpprb_like._c.typedefs cimport float64_t, intp_t


cdef enum Manner:            # kinds of draws
    STRATIFIED
    INDEPENDENT
    DISTINCT


cdef int c_check_drawn(Manner manner, intp_t found, intp_t n) except -1


cdef class MinTree:
    cdef float64_t[::1] nodes    # bounds, from the level SIDE_LEVEL on
    cdef float64_t[::1] leaves   # ``nodes`` of the sum tree
    cdef Shape shape

    cdef float64_t c_min(self) noexcept nogil


cdef class SumTree:
    cdef readonly intp_t capacity    # number of leaves
    cdef readonly float64_t largest  # upper bound of a leaf
    cdef float64_t[::1] nodes
    cdef Shape shape
    cdef MinTree minima              # over the same leaves, or None

    cdef float64_t* c_level(self, intp_t level) noexcept nogil
    cdef float64_t c_total(self) noexcept nogil
    cdef void c_clear_leaves(self, intp_t first) noexcept nogil
    cdef void c_clear_first(self, intp_t n) noexcept nogil
    cdef void c_rebuild_nodes(self) noexcept nogil
    cdef intp_t c_check_indexes(self, indexes) except -1
    cdef int c_check_values(self, values, intp_t n) except -1
    cdef void c_set(self, const intp_t* leaves, const float64_t* values, intp_t n) noexcept nogil
    cdef void c_set_range(self, intp_t first, const float64_t* values, intp_t n) noexcept nogil
    cdef void c_write_leaves(self, const intp_t* leaves, const float64_t* values, intp_t n) noexcept nogil
    cdef void c_sum_above(self, intp_t first, intp_t last) noexcept nogil
    cdef void c_sum_from(self, intp_t level, intp_t first, intp_t last) noexcept nogil
    cdef bint c_targets_fit(self, const float64_t* targets, intp_t n) noexcept nogil
    cdef tuple c_drawn(self, n, rng, Manner manner)
    cdef intp_t c_draw_leaves(
        self, bitgen_t* bitgen, Manner manner, intp_t* leaves, float64_t* values, intp_t n
    ) noexcept nogil
    cdef intp_t c_draw_distinct(
        self, bitgen_t* bitgen, intp_t* leaves, float64_t* values, intp_t n
    ) noexcept nogil
    cdef void c_draw_independent(
        self, bitgen_t* bitgen, intp_t* leaves, float64_t* values, intp_t n
    ) noexcept nogil
