"""Kinds of numbers, and C signatures of casts between them."""

from cpython.object cimport PyObject

from cpprb_like._c.typedefs cimport intp_t


cdef enum:  # kinds of numbers: native, of up to 8 bytes
    NO_NUMBER = 0
    BOOL = 1
    INT8 = 2
    INT16 = 3
    INT32 = 4
    INT64 = 5
    UINT8 = 6
    UINT16 = 7
    UINT32 = 8
    UINT64 = 9
    FLOAT32 = 10
    FLOAT64 = 11


cdef intp_t c_kind_of(int typenum) noexcept nogil
cdef intp_t c_kind_of_scalar(PyObject* value) noexcept
cdef intp_t c_size_of(intp_t kind) noexcept nogil
cdef bint c_cast_run(
    intp_t given, intp_t wanted, const char* values, intp_t stride, char* to, intp_t n
) noexcept nogil
cdef bint c_cast_block(
    intp_t given, intp_t wanted, const char* values, intp_t ndim, const intp_t* dims,
    const intp_t* strides, char* to,
) noexcept nogil
