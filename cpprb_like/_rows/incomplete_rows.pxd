"""Attributes and C signatures of ``IncompleteRows``."""

from cpprb_like._c.typedefs cimport int64_t, intp_t
from cpprb_like._rows.slot_set cimport SlotSet
from cpprb_like._rows.walk cimport Walk


cdef class IncompleteRows:
    cdef intp_t lookahead            # n - 1 for n-step returns
    cdef intp_t size                 # rows that can be drawn, at most
    cdef intp_t n_envs
    cdef SlotSet out                 # slots of absent rows
    # Of the last ``c_find``:
    cdef int64_t written, clears, edits  # words of the header; -1: none
    cdef intp_t head                 # slot of the next row
    cdef int64_t lap                 # id of the row in slot 0, of the round that writes now
    cdef int64_t kept_from           # id of the oldest row that is not left out
    cdef intp_t n_complete           # rows that can be drawn
    cdef intp_t n_open               # incomplete rows
    cdef int64_t oldest_open         # the oldest incomplete row; ``written`` without one
    cdef int64_t[::1] open_from      # the oldest incomplete row of each stream; its next row without one
    cdef int64_t[::1] open_rows      # the incomplete rows, ascending: see ``c_list_open``; twice their room
    cdef bint lists_open             # whether ``open_rows`` has them

    cdef void c_find_open(
        self, const Walk* walk, const int64_t* lens, int64_t clears, int64_t edits
    ) noexcept nogil
    cdef void c_leave_out(self, const Walk* walk) noexcept nogil
    cdef int64_t c_first_completed(self, const Walk* walk) noexcept nogil
    cdef bint c_is_complete(self, intp_t slot) noexcept nogil
    cdef intp_t c_count_open(self, const Walk* walk, int64_t row, intp_t place) noexcept nogil
    cdef void c_list_open(self, const Walk* walk) noexcept nogil


cdef inline bint c_has_open(IncompleteRows rows, int64_t row) noexcept nogil:
    """Whether a row that holds a step is incomplete, and not left out."""
    return row >= rows.oldest_open and row >= rows.open_from[row % rows.n_envs]
