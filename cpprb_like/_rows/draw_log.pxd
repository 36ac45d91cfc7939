"""Attributes and C signatures of ``DrawLog``."""

from numpy cimport ndarray

from cpprb_like._core cimport Ring
from cpprb_like._c.typedefs cimport int64_t, intp_t


cdef class DrawLog:
    cdef readonly object write       # ``write(memory)`` appends to the file
    cdef bint has_states             # whether states of the generator are read
    cdef ndarray chunk               # records that were not written yet
    cdef intp_t used                 # bytes of the chunk

    cdef bytes c_state(self, rng)
    cdef int c_append(
        self, Ring ring, ndarray slots, object sampler, object weights, int64_t number,
        bytes before, bytes after,
    ) except -1
