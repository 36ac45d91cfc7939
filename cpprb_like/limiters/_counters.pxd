"""Attributes and C signatures of ``Counters`` and ``Turn``."""

from cpprb_like._c.typedefs cimport float64_t, int64_t, intp_t


cdef class Counters:
    cdef readonly object memory          # owner of the words
    cdef readonly intp_t lines           # writers first, then readers
    cdef readonly intp_t writers
    cdef int64_t* words                  # WORDS words for each line
    cdef volatile int64_t* used          # for each line: whether it was ever used
    cdef int64_t* base                   # words of the line after the last
    cdef float64_t samples_per_insert
    cdef float64_t min_size
    cdef float64_t min_diff
    cdef float64_t max_diff
    cdef list turns                      # waiting turns of this process, oldest first
    cdef int64_t overtaken[2]            # inserts, samples: turns that began up to this time have no precedence
    cdef intp_t generation               # forks since these counters were made

    cdef int c_check_line(self, intp_t line, int64_t n) except -1
    cdef void c_sum_lines(self, int64_t* sums) noexcept
    cdef bint c_allows(self, bint sample, int64_t* sums, int64_t more) noexcept
    cdef Turn c_first_turn(self, intp_t line)
    cdef int c_show(self, intp_t line) except -1
    cdef bint c_may_go_on(self, bint sample, int64_t* sums) noexcept
    cdef bint c_steps_back(self, Turn turn, int64_t* sums, int64_t now)


cdef class Turn:
    cdef Counters counters
    cdef intp_t line
    cdef readonly int64_t n
    cdef bint begun                      # whether the items are announced
    cdef bint wanted                     # whether a caller waits for the result, see ``prefetch_state``
    cdef int64_t since                   # time at which the wait began, 0 without a wait
    cdef int64_t now                     # time of the last try
    cdef readonly int64_t behind         # items of the turn that has precedence, 0 without one
    cdef int64_t oldest                  # time at which the wait of that turn began
    cdef int64_t done                    # items done by the other side when this turn stepped back
    cdef int64_t stepped_back            # time at which this turn stepped back
    cdef intp_t generation               # generation of the counters when the call began

    cdef int c_leave(self) except -1
    cdef int c_close_turn(self) except -1
    cdef int c_count_rows(self, held) except -1
