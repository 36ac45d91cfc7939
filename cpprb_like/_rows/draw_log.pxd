"""Attributes and C signatures of ``DrawLog``."""

from numpy cimport ndarray

from cpprb_like._core cimport Moment, Ring
from cpprb_like._c.typedefs cimport int64_t, intp_t


cdef class DrawLog:
    cdef readonly object write       # ``write(full)`` appends to the file
    cdef list full                   # chunks that wait for ``write``
    cdef object kind                 # class of the bit generators whose state is read, or None
    cdef ndarray chunk               # records that were not written yet
    cdef intp_t used                 # bytes of the chunk

    cdef bytes c_state(self, rng)
    cdef int c_append(
        self, Ring ring, Moment moment, int64_t base, ndarray slots, object sampler, object weights,
        int64_t number, bytes before, bytes after,
    ) except -1
    cdef int c_next(self, intp_t nbytes) except -1
