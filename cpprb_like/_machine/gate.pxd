"""Attributes and C signatures of ``Gate``."""

from cpython.pythread cimport PyThread_type_lock

from cpprb_like._c.typedefs cimport intp_t


cdef class Gate:
    cdef object __weakref__
    cdef PyThread_type_lock lock  # held by a call that has released the GIL
    cdef bint busy           # whether ``lock`` is held
    cdef bint forks          # whether a forking thread holds it
    cdef unsigned long forker  # the identifier of that thread

    cdef bint c_enter(self, intp_t n) except -1
    cdef int c_leave(self) except -1
