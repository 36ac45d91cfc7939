"""Attributes and C signatures of ``Starts``."""

from libc.stdint cimport int8_t
from numpy cimport ndarray

from cpprb_like._core cimport DerivedState
from cpprb_like._rows.episode_index cimport EpisodeIndex
from cpprb_like._c.random_integers cimport Bits
from cpprb_like._rows.slot_set cimport SlotSet
from cpprb_like._c.typedefs cimport int64_t, intp_t


cdef class Starts(DerivedState):
    cdef EpisodeIndex index
    cdef readonly intp_t rows        # of a sequence
    cdef readonly intp_t least       # rows from the start to the end of an episode that has ended
    cdef readonly bint across        # sequences run over the ends of episodes
    cdef readonly intp_t stride      # rows of a stream from one start to the next
    cdef readonly intp_t before      # rows before a start that have to be there
    # The set of all starts, made once starts were rare:
    cdef SlotSet starts
    cdef ndarray streams             # memory of the following arrays, which have an entry for each stream
    cdef int64_t* waiting            # the oldest row that may become a start, -1 if there is none
    cdef int64_t* counts             # rows that hold a step, from there on: never too few
    cdef int64_t* newest             # row that holds a step

    cdef int c_prepare(self) except -1
    cdef bint c_is_first(self, int64_t row) noexcept nogil
    cdef bint c_is_on_stride(self, int64_t row) noexcept nogil
    cdef bint c_has_before(self, int64_t row) noexcept nogil
    cdef bint c_is_complete(self, intp_t slot) noexcept nogil
    cdef intp_t c_looked_at(self, int64_t row) noexcept nogil
    cdef int c_state(self, intp_t slot) noexcept nogil
    cdef void c_tell(self, const intp_t* slots, intp_t n, int8_t* states) noexcept nogil
    cdef intp_t c_try(self, intp_t* out, intp_t n, Bits* bits) noexcept
    cdef intp_t c_choose(self, intp_t* out, intp_t k, intp_t n, Bits* bits) noexcept
    cdef int c_follow(self) except -1
    cdef void c_check_all(self) noexcept
    cdef void c_check_oldest(self) noexcept
    cdef bint c_is_over(self) noexcept
    cdef void c_begin(self, ndarray memory, ndarray streams) noexcept
    cdef void c_see(self, int64_t row, intp_t stream, intp_t slot) noexcept
    cdef void c_settle(self, intp_t stream) noexcept
    cdef void c_end(self, intp_t stream) noexcept
    cdef void c_wait_from(self, intp_t stream, int64_t row) noexcept
    cdef void c_move_on(self, intp_t stream) noexcept
    cdef void c_add(self, int64_t row) noexcept
    cdef bint c_check(self, intp_t slot) noexcept
