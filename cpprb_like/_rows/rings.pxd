"""Attributes and C signatures of ``Parts`` and ``Rings``."""

from numpy cimport ndarray

from cpprb_like._c.copying cimport c_prefetch_rows
from cpprb_like._c.typedefs cimport int64_t, intp_t
from cpprb_like._core cimport Ring


cdef struct Span:                # the rows of a ring
    const char* base             # address of the arena
    intp_t stored                # slots in use
    intp_t head                  # slot behind the newest row
    int64_t start                # row id less slot, of slots below ``head``; of others ``capacity`` more
    intp_t capacity
    int64_t handles              # handle of row 0
    int64_t bound                # older rows may have been overwritten
    int64_t clears               # of the ring, when it was last followed; so are the next three
    int64_t edits                # without those by which rows left early
    int64_t gone                 # rows before this one left early
    int64_t changes
    bint is_used                 # whether a call has rows of this ring


cdef struct Share:              # a ring that is drawn from
    intp_t number
    intp_t start                     # number of rows of the rings before it
    intp_t stop                      # ``start`` plus its own rows
    intp_t first                     # slot of its oldest row less ``start``
    intp_t capacity


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
    cdef Ring c_any(self)
    cdef void c_look(self) noexcept
    cdef int c_check_rows(self, rows, const char** records) except -1
    cdef ndarray c_handles(self, ndarray rows)
    cdef dict c_take_columns(self, rows, list arrays, tuple columns)
    cdef int c_gather_records(
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
    cdef bint c_rows_hold(self, Span* spans, const intp_t* rows, intp_t n) noexcept


cdef intp_t c_find_records(
    Span* spans, int bits, intp_t offset, intp_t stride, const intp_t* rows, intp_t n,
    const char* blank, const char** values,
) noexcept nogil

cdef void c_name_rows(
    const Share* shares, intp_t count, int spread, intp_t* rows, intp_t n
) noexcept nogil


cdef inline void c_fetch_records(
    const char** records, intp_t first, intp_t size, intp_t n
) noexcept nogil:
    """Prefetch the cache lines of records."""
    cdef intp_t k, zero = 0
    for k in range(n):
        c_prefetch_rows(records[k] + first, size, size, &zero, 1)
