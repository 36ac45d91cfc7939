"""Attributes and C signatures of ``Pool`` and ``Lease``."""

from cpprb_like._c.typedefs cimport int64_t, intp_t


cdef class Pool:
    cdef list spare                  # (memory, number of the last array when it came back), oldest first
    cdef int64_t arrays              # of batches that were made, with memory from here or without
    cdef intp_t spare_nbytes         # bytes in ``spare``
    cdef intp_t lent                 # bytes on loan
    cdef intp_t peak                 # most bytes on loan at a time
    cdef object reference            # weak, to this pool
    cdef object __weakref__

    cdef Lease c_lease(self, intp_t nbytes)
    cdef int c_give_back(self, memory) except -1
    cdef int c_pass(self) except -1
    cdef int c_forget(self) except -1


cdef class Lease:
    cdef object memory               # the bytes on loan
    cdef object home                 # weak reference to the pool that they return to
