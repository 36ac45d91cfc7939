"""Attributes and C signatures of ``Gate``."""

from cpython.pythread cimport PyThread_type_lock

from cpprb_like._c.typedefs cimport intp_t


cdef class Gate:
    cdef object __weakref__
    cdef PyThread_type_lock lock  # held while the interpreter lock is not
    cdef bint busy           # whether it is held
    cdef bint forks          # by a thread that forks, ...
    cdef unsigned long forker  # ... this one

    cdef bint c_enter(self, intp_t n) except -1
    cdef int c_leave(self) except -1
