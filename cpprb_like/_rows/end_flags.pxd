"""C signatures of comparing flags with the fields that end episodes."""

from cpprb_like._c.typedefs cimport intp_t, uint8_t, uint64_t

cdef struct Ends:            # a field that ends episodes
    const uint8_t* values    # of slot 0
    intp_t stride            # from slot to slot
    intp_t nbytes            # of a value
    uint64_t mask            # of its bits but the sign
    uint8_t meaning          # the flags that it sets

cdef void c_add_flags(const Ends* ends, intp_t first, intp_t n, uint8_t* flags) noexcept nogil
