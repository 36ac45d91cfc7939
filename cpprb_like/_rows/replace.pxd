"""C signatures of replacing values of rows."""

from cpprb_like._core cimport Ring
from cpprb_like._c.typedefs cimport intp_t


cdef void c_write(
    Ring ring, list columns, list arrays, const intp_t* slots, intp_t n
) noexcept
