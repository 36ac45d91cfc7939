"""Attributes and C signatures of ``EpisodeBounds``."""

from numpy cimport ndarray

from cpprb_like._core cimport Ring
from cpprb_like._random cimport Bits
from cpprb_like._typedefs cimport int64_t, intp_t


cdef class EpisodeBounds:
    cdef readonly Ring ring
    cdef int64_t revision            # of the ring; all below belongs to it
    cdef int64_t seen                # rows before this one were looked at
    cdef int64_t[::1] newest         # newest step of each stream that was looked at, -1 for none
    cdef intp_t[::1] heads           # place of the oldest end of each stream ...
    cdef intp_t[::1] counts          # ... and how many follow from there
    cdef intp_t room                 # places that each stream has
    cdef ndarray ends                # row ids: those of stream s from place s * room on, ascending

    cdef void c_forget(self) noexcept
    cdef int c_sync(self) except -1
    cdef int c_push(self, intp_t stream, int64_t row, int64_t oldest) except -1
    cdef int c_make_room(self, intp_t stream) except -1
    cdef void c_find(self, int64_t row, int64_t* first, int64_t* last) noexcept
    cdef int64_t c_pick(self, Bits* bits, int64_t first, int64_t last, intp_t step) noexcept
    cdef ndarray c_choose(self, ndarray slots, Bits* bits, int strategy)
