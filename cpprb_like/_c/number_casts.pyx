"""Casts between NumPy's numbers in C; a cast that changes what a number means is refused.

Rounding to a narrower float is allowed. Overflow, a fraction or NaN in an integer, and anything but
0 and 1 in a bool, are refused. Compiled because most programs compute in other dtypes than they
store, at every step. Not here: shapes (``_rows.column``), and numbers that are no native ones
of up to 8 bytes (``_fields.casting``).
"""

cimport numpy as cnp
from cpython.object cimport PyObject
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy
from numpy cimport float32_t, float64_t

from cpprb_like._c.typedefs cimport intp_t

import numpy as np

cnp.import_array()

cdef extern from *:
    """
    #define CPPRB_TYPE_OF(value) ((PyObject *)Py_TYPE(value))
    """
    PyObject* c_type "CPPRB_TYPE_OF"(PyObject* value)

# Bools are ``char``, a type of its own beside the signed and unsigned integers of a byte.
ctypedef fused given_t:
    char
    int8_t
    int16_t
    int32_t
    int64_t
    uint8_t
    uint16_t
    uint32_t
    uint64_t
    float32_t
    float64_t

ctypedef fused wanted_t:
    char
    int8_t
    int16_t
    int32_t
    int64_t
    uint8_t
    uint16_t
    uint32_t
    uint64_t
    float32_t
    float64_t


ctypedef fused unsigned_t:
    uint8_t
    uint16_t
    uint32_t
    uint64_t


# Types of NumPy's scalars, the commonest first: two C types may be one kind of number.
cdef str NUMBERS = "fd?lqihbLQIHB"
cdef tuple SCALAR_TYPES = tuple([np.dtype(char).type for char in NUMBERS])
cdef intp_t[13] SCALAR_KINDS
cdef intp_t[25] KINDS                # kind, by number of NumPy's type
cdef dict KINDS_BY_NAME = {
    "bool": BOOL, "int8": INT8, "int16": INT16, "int32": INT32, "int64": INT64, "uint8": UINT8,
    "uint16": UINT16, "uint32": UINT32, "uint64": UINT64, "float32": FLOAT32, "float64": FLOAT64,
}

cdef intp_t place
for place in range(25):
    KINDS[place] = NO_NUMBER
for place in range(13):
    SCALAR_KINDS[place] = KINDS_BY_NAME[np.dtype(NUMBERS[place]).name]
    KINDS[<intp_t> np.dtype(NUMBERS[place]).num] = SCALAR_KINDS[place]


cdef intp_t c_kind_of(int typenum) noexcept nogil:
    """Kind of a NumPy type, by its number."""
    return KINDS[typenum] if 0 <= typenum < 25 else NO_NUMBER


cdef intp_t c_kind_of_scalar(PyObject* value) noexcept:
    """Kind of a NumPy scalar; NO_NUMBER for other objects and for instances of subclasses."""
    cdef intp_t k
    for k in range(13):
        if c_type(value) == <PyObject*> SCALAR_TYPES[k]:
            return SCALAR_KINDS[k]
    return NO_NUMBER


cdef intp_t c_size_of(intp_t kind) noexcept nogil:
    """Bytes of a number of a kind."""
    if kind == BOOL or kind == INT8 or kind == UINT8:
        return 1
    if kind == INT16 or kind == UINT16:
        return 2
    return 4 if kind == INT32 or kind == UINT32 or kind == FLOAT32 else 8


cdef inline bint c_cast_one(given_t value, wanted_t* to) noexcept nogil:
    """Store a number as another type; false if the value changes more than by rounding."""
    cdef float64_t most
    cdef bint inside
    if wanted_t is char:
        to[0] = value != 0
        return given_t is char or value == 0 or value == 1
    elif given_t is char:
        to[0] = <wanted_t> (value != 0)
        return True
    elif wanted_t is float64_t:
        to[0] = <wanted_t> value
        return True
    elif wanted_t is float32_t:
        to[0] = <wanted_t> value
        if given_t is float64_t:  # x - x is 0 unless x is infinite or NaN
            return not ((to[0] - to[0] != 0) & (value - value == 0))
        else:
            return True
    elif given_t is float64_t or given_t is float32_t:
        # 2 ** bits: limits of wide integers are no exact floats.
        most = 2.0 * <float64_t> (<uint64_t> 1 << (8 * sizeof(wanted_t) - 2))
        if wanted_t in unsigned_t:
            inside = 0.0 <= value < 2.0 * most
        else:
            inside = -most <= value < most
        to[0] = <wanted_t> (value if inside else 0)
        return inside and <float64_t> to[0] == value
    else:
        to[0] = <wanted_t> value
        return (<given_t> to[0] == value) & ((to[0] < 0) == (value < 0))


