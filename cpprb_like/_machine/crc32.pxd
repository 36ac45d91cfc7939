"""C signatures of the checksum."""

from libc.stdint cimport uint8_t, uint32_t


cdef uint32_t c_crc32(uint32_t value, const uint8_t* data, size_t n) noexcept nogil
