"""C signatures of the memory of the arrays of batches."""

from numpy cimport dtype, ndarray

from cpprb_like._c.typedefs cimport int64_t, intp_t

cdef enum:
    SLACK = 63                   # extra bytes of an allocation, so that it can start at a cache line
    LARGE_NBYTES = 65536         # smallest array that uses memory of a pool


cdef ndarray c_empty(dtype kind, intp_t ndim, intp_t* dims)
cdef object c_aligned(array)
cdef ndarray c_numbers(intp_t ndim, intp_t* dims, int typenum)
cdef ndarray c_over(dtype kind, intp_t ndim, intp_t* dims, void* data, owner)
cdef ndarray c_memory(intp_t nbytes)
cdef void* c_start(ndarray memory) noexcept


cdef class Pool:
    cdef list spare                  # (memory, ``arrays`` when it returned), oldest first
    cdef int64_t arrays              # arrays made so far, with memory of this pool or without
    cdef intp_t spare_nbytes         # bytes in ``spare``
    cdef intp_t lent                 # bytes on loan
    cdef intp_t peak                 # greatest ``lent`` so far
    cdef object reference            # weak, to this pool
    cdef object __weakref__

    cdef Lease c_lease(self, intp_t nbytes)
    cdef int c_give_back(self, memory) except -1
    cdef int c_pass(self) except -1
    cdef int c_free_spare(self) except -1


cdef class Lease:
    cdef object memory               # the bytes on loan
    cdef object home                 # weak reference to the pool of the memory