cdef inline bint c_cast_all(
    given_t of, wanted_t as_, const char* values, intp_t stride, char* to, intp_t n
) noexcept nogil:
    """``c_cast_run`` for two C types."""
    cdef given_t value
    cdef wanted_t* out = <wanted_t*> to
    cdef bint sound = True
    cdef intp_t k
    if stride == sizeof(given_t):  # a stride that the compiler knows: vectorized
        for k in range(n):
            memcpy(&value, values + k * sizeof(given_t), sizeof(given_t))
            sound &= c_cast_one[given_t, wanted_t](value, out + k)
        return sound
    for k in range(n):
        memcpy(&value, values + k * stride, sizeof(given_t))
        sound &= c_cast_one[given_t, wanted_t](value, out + k)
    return sound


cdef bint c_cast_to(
    given_t of, intp_t wanted, const char* values, intp_t stride, char* to, intp_t n
) noexcept nogil:
    """``c_cast_run`` for one C type of the values."""
    if wanted == FLOAT32:
        return c_cast_all[given_t, float32_t](of, 0, values, stride, to, n)
    if wanted == FLOAT64:
        return c_cast_all[given_t, float64_t](of, 0, values, stride, to, n)
    if wanted == BOOL:
        return c_cast_all[given_t, char](of, 0, values, stride, to, n)
    if wanted == INT8:
        return c_cast_all[given_t, int8_t](of, 0, values, stride, to, n)
    if wanted == INT16:
        return c_cast_all[given_t, int16_t](of, 0, values, stride, to, n)
    if wanted == INT32:
        return c_cast_all[given_t, int32_t](of, 0, values, stride, to, n)
    if wanted == INT64:
        return c_cast_all[given_t, int64_t](of, 0, values, stride, to, n)
    if wanted == UINT8:
        return c_cast_all[given_t, uint8_t](of, 0, values, stride, to, n)
    if wanted == UINT16:
        return c_cast_all[given_t, uint16_t](of, 0, values, stride, to, n)
    if wanted == UINT32:
        return c_cast_all[given_t, uint32_t](of, 0, values, stride, to, n)
    if wanted == UINT64:
        return c_cast_all[given_t, uint64_t](of, 0, values, stride, to, n)
    return False


cdef bint c_cast_run(
    intp_t given, intp_t wanted, const char* values, intp_t stride, char* to, intp_t n
) noexcept nogil:
    """Cast n numbers that lie ``stride`` bytes apart, and store them densely.

    False if a value changes more than by rounding. ``to`` is aligned, ``values`` need not be.
    """
    if given == FLOAT64:
        return c_cast_to[float64_t](0, wanted, values, stride, to, n)
    if given == FLOAT32:
        return c_cast_to[float32_t](0, wanted, values, stride, to, n)
    if given == INT64:
        return c_cast_to[int64_t](0, wanted, values, stride, to, n)
    if given == INT32:
        return c_cast_to[int32_t](0, wanted, values, stride, to, n)
    if given == BOOL:
        return c_cast_to[char](0, wanted, values, stride, to, n)
    if given == UINT8:
        return c_cast_to[uint8_t](0, wanted, values, stride, to, n)
    if given == INT8:
        return c_cast_to[int8_t](0, wanted, values, stride, to, n)
    if given == INT16:
        return c_cast_to[int16_t](0, wanted, values, stride, to, n)
    if given == UINT16:
        return c_cast_to[uint16_t](0, wanted, values, stride, to, n)
    if given == UINT32:
        return c_cast_to[uint32_t](0, wanted, values, stride, to, n)
    if given == UINT64:
        return c_cast_to[uint64_t](0, wanted, values, stride, to, n)
    return False


cdef bint c_cast_block(
    intp_t given, intp_t wanted, const char* values, intp_t ndim, const intp_t* dims,
    const intp_t* strides, char* to,
) noexcept nogil:
    """``c_cast_run`` for an array of any strides; numbers are stored in the order of its axes."""
    cdef intp_t k, axis, size = 1
    while ndim and dims[ndim - 1] == 1:
        ndim -= 1
    # Dense neighbouring axes are one.
    cdef intp_t run = 1, inner = ndim
    while inner and (inner == ndim or strides[inner - 1] == dims[inner] * strides[inner]):
        inner -= 1
        run *= dims[inner]
    if inner == 0:
        return c_cast_run(
            given, wanted, values, strides[ndim - 1] if ndim else c_size_of(given), to, run
        )
    for axis in range(1, ndim):
        size *= dims[axis]
    size *= c_size_of(wanted)
    for k in range(dims[0]):
        if not c_cast_block(
            given, wanted, values + k * strides[0], ndim - 1, dims + 1, strides + 1, to + k * size
        ):
            return False
    return True
