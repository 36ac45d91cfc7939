"""C signatures of stacking frames of different rows."""

from cpprb_like._c.typedefs cimport intp_t

cdef void c_stack(
    char* to, const char* start, intp_t stride, intp_t size, intp_t outer, const intp_t* slots,
    intp_t n, intp_t depth, const char** frames, const char* zeros,
) noexcept nogil
