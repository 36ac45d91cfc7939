"""Attributes of ``Versions``."""

from cpprb_like._c.typedefs cimport int64_t


cdef class Versions:
    cdef object memory                 # keeps the words
    cdef volatile int64_t* words       # the newest version, then the version in each slot
