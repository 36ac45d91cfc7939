"""Attributes and C signatures of ``Follower`` and ``Followers``."""

from numpy cimport ndarray

from cpprb_like._c.typedefs cimport int64_t, intp_t, uint8_t
from cpprb_like._core cimport Ring


cdef enum:  # what ``Follower.sync`` says
    BUSY = 1                 # rows are being edited


cdef class Follower:
    cdef readonly Ring ring              # over the same rows, with a header and flags of its own
    cdef int64_t left_out                # rows before this one are left out already
    cdef const volatile int64_t* live    # header of the process that writes
    cdef const uint8_t* live_flags       # its flags: that of slot 0
    cdef intp_t live_stride              # ... and from slot to slot
    cdef ndarray memory                  # owner of these flags
    cdef ndarray changes_memory
    cdef readonly object reopen          # called when the files beside the rows may be others
    cdef bint is_inside                  # a call is under way

    cdef bint c_is_behind(self) noexcept nogil
    cdef int c_sync(self) except -1
    cdef int c_try(self) except -1
    cdef int c_forget(self, int64_t clears, int64_t base) except -1
    cdef void c_follow_ends(self) noexcept
    cdef int c_follow_rows(self, int64_t written) except -1
    cdef int c_reread(self, int64_t written) except -1


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


cdef class Followers:
    cdef readonly intp_t width       # rings, at most
    cdef readonly object names       # Parts: numbers of rows, split by ring
    cdef readonly int bits           # of a row's number that say which ring it is in
    cdef intp_t mask                 # the same bits
    cdef list members                # Follower or None
    cdef list rings                  # their rings, or None
    cdef list usable                 # whether rows of each may be drawn
    cdef readonly intp_t late        # a ring that had lost a row in the last ``attempt`` without a batch
    cdef Span* spans                 # of each ring, as they are during a call

    cdef Ring c_ring(self, intp_t number)
    cdef bint c_is_usable(self, intp_t number) noexcept
    cdef list c_follow(self)
    cdef list c_parts(self, ndarray rows, intp_t* places)
    cdef dict c_read_parts(
        self, ndarray rows, list readers, names, bint located, dict arrays, intp_t* late
    )
    cdef dict c_join(
        self, list parts, const intp_t* rows, const intp_t* places, intp_t n, dict arrays
    )
    cdef dict c_read(self, ndarray rows, tuple columns, list arrays, intp_t* late)
    cdef void c_look(self) noexcept
    cdef ndarray c_handles(self, ndarray rows)
    cdef int c_check_rows(self, rows, const char** records) except -1
    cdef int64_t c_row(self, intp_t row) noexcept nogil
    cdef int c_fill(
        self, list arrays, tuple columns, const intp_t* rows, intp_t n, const char** records
    ) except -1
    cdef int c_fill_chain(
        self, Ring ring, char* out, intp_t place, const intp_t* rows, intp_t n
    ) except -1
    cdef intp_t c_overtaken(self, Span* spans, const intp_t* rows, intp_t n) noexcept
    cdef void c_fill_block(
        self, Ring ring, char* out, const char** wholes, intp_t place,
        const intp_t* rows, intp_t n,
    ) noexcept
