"""Arithmetic of priorities: checks and powers.

Compiled because each update takes some hundred numbers through it, and NumPy needs a pass and a
temporary array for each operation. Not here: what the numbers are for (``priorities``).
"""

cimport numpy as cnp
from libc.float cimport DBL_MIN
from libc.math cimport INFINITY, exp, log, pow

from cpprb_like._typedefs cimport float32_t, float64_t, intp_t

cnp.import_array()


def as_priorities(values):
    """A fresh array of float64 if the values are priorities in one of the common forms, else None.

    That is: finite numbers of at least 0, as a Python float or a dense array of float32 or float64
    of shape ``(n,)`` or ``(n, 1)``.
    """
    cdef intp_t n = 1
    cdef cnp.ndarray priorities
    cdef float64_t number
    if type(values) is float:
        number = values
        priorities = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_FLOAT64)
        (<float64_t*> cnp.PyArray_DATA(priorities))[0] = number
        return priorities if 0.0 <= number < INFINITY else None
    if not cnp.PyArray_CheckExact(values) or not cnp.PyArray_ISCARRAY_RO(values):
        return None
    if cnp.PyArray_NDIM(values) != 1 and not (
        cnp.PyArray_NDIM(values) == 2 and cnp.PyArray_DIM(values, 1) == 1
    ):
        return None
    n = cnp.PyArray_DIM(values, 0)
    priorities = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_FLOAT64)
    cdef float64_t* out = <float64_t*> cnp.PyArray_DATA(priorities)
    if cnp.PyArray_TYPE(values) == cnp.NPY_FLOAT64:
        right = c_take(<const float64_t*> cnp.PyArray_DATA(values), out, n)
    elif cnp.PyArray_TYPE(values) == cnp.NPY_FLOAT32:
        right = c_take(<const float32_t*> cnp.PyArray_DATA(values), out, n)
    else:
        return None
    return priorities if right else None


cdef bint c_take(const real* values, float64_t* priorities, intp_t n) noexcept nogil:
    """Copy the values; whether all are priorities."""
    cdef bint right = True
    cdef intp_t k
    for k in range(n):
        priorities[k] = values[k]
        right &= (values[k] >= 0.0) & (values[k] < INFINITY)  # false for NaN
    return right


def weigh(cnp.ndarray priorities, float64_t eps, float64_t alpha):
    """``(priorities + eps) ** alpha``, and the greatest of it; 0.0 if there is none.

    ``priorities`` are a dense 1-d array of float64, as the result is.
    """
    cdef intp_t k, n = cnp.PyArray_DIM(priorities, 0)
    cdef cnp.ndarray weights = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_FLOAT64)
    cdef const float64_t* given = <const float64_t*> cnp.PyArray_DATA(priorities)
    cdef float64_t* out = <float64_t*> cnp.PyArray_DATA(weights)
    cdef float64_t heaviest = 0.0
    for k in range(n):
        out[k] = pow(given[k] + eps, alpha)
        heaviest = max(heaviest, out[k])
    return weights, heaviest


def importance(cnp.ndarray weights, float64_t least, float64_t beta, bint single):
    """``(weights / least) ** -beta``, of float32 if ``single``, otherwise of float64.

    ``weights`` are a dense 1-d array of float64.
    """
    cdef intp_t n = cnp.PyArray_DIM(weights, 0)
    cdef const float64_t* given = <const float64_t*> cnp.PyArray_DATA(weights)
    cdef cnp.ndarray out = cnp.PyArray_SimpleNew(
        1, &n, cnp.NPY_FLOAT32 if single else cnp.NPY_FLOAT64
    )
    if single:
        c_correct(given, least, beta, <float32_t*> cnp.PyArray_DATA(out), n)
    else:
        c_correct(given, least, beta, <float64_t*> cnp.PyArray_DATA(out), n)
    return out


cdef void c_correct(
    const float64_t* weights, float64_t least, float64_t beta, real* out, intp_t n
) noexcept nogil:
    cdef intp_t k
    cdef float64_t share
    for k in range(n):
        share = least / weights[k]
        if share >= DBL_MIN:
            out[k] = <real> pow(share, beta)
        else:  # digits are missing, or all of them; powers of it may be numbers again
            out[k] = <real> exp(beta * (log(least) - log(weights[k])))
