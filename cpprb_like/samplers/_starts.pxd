"""Attributes and C signatures of ``Starts``."""

from cpprb_like._core cimport DerivedState
from cpprb_like._rows.episode_index cimport EpisodeIndex
from cpprb_like._rows.slot_set cimport SlotSet
from cpprb_like._c.typedefs cimport int64_t, intp_t, uint8_t


cdef class Starts(DerivedState):
    cdef EpisodeIndex index
    cdef readonly intp_t rows        # rows of a sequence
    cdef readonly intp_t least       # rows from the start to the end of an episode that has ended
    cdef readonly bint across        # whether sequences continue across the ends of episodes
    cdef readonly intp_t stride      # rows of a stream from one start to the next
    cdef readonly intp_t before      # rows of the episode that must precede a start
    # Of the call in progress, see ``c_note_certain``:
    cdef intp_t last                 # slot of the newest row
    cdef intp_t newest               # newest rows that have to be looked at
    cdef intp_t certain              # rows before these that are starts
    # Made when starts are rare:
    cdef SlotSet starts              # the set of all starts; empty until then
    cdef int64_t waits               # no older row waits for more rows
    cdef int64_t hidden              # entries of the ring's log of hidden rows that were applied

    cdef int c_sync_index(self) except -1
    cdef bint c_is_first(self, int64_t row) noexcept nogil
    cdef bint c_is_on_stride(self, int64_t row) noexcept nogil
    cdef bint c_has_before(self, int64_t row) noexcept nogil
    cdef bint c_is_complete(self, intp_t slot) noexcept nogil
    cdef intp_t c_looked_at(self, int64_t row) noexcept nogil
    cdef int c_state(self, intp_t slot) noexcept nogil
    cdef bint c_reads_before(self) noexcept nogil
    cdef void c_note_certain(self) noexcept
    cdef const uint8_t* c_flags_before(self, intp_t slot) noexcept nogil
    cdef int c_sync_starts(self) except -1
    cdef bint c_is_over(self) noexcept
    cdef bint c_follow_hidden(self) noexcept
    cdef int c_sync_start(self, intp_t slot) noexcept
    cdef void c_discard(self, intp_t slot) noexcept
    cdef bint c_check_start(self, intp_t slot) noexcept
    cdef void c_check_oldest(self) noexcept
