"""Attributes and C signatures of ``Gate``."""

from cpprb_like._typedefs cimport intp_t


cdef class Gate:
    cdef object lock         # held while the interpreter lock is not
    cdef bint busy           # whether it is held

    cdef bint c_enter(self, intp_t n) except -1
    cdef int c_leave(self) except -1
