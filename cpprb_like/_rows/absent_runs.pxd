"""Attributes and C signatures of ``AbsentRuns``."""

from numpy cimport ndarray

from cpprb_like._c.typedefs cimport int32_t, int64_t, intp_t


cdef class AbsentRuns:
    cdef intp_t capacity
    cdef intp_t n_envs
    cdef ndarray memory              # what the two below point into; None until a row is absent
    # Of an absent row, a number of absent rows one after the other in its stream, itself included:
    cdef int32_t* onward             # from it on
    cdef int32_t* back               # up to it

    cdef int c_prepare(self) except -1
    cdef void c_join(self, int64_t row, intp_t before, intp_t after) noexcept nogil
