"""Attributes and C signatures of ``Pool`` and ``Lease``."""

from cpprb_like._typedefs cimport intp_t


cdef class Pool:
    cdef list spare                  # memory of dead arrays
    cdef object reference            # weak, to this pool
    cdef object __weakref__

    cdef Lease c_lease(self, intp_t nbytes)


cdef class Lease:
    cdef object memory               # the bytes on loan
    cdef object home                 # weak reference to the pool that they return to
