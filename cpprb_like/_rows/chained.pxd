"""Attributes and C signatures of ``Chain``, ``FrameStack`` and ``NextOf``."""

from numpy cimport ndarray

from cpprb_like._rows.overflow cimport Overflow
from cpprb_like._rows.column cimport Column
from cpprb_like._machine.blocks cimport Values
from cpprb_like._c.typedefs cimport int64_t, intp_t, uint8_t


cdef struct NewRows:         # rows of an ``add`` in progress
    char** values            # dense values of each column, by ``place``
    intp_t n
    int64_t first            # id of the first row
    int64_t oldest           # id of the oldest row in the ring after the call
    const uint8_t* flags     # flag byte of slot 0; flags of these rows are written
    intp_t flag_stride
    int64_t base             # rows before the last clear


cdef class Chain:
    cdef readonly str name           # name of the field
    cdef intp_t place                # place of its address among those of a call
    cdef intp_t capacity
    cdef intp_t n_envs
    cdef readonly intp_t nbytes      # bytes of a value
    cdef uint8_t[::1] latest         # tags and values of the newest row of each stream: see ``find_newest``
    cdef intp_t half_nbytes          # bytes of one of the two places in ``latest``
    cdef int64_t* tags               # tag of each of the two places: ``base`` + rows written
    cdef intp_t which                # which of the two places has the newest values
    cdef ndarray seen                # whether a stream has a newest row
    cdef ndarray choices             # by row of a call: where ``c_write`` writes the value
    cdef int64_t promise             # of a follower: tag of the values that it reads
    cdef ndarray held                # of a follower: a copy of these values, if they are small
    cdef bint is_held                # whether ``held`` has them
    cdef bint is_promise_lost        # of a follower: whether a value was read that had been overwritten
    cdef readonly tuple asides       # the overflow: one or two ``Overflow``
    cdef readonly int64_t compared   # count of values, without those at starts of episodes that do not follow
    cdef readonly int64_t apart      # of these, values that went to the overflow as a whole

    cdef int c_reserve(self, NewRows* rows) except -1
    cdef void c_write(self, NewRows* rows) noexcept nogil
    cdef int c_gather(self, const int64_t* rows, intp_t n, int64_t written, char* to) except -1
    cdef int c_open(self, Values* values, char* to, intp_t n) except -1
    cdef void c_aim(
        self, const int64_t* rows, const intp_t* places, intp_t n, int64_t written, Values* values
    ) noexcept
    cdef void c_clear(self, int64_t base) noexcept nogil
    cdef int c_follow(self, int64_t base, int64_t written, int64_t oldest, bint anew) except -1
    cdef char* c_latest(self, intp_t which) noexcept nogil
    cdef void c_find_promises(self, int64_t tag) noexcept
    cdef int c_hold_promises(self, int64_t tag) except -1
    cdef bint c_has_promises(self) noexcept
    cdef void c_keep_latest(self, NewRows* rows, const char* values) noexcept nogil


cdef class FrameStack(Chain):
    cdef readonly intp_t depth       # number of frames of a value
    cdef intp_t outer                # number of runs of bytes of a frame
    cdef intp_t inner                # length of such a run
    cdef intp_t frame_nbytes
    cdef intp_t n_frames             # slots of ``frames``, a circular queue
    cdef uint8_t[::1] frames         # the newest frame of each row
    cdef char* frame_data            # address of ``frames``
    cdef Overflow older                 # all frames but the newest of stacks that are no shift
    cdef uint8_t[::1] runs           # by slot: number of rows before it whose frames its value has
    cdef readonly tuple shape        # shape of a value
    cdef readonly intp_t axis        # axis of the frames

    cdef const char* c_frame(self, int64_t row) noexcept nogil
    cdef bint c_is_slide(self, const char* before, const char* value) noexcept nogil
    cdef bint c_is_moved_on(self, const char** frames, const char* value) noexcept nogil
    cdef void c_split(self, const char* value, intp_t frame, char* to) noexcept nogil
    cdef void c_point(self, int64_t row, const char** frames) noexcept nogil


cdef class NextOf(Chain):
    cdef Column column               # the field whose next value this is, or None
    cdef FrameStack stack            # the same if that field is a ``FrameStack``, else None
    cdef uint8_t[::1] arena
    cdef uint8_t[::1] marks          # by slot: where the next value is, see the enum in the module
    cdef Overflow whole                 # next values that are stored whole
    cdef Overflow newest                # next values of which the newest frame is stored; None without a stack

    cdef intp_t c_source(self) noexcept nogil
    cdef bint c_is_own(self, NewRows* rows, intp_t k, const char* promised) noexcept nogil
    cdef void c_keep(self, NewRows* rows, intp_t k, uint8_t choice) noexcept nogil
    cdef void c_point(self, int64_t row, const char** frames) noexcept nogil
    cdef const char* c_whole(self, int64_t row) noexcept nogil
    cdef const char* c_promised(self, int64_t row) noexcept nogil


cdef void c_close(Values* values) noexcept
