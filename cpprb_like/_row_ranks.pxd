"""Attributes and C signatures of ``RowRanks``."""

from numpy cimport ndarray

from cpprb_like._core cimport Ring
from cpprb_like._ranking cimport Ranking
from cpprb_like._row_tags cimport RowTags
from cpprb_like._segment_tree cimport SumTree
from cpprb_like._typedefs cimport float64_t, int64_t, intp_t


cdef class RowRanks:
    cdef readonly Ring ring
    cdef readonly Ranking ranking    # of the rows that can be drawn
    cdef readonly SumTree tree       # leaf r has the weight of rank r + 1; in no other hands
    cdef RowTags tags
    cdef float64_t alpha
    cdef int64_t revision            # of the ring; all below belongs to it
    cdef int64_t followed            # rows before this one are in order, or wait
    cdef intp_t weighed              # ranks that have their weight in the tree
    cdef float64_t greatest          # priority so far
    cdef ndarray waiting             # row ids of the rows that wait for others to follow ...
    cdef ndarray held                # ... and their priorities
    cdef intp_t n_waiting
    cdef int64_t kept_from           # rows before this one were left out, and have no rank
    cdef ndarray found, room         # what the next two of these will be

    cdef int c_look(self) except -1
    cdef void c_follow(self, int64_t stop) noexcept
    cdef void c_release(self) noexcept
    cdef void c_hold(self) noexcept
    cdef void c_set(self, intp_t slot, float64_t priority) noexcept
    cdef void c_put(self, int64_t first, const float64_t* priorities, int64_t n) noexcept
    cdef int c_bring_up_to_date(self) except -1
    cdef int c_refuse_draw(self, intp_t n, intp_t among) except -1
