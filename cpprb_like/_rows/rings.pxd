"""Attributes and C signatures of ``Parts`` and ``Rings``."""

from numpy cimport ndarray

from cpprb_like._c.typedefs cimport int64_t, intp_t
from cpprb_like._core cimport Ring


cdef struct Span:                # the rows of a ring
    const char* base             # address of the arena
    intp_t stride                # bytes from record to record
    intp_t stored                # slots in use
    intp_t head                  # slot behind the newest row
    int64_t start                # row id less slot, of slots below ``head``; of others ``capacity`` more
    intp_t capacity
    int64_t handles              # handle of row 0
    int64_t bound                # older rows may have been overwritten
    int64_t clears               # of the ring, when it was last followed; so are ``edits`` and ``changes``
    int64_t edits
    int64_t changes
    bint is_used                 # whether a call has rows of this ring


cdef class Parts:
    cdef readonly intp_t width       # most parts
    cdef readonly int bits           # low bits of a name that hold the number of the part
    cdef readonly intp_t mask        # mask of these bits


cdef class Rings(Parts):
    cdef readonly Ring layout        # a ring of the same fields, without rows
    cdef readonly intp_t capacity    # slots of each ring
    cdef list rings                  # rings by number; None for a ring that does not exist yet
    cdef Span* spans                 # rows of each ring, noted by ``c_look``

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
