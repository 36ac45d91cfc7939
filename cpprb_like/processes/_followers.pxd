"""Attributes and C signatures of ``Follower`` and ``Followers``."""

from numpy cimport ndarray

from cpprb_like._c.typedefs cimport int64_t, intp_t, uint8_t
from cpprb_like._core cimport Ring
from cpprb_like._rows.rings cimport Rings


cdef enum:  # results of ``Follower.sync``
    BUSY = 1                 # rows are being edited


cdef class Follower:
    cdef readonly Ring ring              # ring over the same rows, with its own header and flags
    cdef int64_t left_out                # rows before this one are left out
    cdef const volatile int64_t* live    # header of the writer
    cdef const uint8_t* live_flags       # flags of the writer in slot 0
    cdef intp_t live_stride              # bytes from slot to slot of these flags
    cdef ndarray memory                  # owner of these flags
    cdef ndarray changes_memory          # owner of the change counter
    cdef bint is_inside                  # whether a call of ``c_sync`` is in progress

    cdef bint c_is_behind(self) noexcept nogil
    cdef int c_sync(self) except -1
    cdef int c_sync_once(self) except -1
    cdef int c_leave_out(self, int64_t row, uint8_t flags) except -1
    cdef int c_forget_rows(self, int64_t clears, int64_t base) except -1
    cdef void c_follow_ends(self) noexcept
    cdef int c_follow_rows(self, int64_t written) except -1
    cdef int c_reread(self, int64_t written) except -1
    cdef int64_t c_open_steps(self, intp_t stream) noexcept


cdef class Followers(Rings):
    cdef list members                # Follower or None, for each ring
    cdef list usable                 # whether rows of each ring may be drawn
    cdef readonly tuple usable_rings  # the rings whose rows may be drawn, with their numbers
    cdef readonly int64_t follows    # number of calls of ``follow``
    cdef public ndarray first_counts
    cdef public bytes priorities_read
    cdef public bint is_settled
    cdef public bint is_uniform
    cdef public object limits
    cdef public object drawn

    cdef bint c_is_usable(self, intp_t number) noexcept
    cpdef list follow(self)
    cpdef follow_all(self, shards)
    cpdef draw_uniform(self, intp_t n, rng, bint replace)
    cdef tuple c_read_once(self, shards, tuple wanted)
