"""Attributes and C signatures of ``EpisodeIndex``."""

from numpy cimport ndarray

from cpprb_like._core cimport DerivedState
from cpprb_like._rows.slot_set cimport SlotSet
from cpprb_like._c.typedefs cimport int64_t, intp_t, uint8_t, uint32_t


cdef struct Bounds:              # an episode
    int64_t first                # row id of the first row
    int64_t last                 # row id of the last row
    intp_t length                # rows that hold a step, -1 if they have to be counted
    intp_t place                 # place of its record; of a cut episode -1 less the stream
    bint is_known                # whether the ring has the true first row


cdef class EpisodeIndex(DerivedState):
    # By stream; an episode is cut if its first rows were overwritten:
    cdef int64_t[::1] newest     # the newest row that holds a step, or ended a deleted episode
    cdef intp_t[::1] records     # place of the newest episode, or a value of the enum in the module
    cdef int64_t[::1] cut_firsts  # first row that is left of the cut episode; -1: none
    cdef int64_t[::1] cut_lasts  # last row of the cut episode
    cdef intp_t n_cut
    cdef ndarray cut             # streams with a cut episode, by ``cut_firsts`` ...
    cdef bint cut_is_sorted      # ... while this is true; otherwise in no order
    # Records of the other episodes, by first row, from ``head`` to ``tail``:
    cdef ndarray table           # memory: ``room`` int64 for each pointer below
    cdef int64_t* firsts
    cdef int64_t* lasts
    cdef int64_t* lengths
    cdef int64_t* befores        # last row of the previous episode of the stream, -1 if unknown
    cdef intp_t room
    cdef intp_t head
    cdef intp_t tail
    cdef SlotSet gone            # places of deleted episodes
    # By slot: place of the episode of its row plus ``shift``, modulo 2**32. The number never
    # changes. NULL until an episode is found by row.
    cdef ndarray memory
    cdef uint32_t* numbers
    cdef uint32_t shift
    cdef int64_t rereads         # those of the ring when all rows were last read

    cdef int c_forget_episodes(self) except -1
    cdef int c_make_room(self) except -1
    cdef int c_sync_episodes(self) except -1
    cdef int c_sync_numbers(self) except -1
    cdef int c_sync_rows(self) except -1
    cdef void c_point_at_table(self) noexcept
    cdef int c_see(self, int64_t row, intp_t stream, intp_t slot) except -1
    cdef int c_lose(self) except -1
    cdef intp_t c_count(self) noexcept
    cdef Bounds c_episode(self, intp_t number) noexcept
    cdef bint c_find_row(self, int64_t row, Bounds* found) noexcept nogil
    cdef void c_fetch_rows(self, const intp_t* slots, intp_t n) noexcept nogil
    cdef bint c_is_known(self, intp_t place) noexcept nogil
    cdef intp_t c_episodes_before(self, int64_t first) noexcept
    cdef intp_t c_record_of(self, int64_t first) noexcept
    cdef intp_t c_length(self, Bounds* bounds) noexcept
    cdef uint8_t c_ends(self, const Bounds* bounds) noexcept
    cdef int c_forget_one(self, int64_t first) except -1
    cdef void c_unlist(self, int64_t first) noexcept
    cdef intp_t c_list_rows(self, int64_t first, int64_t last, intp_t* slots, intp_t most) noexcept
