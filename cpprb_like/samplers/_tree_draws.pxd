"""Attributes and C signatures of ``TreeDraws``."""

from cpprb_like._core cimport DerivedState
from cpprb_like._segment_tree cimport MinTree, SumTree
from cpprb_like._c.typedefs cimport float64_t, int64_t, intp_t


cdef class TreeDraws(DerivedState):
    cdef readonly SumTree tree
    cdef MinTree minima              # over the same leaves, or None
    cdef public int64_t drawn        # ``written`` of the ring at the last draw

    cdef void c_sync_weights(self) noexcept nogil
    cdef float64_t c_least(self) noexcept nogil
    cdef void c_lift(self, const intp_t* slots, float64_t* weights, intp_t n) noexcept nogil
    cdef void c_put_back(self, const intp_t* slots, const float64_t* weights, intp_t n) noexcept nogil
