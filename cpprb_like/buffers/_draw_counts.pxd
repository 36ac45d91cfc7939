"""Attributes and C signatures of ``DrawCounts`` and ``Undrawn``."""

from numpy cimport ndarray

from cpprb_like._core cimport Ring
from cpprb_like._c.typedefs cimport int64_t, intp_t, uint64_t


cdef enum:
    BLOCKS = 64                      # runs of rows of which the expected share is known


cdef class Undrawn:
    cdef readonly Ring ring
    cdef int64_t seen                # rows written at the last ``c_sync_undrawn``
    cdef int64_t clears
    cdef double survival             # probability that a row of the first block was never drawn
    cdef double[BLOCKS + 1] born     # ``survival`` when the first row of each block was written
    cdef intp_t block                # rows of a block

    cdef void c_sync_undrawn(self) noexcept
    cdef void c_thin(self, double left) noexcept
    cdef double c_share_undrawn(self) noexcept


cdef class DrawCounts:
    cdef readonly ndarray memory     # int64 words, which other processes may read
    cdef int64_t* words
    cdef bint is_uniform             # whether all draws so far were uniform over all rows
    cdef readonly list undrawn       # ``Undrawn`` of each ring, or None

    cdef void c_count_age(self, int64_t age, intp_t n) noexcept
    cdef void c_forget_draws(self)
    cdef int c_note_draw(self, Ring ring, ndarray slots, bint of_all) except -1
    cdef int64_t c_share_undrawn(self) noexcept
    cdef Undrawn c_undrawn(self, intp_t number, Ring ring)
    cdef dict c_stats(self)
