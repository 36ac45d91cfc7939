"""Attributes and C signatures of ``Counters`` and ``Turn``."""

from cpprb_like._c.typedefs cimport float64_t, int64_t, intp_t


cdef class Counters:
    cdef readonly object memory          # keeps the words alive
    cdef readonly intp_t lines           # writers first, then readers
    cdef readonly intp_t writers
    cdef int64_t* words                  # WORDS for each line
    cdef volatile int64_t* used          # of each line, whether it was ever used
    cdef int64_t* base                   # of the line after the last
    cdef float64_t samples_per_insert
    cdef float64_t min_size
    cdef float64_t min_diff
    cdef float64_t max_diff
    cdef list turns                      # of this process that wait, in the order in which they began
    cdef int64_t overtaken[2]            # of inserts, of samples: time up to which no call goes first
    cdef intp_t generation               # forks since these counters were made

    cdef int c_check(self, intp_t line, int64_t n) except -1
    cdef void c_sum(self, int64_t* sums) noexcept
    cdef bint c_allows(self, bint sample, int64_t* sums, int64_t more) noexcept
    cdef Turn c_first(self, intp_t line)
    cdef int c_show(self, intp_t line) except -1
    cdef bint c_may_go_on(self, bint sample, int64_t* sums) noexcept
    cdef bint c_steps_back(self, Turn turn, int64_t* sums, int64_t now)


cdef class Turn:
    cdef Counters counters
    cdef intp_t line
    cdef readonly int64_t n
    cdef bint begun                      # whether the items are announced
    cdef bint wanted                     # whether a caller waits for this call, see ``prefetch_state``
    cdef int64_t since                   # time at which the call began to wait, 0 if it does not
    cdef int64_t now                     # time of its last look
    cdef readonly int64_t behind         # items of the call that goes first, 0 if none does
    cdef int64_t oldest                  # that call, by the time at which it began to wait
    cdef int64_t done                    # calls of the other side when this one stepped back, ...
    cdef int64_t stepped_back            # ... at this time
    cdef intp_t generation               # of the counters, when the call began

    cdef int c_leave(self) except -1
    cdef int c_close(self) except -1
    cdef int c_count(self, held) except -1
