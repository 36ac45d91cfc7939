"""Attributes and C signatures of the fields that are chained."""

from numpy cimport ndarray

from cpprb_like._rows.overflow cimport Overflow
from cpprb_like._rows.column cimport Column
from cpprb_like._machine.blocks cimport Values
from cpprb_like._c.typedefs cimport int64_t, intp_t, uint8_t


cdef struct NewRows:         # that are being written
    char** values            # of each column, by its place; dense
    intp_t n
    int64_t first            # row id
    int64_t oldest           # row id of the oldest row that is in the ring afterwards
    const uint8_t* flags     # of the slots, after the rows were written
    intp_t flag_stride
    uint8_t absent           # the flag of a row without a step
    int64_t base             # rows before the last clear


cdef class Chain:
    cdef readonly str name           # of the field
    cdef intp_t place                # of the field among the addresses of a call
    cdef intp_t capacity
    cdef intp_t n_envs
    cdef readonly intp_t nbytes      # of a value
    cdef ndarray latest              # memory for the value of the newest row of each stream
    cdef char* latest_data           # where these are
    cdef char* spare_data            # where the next ones go, in a file; NULL on the heap
    cdef int64_t* tags               # in a file: ``base`` + rows written, for the values in each of the two places
    cdef intp_t which                # of the two places has these
    cdef ndarray seen                # whether there is one
    cdef ndarray choices             # for each row of a call: where ``c_write`` writes a value; see ``c_reserve``
    cdef int64_t promise             # of a ring that follows another: the tag of the values in ``latest_data``
    cdef bint is_promise_read        # ... and whether one of them was read since
    cdef readonly tuple asides       # its ``Overflow``, one or two
    cdef readonly int64_t compared   # values that were compared with a neighbouring row's so far ...
    cdef readonly int64_t apart      # ... and of them those that went to the overflow as a whole

    cdef int c_reserve(self, NewRows* rows) except -1
    cdef void c_write(self, NewRows* rows) noexcept nogil
    cdef int c_gather(self, const int64_t* rows, intp_t n, int64_t written, char* to) except -1
    cdef int c_open(self, Values* values, char* to, intp_t n) except -1
    cdef tuple c_held(self)
    cdef void c_aim(
        self, const int64_t* rows, const intp_t* places, intp_t n, int64_t written, Values* values
    ) noexcept
    cdef void c_clear(self, int64_t base) noexcept nogil
    cdef bint c_lacks_room(self) noexcept
    cdef bint c_promises_hold(self) noexcept
    cdef bint c_follow(self, int64_t base, int64_t written, int64_t oldest) noexcept
    cdef bint c_find_promises(self, int64_t tag) noexcept
    cdef void c_keep_latest(self, NewRows* rows, const char* values) noexcept nogil


cdef class FrameStack(Chain):
    cdef readonly intp_t depth       # frames of a value
    cdef intp_t outer                # runs of bytes of a frame ...
    cdef intp_t inner                # ... and the length of one
    cdef intp_t frame_nbytes
    cdef intp_t n_frames             # in the circle
    cdef uint8_t[::1] frames         # the newest frame of each row
    cdef char* frame_data            # of ``frames``
    cdef Overflow older                 # all frames but the newest of stacks that did not slide
    cdef uint8_t[::1] runs           # of each slot: rows before it whose frames are part of its value
    cdef readonly tuple shape        # of a value
    cdef readonly intp_t axis        # of the frames

    cdef const char* c_frame(self, int64_t row) noexcept nogil
    cdef bint c_is_slide(self, const char* before, const char* value) noexcept nogil
    cdef bint c_is_moved_on(self, const char** frames, const char* value) noexcept nogil
    cdef void c_split(self, const char* value, intp_t frame, char* to) noexcept nogil
    cdef void c_point(self, int64_t row, const char** frames) noexcept nogil


cdef class NextOf(Chain):
    cdef Column column               # the field whose next value this is, ...
    cdef FrameStack stack            # ... or this one
    cdef uint8_t[::1] arena
    cdef uint8_t[::1] marks          # of each slot: where the next value is
    cdef Overflow whole                 # next values
    cdef Overflow newest                # newest frames of next values

    cdef intp_t c_source(self) noexcept nogil
    cdef bint c_is_own(self, NewRows* rows, intp_t k, const char* promised) noexcept nogil
    cdef void c_keep(self, NewRows* rows, intp_t k, uint8_t choice) noexcept nogil
    cdef void c_point(self, int64_t row, const char** frames) noexcept nogil
    cdef const char* c_whole(self, int64_t row) noexcept nogil
    cdef const char* c_promised(self, int64_t row) noexcept nogil


cdef void c_close(Values* values) noexcept
