"""C signatures of aligned arrays, and whose memory they may be over."""

from numpy cimport dtype, ndarray

from cpprb_like._c.typedefs cimport intp_t

cdef enum:
    SLACK = 63                   # bytes of memory more than asked for, to start at a cache line
    LARGE_NBYTES = 65536         # arrays from here on own no memory: they are over that of another


cdef ndarray c_empty(dtype kind, intp_t ndim, intp_t* dims)
cdef object c_aligned(array)
cdef ndarray c_numbers(intp_t ndim, intp_t* dims, int typenum)
cdef ndarray c_over(dtype kind, intp_t ndim, intp_t* dims, void* data, owner)
cdef ndarray c_memory(intp_t nbytes)
cdef void* c_start(ndarray memory) noexcept
