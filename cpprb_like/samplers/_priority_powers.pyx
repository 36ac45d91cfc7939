"""Powers of priorities: ``(p + eps) ** alpha``, importance-sampling weights, and checks of both.

Compiled because NumPy needs a pass and a temporary array for each operation. Powers of many numbers
are computed by NumPy, in half the time of the C library. Not here: the use of these numbers
(``_prioritized``).
"""

cimport numpy as cnp
from libc.float cimport DBL_MIN
from libc.math cimport INFINITY, exp, log, pow

from cpprb_like._machine.aligned cimport c_numbers
from cpprb_like._c.typedefs cimport float32_t, float64_t, int64_t, intp_t

import numpy as np

cnp.import_array()

cdef enum:
    FEW = 32                 # up to FEW powers take less time in C than a call of NumPy
    MODEST = 2               # exponents up to MODEST of numbers from SMALL to LARGE ...

cdef float64_t SMALL = 1e-150    # ... have results in the range of float64,
cdef float64_t LARGE = 1e150     # so NumPy gives no warning
cdef object np_power = np.power

ctypedef fused real:
    float32_t
    float64_t


def as_priorities(values):
    """A fresh array of float64, or None if the values are not priorities in a common form.

    Common forms: finite numbers of at least 0, as a Python float or a dense array of float32 or float64
    of shape ``(n,)`` or ``(n, 1)``.
    """
    cdef intp_t n = 1
    cdef cnp.ndarray priorities
    cdef float64_t number
    if type(values) is float:
        number = values
        priorities = c_numbers(1, &n, cnp.NPY_FLOAT64)
        (<float64_t*> cnp.PyArray_DATA(priorities))[0] = number
        return priorities if 0.0 <= number < INFINITY else None
    if not cnp.PyArray_CheckExact(values) or not cnp.PyArray_ISCARRAY_RO(values):
        return None
    if cnp.PyArray_NDIM(values) != 1 and not (
        cnp.PyArray_NDIM(values) == 2 and cnp.PyArray_DIM(values, 1) == 1
    ):
        return None
    n = cnp.PyArray_DIM(values, 0)
    priorities = c_numbers(1, &n, cnp.NPY_FLOAT64)
    cdef float64_t* out = <float64_t*> cnp.PyArray_DATA(priorities)
    if cnp.PyArray_TYPE(values) == cnp.NPY_FLOAT64:
        right = c_copy_priorities(<const float64_t*> cnp.PyArray_DATA(values), out, n)
    elif cnp.PyArray_TYPE(values) == cnp.NPY_FLOAT32:
        right = c_copy_priorities(<const float32_t*> cnp.PyArray_DATA(values), out, n)
    else:
        return None
    return priorities if right else None


cdef bint c_copy_priorities(const real* values, float64_t* priorities, intp_t n) noexcept nogil:
    """Copy the values; return whether all are priorities."""
    cdef bint right = True
    cdef intp_t k
    for k in range(n):
        priorities[k] = values[k]
        right &= (values[k] >= 0.0) & (values[k] < INFINITY)  # false for NaN
    return right


def as_indexes(values, intp_t n):
    """The values if they are a dense array of int64 of shape ``(n,)``, none below 0; else None."""
    cdef const int64_t* indexes
    cdef int64_t signs = 0
    cdef intp_t k
    if (
        cnp.PyArray_CheckExact(values) and cnp.PyArray_ISCARRAY_RO(values)
        and cnp.PyArray_TYPE(values) == cnp.NPY_INT64
        and cnp.PyArray_NDIM(values) == 1 and cnp.PyArray_DIM(values, 0) == n
    ):
        indexes = <const int64_t*> cnp.PyArray_DATA(values)
        for k in range(n):
            signs |= indexes[k]
        return values if signs >= 0 else None
    return None


def weigh(cnp.ndarray priorities, float64_t eps, float64_t alpha):
    """The weights ``(priorities + eps) ** alpha``, and the greatest weight; 0.0 without any.

    ``priorities`` and the weights are dense 1-d arrays of float64.
    """
    cdef intp_t k, n = cnp.PyArray_DIM(priorities, 0)
    cdef cnp.ndarray weights = c_numbers(1, &n, cnp.NPY_FLOAT64)
    cdef const float64_t* given = <const float64_t*> cnp.PyArray_DATA(priorities)
    cdef float64_t* out = <float64_t*> cnp.PyArray_DATA(weights)
    cdef float64_t heaviest = 0.0
    for k in range(n):
        out[k] = given[k] + eps
    c_raise(weights, alpha)
    for k in range(n):
        heaviest = max(heaviest, out[k])
    return weights, heaviest


cdef bint c_raise(cnp.ndarray values, float64_t exponent) except -1:
    """Raise numbers of at least 0 to a power, in place; return whether all were modest: see MODEST."""
    cdef intp_t k, n = cnp.PyArray_DIM(values, 0)
    cdef float64_t* numbers = <float64_t*> cnp.PyArray_DATA(values)
    cdef bint modest = exponent <= MODEST
    for k in range(n):
        modest &= (numbers[k] >= SMALL) & (numbers[k] <= LARGE)
    if exponent == 1.0:
        pass
    elif modest and n > FEW:
        np_power(values, exponent, values)
    else:
        for k in range(n):
            numbers[k] = pow(numbers[k], exponent)
    return modest


def least_of(cnp.ndarray weights):
    """The least of some numbers, a dense 1-d array of float64; infinity without any."""
    cdef const float64_t* given = <const float64_t*> cnp.PyArray_DATA(weights)
    cdef intp_t k
    cdef float64_t least = INFINITY
    for k in range(cnp.PyArray_DIM(weights, 0)):
        least = min(least, given[k])
    return least


def importance(cnp.ndarray weights, float64_t least, float64_t beta, bint single):
    """Importance-sampling weights ``(weights / least) ** -beta``; float32 if ``single``.

    ``weights`` are a dense 1-d array of float64.
    """
    cdef intp_t k, n = cnp.PyArray_DIM(weights, 0)
    cdef const float64_t* given = <const float64_t*> cnp.PyArray_DATA(weights)
    cdef cnp.ndarray powers = c_numbers(1, &n, cnp.NPY_FLOAT64), rounded
    cdef float64_t* out = <float64_t*> cnp.PyArray_DATA(powers)
    cdef float32_t* floats
    for k in range(n):
        out[k] = least / given[k]
    if not c_raise(powers, beta):
        for k in range(n):
            if least / given[k] < DBL_MIN:  # the quotient underflows, its power may not
                out[k] = exp(beta * (log(least) - log(given[k])))
    if not single:
        return powers
    rounded = c_numbers(1, &n, cnp.NPY_FLOAT32)
    floats = <float32_t*> cnp.PyArray_DATA(rounded)
    for k in range(n):
        floats[k] = <float32_t> out[k]
    return rounded
