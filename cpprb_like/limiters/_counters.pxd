"""Attributes and C signatures of ``Counters``."""

from cpprb_like._c.typedefs cimport float64_t, int64_t, intp_t


cdef class Counters:
    cdef readonly object memory          # keeps the words alive
    cdef readonly intp_t lines           # writers first, then readers
    cdef readonly intp_t writers
    cdef int64_t* words                  # WORDS for each line
    cdef volatile int64_t* used        # of each line, whether somebody ever used it
    cdef int64_t* base                   # of the line after the last
    cdef float64_t samples_per_insert
    cdef float64_t min_size
    cdef float64_t min_diff
    cdef float64_t max_diff

    cdef int c_check(self, intp_t line, int64_t n) except -1
    cdef void c_sum(self, int64_t* sums) noexcept
