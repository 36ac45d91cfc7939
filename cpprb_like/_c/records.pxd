"""C signatures of packing records."""

from cpprb_like._c.typedefs cimport intp_t, uint8_t


cdef intp_t c_check(const uint8_t[:, ::1] records, const uint8_t[:, ::1] entries) except -1
cdef void c_pack(
    const uint8_t* record, intp_t stride, uint8_t* entry, intp_t used, intp_t n
) noexcept nogil
cdef void c_spread(
    const uint8_t* entry, intp_t used, uint8_t* record, intp_t stride, intp_t n
) noexcept nogil
