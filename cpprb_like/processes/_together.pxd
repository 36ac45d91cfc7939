"""Attributes and C signatures of ``WeightsTogether``."""

from numpy cimport ndarray
from numpy.random cimport bitgen_t

from cpprb_like._c.typedefs cimport float64_t, int64_t, intp_t
from cpprb_like._core cimport Ring
from cpprb_like.processes._followers cimport Followers
from cpprb_like.samplers._row_weights cimport RowWeights


cdef struct Part:            # a ring that is drawn from
    intp_t number
    intp_t start             # rows that can be drawn in the rings before
    intp_t stop              # ... and in this one
    intp_t first             # slot of its oldest row
    intp_t capacity
    const char* records
    intp_t stride
    float64_t mass           # its share of a draw
    float64_t total          # the sum of its weights


cdef struct Updates:         # rows whose weights are set, ring by ring
    intp_t* slots
    float64_t* priorities
    float64_t* weights


cdef class WeightsTogether:
    cdef readonly Followers ring
    cdef list members                # RowWeights of each ring, or None
    cdef readonly bint by_rows       # whether a ring's share is that of its rows
    cdef readonly int64_t given      # priorities that ``update`` was given ...
    cdef readonly int64_t late       # ... of which so many were of rows that were gone

    cdef RowWeights c_member(self, intp_t number)
    cdef int c_sync(self) except -1
    cdef intp_t c_slot(self, int64_t index) noexcept
    cdef intp_t c_measure(self, Part* parts) except -1
    cdef int c_rank(self) except -1
    cdef int c_search(
        self, const Part* parts, intp_t count, float64_t* targets, intp_t* rows, intp_t n
    ) except -1
    cdef int c_set(
        self, RowWeights one, const Updates* updates, intp_t first, intp_t stop
    ) except -1
