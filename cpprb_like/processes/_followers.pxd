"""Attributes and C signatures of ``Follower`` and ``Followers``."""

from numpy cimport ndarray

from cpprb_like._c.typedefs cimport int64_t, intp_t, uint8_t
from cpprb_like._core cimport Ring
from cpprb_like._rows.rings cimport Rings


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


cdef struct Share:              # a ring that is drawn from
    intp_t number
    intp_t start                     # rows of the rings before
    intp_t stop                      # ... and of it
    intp_t first                     # slot of its oldest row, less the rows of the rings before
    intp_t capacity


cdef class Followers(Rings):
    cdef list members                # Follower or None
    cdef list usable                 # whether rows of each may be drawn
    cdef readonly int64_t follows    # calls of ``follow`` so far
    cdef public ndarray first_counts
    cdef public bytes heard
    cdef public bint is_settled
    cdef public bint is_uniform
    cdef public object limits
    cdef public object drawn

    cdef bint c_is_usable(self, intp_t number) noexcept
    cpdef list follow(self)
    cpdef follow_all(self, shards)
    cpdef draw_uniform(self, intp_t n, rng, bint replace)
    cdef tuple c_read(self, shards, tuple wanted)
