"""Attributes and C signatures of ``RowWeights``."""

from numpy cimport ndarray

from cpprb_like._core cimport Ring
from cpprb_like._row_tags cimport RowTags
from cpprb_like._segment_tree cimport MaxTree, MinTree, SumTree
from cpprb_like._typedefs cimport float64_t, int64_t, intp_t


cdef class RowWeights:
    cdef readonly Ring ring
    cdef readonly SumTree tree
    cdef MinTree minima
    cdef MaxTree maxima              # None: new rows get the greatest weight so far
    cdef RowTags tags
    cdef readonly float64_t first    # weight of new rows before any other was given
    cdef float64_t newest_weight     # the greatest so far
    cdef float64_t greatest_priority  # so far
    cdef int64_t revision            # of the ring; all below belongs to it
    cdef ndarray waiting             # row ids of the rows that wait for others to follow ...
    cdef ndarray held                # ... and what they will weigh
    cdef intp_t n_waiting
    cdef float64_t heaviest_waiting  # of those that waited last
    cdef int64_t filled              # rows before this one have their weight in a leaf
    cdef int64_t summed              # the nodes are right for the rows before this one

    cdef void c_begin(self) noexcept nogil
    cdef int c_sync(self, int64_t stop) except -1
    cdef void c_sync_entered(self, int64_t stop) noexcept nogil
    cdef void c_sync_to(self, int64_t stop) noexcept nogil
    cdef void c_stage(self, int64_t first, ndarray priorities, ndarray weights) noexcept
    cdef void c_fill(self, int64_t stop) noexcept nogil
    cdef void c_write(self, int64_t first, const float64_t* weights, intp_t n) noexcept nogil
    cdef void c_note(
        self, const float64_t* priorities, const float64_t* weights, intp_t n
    ) noexcept nogil
    cdef float64_t c_least(self) noexcept nogil
    cdef void c_hide(self) noexcept nogil
    cdef void c_restore(self) noexcept nogil
