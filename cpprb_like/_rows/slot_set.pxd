"""Attributes and C signatures of ``SlotSet`` and ``AbsentRuns``."""

from numpy cimport ndarray

from cpprb_like._c.typedefs cimport int32_t, int64_t, intp_t, uint64_t


cdef class SlotSet:
    cdef readonly intp_t capacity    # number of slots of the ring
    cdef readonly intp_t count       # slots in the set
    cdef ndarray memory              # memory of ``bits`` and ``counts``; None until a slot is added
    cdef uint64_t* bits              # a bit for each slot: whether it is in the set
    cdef intp_t* counts              # Fenwick tree over the words of ``bits``, from place 1 on
    cdef intp_t words
    cdef intp_t top                  # the greatest power of two that is at most ``words``

    cdef ndarray c_allocate(self)
    cdef int c_make_memory(self) except -1
    cdef void c_forget(self, ndarray memory) noexcept
    cdef void c_add(self, intp_t slot) noexcept nogil
    cdef void c_remove(self, intp_t slot) noexcept nogil
    cdef void c_change_count(self, intp_t slot, intp_t change) noexcept nogil
    cdef intp_t c_free_before(self, intp_t slot) noexcept nogil
    cdef intp_t c_free_rows(self, int64_t first, int64_t stop) noexcept nogil
    cdef intp_t c_free_at(self, intp_t place) noexcept nogil
    cdef intp_t c_at(self, intp_t place) noexcept nogil
    cdef ndarray c_list(self, intp_t n, bint free)


cdef inline bint c_has(SlotSet slots, intp_t slot) noexcept nogil:
    """Whether a slot is in the set."""
    return slots.count != 0 and slots.bits[slot >> 6] >> (slot & 63) & 1


cdef class AbsentRuns:
    cdef intp_t capacity
    cdef intp_t n_envs
    cdef ndarray memory              # memory of ``onward`` and ``back``; None until a row is absent
    # By slot, of an absent row: rows of its run of absent rows in its stream, itself included:
    cdef int32_t* onward             # from the row on
    cdef int32_t* back               # up to the row

    cdef int c_make_memory(self) except -1
    cdef void c_join(self, int64_t row, intp_t before, intp_t after) noexcept nogil
