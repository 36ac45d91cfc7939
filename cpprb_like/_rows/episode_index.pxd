"""Attributes and C signatures of ``EpisodeIndex``."""

from numpy cimport ndarray

from cpprb_like._core cimport DerivedState
from cpprb_like._rows.slot_set cimport SlotSet
from cpprb_like._c.typedefs cimport int64_t, intp_t, uint8_t, uint32_t


cdef struct Bounds:              # of an episode
    int64_t first                # row ids
    int64_t last
    intp_t length                # rows that hold a step, -1 if they have to be counted
    intp_t place                 # of its record, or -1 less the stream of one that is cut
    bint is_known                # it is in the buffer from its beginning


cdef class EpisodeIndex(DerivedState):
    # Of each stream:
    cdef int64_t[::1] newest     # the newest row that holds a step, or ended a deleted episode
    cdef intp_t[::1] records     # place of its episode, or one of the enum in the module
    cdef int64_t[::1] cut_firsts  # the episode whose first rows were overwritten; -1: there is none
    cdef int64_t[::1] cut_lasts
    cdef intp_t n_cut
    cdef ndarray cut             # streams that have one, by the first row that is left ...
    cdef bint cut_is_sorted      # ... if this says so
    # Of each other episode, in the order of their first rows, from ``head`` to ``tail``:
    cdef ndarray table           # a column of ``room`` int64 for each of the pointers
    cdef int64_t* firsts
    cdef int64_t* lasts
    cdef int64_t* lengths
    cdef int64_t* befores        # the row that ended the episode before, -1 if unknown
    cdef intp_t room
    cdef intp_t head
    cdef intp_t tail
    cdef SlotSet gone            # places of those that were deleted
    # Of the row in each slot, the place of its episode plus ``shift``, modulo 2**32: that never
    # changes. NULL until the episode of a row is read.
    cdef ndarray memory
    cdef uint32_t* numbers
    cdef uint32_t shift

    cdef int c_forget(self) except -1
    cdef int c_make_room(self) except -1
    cdef int c_sync(self) except -1
    cdef int c_sync_numbers(self) except -1
    cdef int c_sync_rows(self) except -1
    cdef void c_point(self) noexcept
    cdef int c_see(self, int64_t row, intp_t stream, intp_t slot) except -1
    cdef int c_lose(self) except -1
    cdef intp_t c_count(self) noexcept
    cdef Bounds c_find(self, intp_t number) noexcept
    cdef bint c_find_row(self, int64_t row, Bounds* found) noexcept nogil
    cdef void c_fetch_rows(self, const intp_t* slots, intp_t n) noexcept nogil
    cdef bint c_is_known(self, intp_t place) noexcept nogil
    cdef intp_t c_before(self, int64_t first) noexcept
    cdef intp_t c_place(self, int64_t first) noexcept
    cdef intp_t c_length(self, Bounds* bounds) noexcept
    cdef uint8_t c_ends(self, const Bounds* bounds) noexcept
    cdef int c_forget_one(self, int64_t first) except -1
    cdef void c_unlist(self, int64_t first) noexcept
    cdef intp_t c_list(self, int64_t first, int64_t last, intp_t* slots, intp_t most) noexcept
