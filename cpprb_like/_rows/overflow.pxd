"""Attributes and C signatures of ``Overflow``."""

from cpprb_like._c.typedefs cimport int64_t, intp_t, uint8_t
from cpprb_like._rows.byte_ring cimport Places


cdef class Overflow:
    cdef readonly intp_t nbytes      # bytes of a value
    cdef intp_t lag                  # newest rows without a value
    cdef Places places               # places of the values
    cdef int64_t base                # rows before the last clear, so no key repeats
    cdef int64_t newest              # key of the newest value
    cdef intp_t next_place           # of a follower: where the next value of the newest run will be
    cdef int64_t run                 # of a follower: the word RUN of the newest run; -1: not known
    cdef intp_t wanted               # units that the last ``c_reserve`` needs
    cdef intp_t usable               # units whose memory may be written
    cdef object use                  # ``use(first, stop)`` makes the memory of units usable; or None
    cdef int64_t[::1] word_memory
    cdef int64_t[::1] key_memory
    cdef uint8_t[::1] value_memory
    cdef volatile int64_t* words     # see the module
    cdef volatile int64_t* keys      # ``base`` + row id of each value
    cdef char* values

    cdef bint c_reserve(self, intp_t n, int64_t before) except -1
    cdef int c_use(self, intp_t stop) except -1
    cdef char* c_push(self, int64_t row) noexcept nogil
    cdef void c_drop(self, int64_t before) noexcept nogil
    cdef void c_leave(self, Places* places, int64_t before) noexcept nogil
    cdef char* c_find(self, int64_t row) noexcept nogil
    cdef void c_clear(self, int64_t base) noexcept nogil
    cdef int c_derive(self, int64_t base, int64_t oldest, int64_t stop) except -1
    cdef int c_follow(self, int64_t base, int64_t oldest, int64_t written, bint anew) except -1
