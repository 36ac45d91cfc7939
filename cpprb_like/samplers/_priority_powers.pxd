"""C signatures of the arithmetic of priorities."""

from numpy cimport ndarray

from cpprb_like._c.typedefs cimport float32_t, float64_t, intp_t

ctypedef fused real:
    float32_t
    float64_t

cdef bint c_take(const real* values, float64_t* priorities, intp_t n) noexcept nogil
cdef bint c_raise(ndarray values, float64_t exponent) except -1
