"""Attributes and C signatures of ``RowWeights``."""

from numpy cimport ndarray

from cpprb_like._core cimport Ring
from cpprb_like._segment_tree cimport MinTree, MaxTree, SumTree
from cpprb_like._typedefs cimport float64_t, int64_t, intp_t, uint64_t


cdef struct Update:
    const uint64_t* indexes          # slots or tags
    const float64_t* priorities
    const float64_t* weights
    intp_t* slots                    # what is to be set, and to what weight
    float64_t* kept
    float64_t heaviest               # so far
    float64_t greatest_priority


cdef class RowWeights:
    cdef readonly Ring ring
    cdef readonly SumTree tree
    cdef MinTree minima
    cdef MaxTree maxima              # None: new rows get the greatest weight so far
    cdef readonly float64_t first    # weight of new rows before any other was given
    cdef float64_t newest_weight     # the greatest so far
    cdef float64_t greatest_priority  # so far
    cdef int64_t revision            # of the ring; all below belongs to it
    cdef int64_t filled              # rows before this one have their weight in a leaf
    cdef int64_t summed              # the nodes are right for the rows before this one
    cdef int64_t drawn               # rows written when rows were drawn last
    cdef int64_t base                # what tags have above row ids, a multiple of the capacity

    cdef int c_begin(self) noexcept
    cdef int c_sync(self, int64_t stop) except -1
    cdef void c_sync_entered(self, int64_t stop) noexcept
    cdef void c_sync_to(self, int64_t stop) noexcept nogil
    cdef void c_fill(self, int64_t stop) noexcept nogil
    cdef void c_write(self, int64_t first, const float64_t* weights, intp_t n) noexcept nogil
    cdef int64_t c_row_at(self, intp_t slot) noexcept nogil
    cdef intp_t c_find_rows(self, Update* change, intp_t n, bint tagged) noexcept nogil
