"""Attributes and C signatures of ``Overflow``."""

from numpy cimport ndarray

from cpprb_like._c.typedefs cimport int64_t, intp_t


cdef class Overflow:
    cdef readonly intp_t nbytes      # bytes of a value
    cdef intp_t room                 # number of values that fit into the memory
    cdef intp_t head                 # place of the oldest value
    cdef readonly intp_t count
    cdef ndarray rows                # row ids of the values: a circular queue from ``head`` on
    cdef ndarray values              # bytes of the values, at the same places
    cdef ndarray keys                # in a file: ``base`` + row id, at the same places; None on the heap
    cdef int64_t* key_data           # address of ``keys``, or NULL
    cdef int64_t base                # rows before the last clear, so no key repeats
    cdef readonly intp_t wanted      # number of values that the next file needs room for

    cdef int c_reserve(self, intp_t n) except -1
    cdef intp_t c_place(self, intp_t number) noexcept nogil
    cdef char* c_push(self, int64_t row) noexcept nogil
    cdef void c_drop(self, int64_t before) noexcept nogil
    cdef intp_t c_number(self, int64_t row) noexcept nogil
    cdef char* c_find(self, int64_t row) noexcept nogil
    cdef bint c_lacks_room(self) noexcept nogil
    cdef void c_clear(self, int64_t base) noexcept nogil
    cdef void c_follow(self, int64_t base, int64_t oldest, int64_t stop) noexcept nogil
