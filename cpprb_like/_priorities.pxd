"""C signatures of the arithmetic of priorities."""

from cpprb_like._typedefs cimport float32_t, float64_t, intp_t

ctypedef fused real:
    float32_t
    float64_t

cdef bint c_take(const real* values, float64_t* priorities, intp_t n) noexcept nogil
cdef void c_correct(
    const float64_t* weights, float64_t least, float64_t beta, real* out, intp_t n
) noexcept nogil
