"""Attributes and C signatures of ``Tracker``."""

from cpprb_like._c.typedefs cimport intp_t, uint8_t


cdef class Tracker:
    cdef readonly intp_t capacity
    cdef uint8_t[::1] bits           # of each slot, whether it was marked

    cdef void c_mark(self, intp_t slot) noexcept nogil
