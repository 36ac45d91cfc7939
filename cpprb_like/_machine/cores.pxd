"""C signatures of copies that several cores share."""

from cpprb_like._c.typedefs cimport intp_t

# Does the items from start to stop of a piece of work; it must not touch what belongs to others.
ctypedef void (*Job)(const void* work, intp_t start, intp_t stop) noexcept nogil


cdef bint c_was_asked() noexcept nogil
cdef void c_share(Job job, const void* work, intp_t n, intp_t nbytes) noexcept nogil
