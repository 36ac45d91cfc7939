"""Attributes and C signatures of ``Parts`` and ``Rings``."""

from numpy cimport ndarray

from cpprb_like._c.typedefs cimport int64_t, intp_t
from cpprb_like._core cimport Ring


cdef struct Span:                # the rows of a ring
    const char* base             # of its arena
    intp_t stride                # of its records
    intp_t stored                # slots in use
    intp_t head                  # slots before this one have rows that were written in this round ...
    int64_t start                # ... whose row id is this one plus the slot, and of others less the capacity
    intp_t capacity
    int64_t handles              # handle of row 0
    int64_t bound                # rows before this one may have been written over
    int64_t clears               # of the ring, as it was followed; so are ...
    int64_t edits
    int64_t changes
    bint is_used                 # by the rows of a call


cdef class Parts:
    cdef readonly intp_t width       # parts, at most
    cdef readonly int bits           # of a name that say which part it is of
    cdef readonly intp_t mask        # the same bits


cdef class Rings(Parts):
    cdef readonly Ring layout        # of the same fields, without rows
    cdef readonly intp_t capacity    # of each ring
    cdef list rings                  # None where there is none yet
    cdef Span* spans                 # of each ring, as they are during a call

    cdef Ring c_ring(self, intp_t number)
    cdef void c_look(self) noexcept
    cdef int c_check_rows(self, rows, const char** records) except -1
    cdef ndarray c_handles(self, ndarray rows)
    cdef dict c_take(self, rows, list arrays, tuple columns)
    cdef void c_point(
        self, intp_t place, const intp_t* rows, intp_t n, const char** values
    ) noexcept
    cdef int c_fill(
        self, list arrays, tuple columns, const intp_t* rows, intp_t n, const char** records
    ) except -1
    cdef void c_fill_block(
        self, Ring ring, char* out, const char** wholes, intp_t place,
        const intp_t* rows, intp_t n,
    ) noexcept
    cdef int c_fill_chain(
        self, Ring ring, char* out, intp_t place, const intp_t* rows, intp_t n
    ) except -1
    cdef bint c_hold_now(self, ndarray rows)
    cdef bint c_hold(self, Span* spans, const intp_t* rows, intp_t n) noexcept
