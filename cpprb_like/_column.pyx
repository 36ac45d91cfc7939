"""Where the values of one field lie, and which Python values are such values already.

Compiled because every value of every ``add`` passes here. Not here: the values that need conversion
(``casting``).
"""

cimport cython
cimport numpy as cnp
from cpython.number cimport PyNumber_Index
from cpython.object cimport PyObject
from libc.math cimport isinf
from libc.string cimport memcpy

from cpprb_like._typedefs cimport intp_t

import numpy as np

cnp.import_array()

cdef object NUMPY_TRUE = np.True_
cdef object NUMPY_FALSE = np.False_

cdef extern from "numpy/arrayobject.h":
    int PyArray_EquivTypes(cnp.dtype left, cnp.dtype right)
    bint c_is_array "PyArray_CheckExact"(PyObject* value)

cdef extern from "numpy/arrayscalars.h":
    """
    /* Borrowed views of arguments: values of a call are looked at without counting a reference. */
    #define CPPRB_DTYPE(value) ((PyObject *)PyArray_DESCR((PyArrayObject *)(value)))
    #define CPPRB_NDIM(value) ((npy_intp)PyArray_NDIM((PyArrayObject *)(value)))
    #define CPPRB_DIMS(value) PyArray_DIMS((PyArrayObject *)(value))
    #define CPPRB_DATA(value) PyArray_DATA((PyArrayObject *)(value))
    #define CPPRB_IS_DENSE(value) PyArray_IS_C_CONTIGUOUS((PyArrayObject *)(value))
    /* NumPy's numbers of up to 8 bytes all keep their value behind the object's head. */
    #define CPPRB_SCALAR_VALUE(value) ((void *)&((PyByteScalarObject *)(value))->obval)
    #define CPPRB_TYPE(value) ((PyObject *)Py_TYPE(value))
    /* Scalars of NumPy's own integer types; a subclass in Python could run code of its own. */
    #define CPPRB_IS_INTEGER_SCALAR(value) \
        (PyArray_IsScalar(value, Integer) && !(Py_TYPE(value)->tp_flags & Py_TPFLAGS_HEAPTYPE))
    """
    PyObject* c_dtype "CPPRB_DTYPE"(PyObject* value)
    intp_t c_ndim "CPPRB_NDIM"(PyObject* value)
    intp_t* c_dims "CPPRB_DIMS"(PyObject* value)
    void* c_data "CPPRB_DATA"(PyObject* value)
    bint c_is_dense "CPPRB_IS_DENSE"(PyObject* value)
    void* c_scalar_value "CPPRB_SCALAR_VALUE"(PyObject* value)
    PyObject* c_type "CPPRB_TYPE"(PyObject* value)
    bint c_is_integer_scalar "CPPRB_IS_INTEGER_SCALAR"(PyObject* value)

cdef extern from "Python.h":
    bint c_is_float "PyFloat_Check"(PyObject* value)
    bint c_is_int "PyLong_Check"(PyObject* value)
    double c_as_double "PyFloat_AS_DOUBLE"(PyObject* value)
    long long c_as_long_long "PyLong_AsLongLongAndOverflow"(
        PyObject* value, int* overflow
    ) except? -1

cdef enum:  # how a field of one number is stored
    NO_NUMBER = 0
    BOOL = 1
    SIGNED = 2       # plus the size in bytes
    UNSIGNED = 16    # plus the size in bytes
    FLOAT = 32       # plus the size in bytes


cdef inline bint c_store_float(char* to, intp_t kind, double value) noexcept nogil:
    """Store a float if the kind can hold it without another meaning."""
    cdef float narrow
    if kind == FLOAT + 8:
        (<double*> to)[0] = value
        return True
    if kind == FLOAT + 4:
        narrow = <float> value
        (<float*> to)[0] = narrow
        return not isinf(narrow) or isinf(value)
    return False


cdef inline bint c_store_int(char* to, intp_t kind, long long value) noexcept nogil:
    """Store an int if the kind can hold it without another meaning."""
    cdef intp_t bits
    if kind == BOOL:
        to[0] = <char> value
        return 0 <= value <= 1
    if SIGNED < kind < UNSIGNED:
        bits = 8 * (kind - SIGNED) - 1
        if bits < 63 and not -(<long long> 1 << bits) <= value < (<long long> 1 << bits):
            return False
    elif UNSIGNED < kind < FLOAT:
        bits = 8 * (kind - UNSIGNED)
        if value < 0 or (bits < 64 and value >= (<long long> 1 << bits)):
            return False
    if kind == FLOAT + 4:
        (<float*> to)[0] = <float> value
    elif kind == FLOAT + 8:
        (<double*> to)[0] = <double> value
    elif kind == SIGNED + 8 or kind == UNSIGNED + 8:
        (<long long*> to)[0] = value
    elif kind == SIGNED + 4 or kind == UNSIGNED + 4:
        (<int*> to)[0] = <int> value
    elif kind == SIGNED + 2 or kind == UNSIGNED + 2:
        (<short*> to)[0] = <short> value
    elif kind == SIGNED + 1 or kind == UNSIGNED + 1:
        to[0] = <char> value
    else:
        return False
    return True


@cython.final
cdef class Column:
    """Where the values of one field lie, and what they are.

    Parameters
    ----------
    name, dtype, shape
        The field's name, and the dtype and shape of one row.
    capacity : int
        Rows of the ring.
    offset, stride : int
        Place of row 0 in the arena, and bytes from row to row; for fields of Python objects both
        are ignored and the column brings its own array.
    """

    def __cinit__(
        self, str name, cnp.dtype dtype, tuple shape, intp_t capacity, intp_t offset, intp_t stride
    ):
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self.nbytes = dtype.itemsize
        for length in shape:
            self.nbytes *= length
        self.offset = offset
        self.stride = stride
        self.objects = None
        if dtype.hasobject:
            self.objects = np.empty((capacity, *shape), dtype)
            self.offset = -1
            self.stride = self.nbytes
        self.is_boxed = dtype.hasobject
        self.scalar_type = (<object> dtype).type  # of the Python object, not of the C struct
        self.takes_scalars = shape == (1,)
        self.ndim = len(shape)
        for axis, length in enumerate(shape):
            self.dims[axis] = length
        self.number = NO_NUMBER
        if shape in ((), (1,)) and dtype.isnative and dtype.itemsize <= 8:
            if dtype.kind == "b":
                self.number = BOOL
            elif dtype.kind == "i":
                self.number = SIGNED + self.nbytes
            elif dtype.kind == "u":
                self.number = UNSIGNED + self.nbytes
            elif dtype.kind == "f" and dtype.itemsize >= 4:
                self.number = FLOAT + self.nbytes

    cdef intp_t c_locate(
        self, PyObject* value, bint converted, char* scratch, intp_t* address
    ) except -2:
        """How many rows of this column a value is, and where they are; -1 if it needs conversion.

        One number is put into ``scratch``. Runs no Python code. Arrays of Python objects count only
        when they come from our own conversion, because the ring exchanges their contents.
        """
        cdef intp_t lead, axis
        cdef const intp_t* dims
        if not c_is_array(value):
            if self.number != NO_NUMBER and self.c_store(value, scratch):
                address[0] = <intp_t> scratch
                return 1
            return -1
        if c_dtype(value) != <PyObject*> self.dtype and not self.c_same_dtype(<cnp.ndarray> value):
            return -1
        if not c_is_dense(value) or (self.is_boxed and not converted):
            return -1
        address[0] = <intp_t> c_data(value)
        dims = c_dims(value)
        lead = c_ndim(value) - self.ndim
        if self.takes_scalars and lead <= 0:
            return dims[0] if lead == 0 else 1
        if lead < 0 or lead > 1:
            return -1
        for axis in range(self.ndim):
            if dims[lead + axis] != self.dims[axis]:
                return -1
        return dims[0] if lead else 1

    cdef object c_cast(self, PyObject* value):
        """An array of numbers in this column's dtype, None if that needs more than a plain cast.

        Plain are the casts that keep every value, and float64 to float32, where only overflow would
        change the meaning: agents compute in one and store the other.
        """
        if not c_is_array(value) or self.is_boxed or not self.dtype.isnative:
            return None
        cdef cnp.ndarray array = <cnp.ndarray> value
        cdef int given = cnp.PyArray_TYPE(array), wanted = self.dtype.type_num
        if not cnp.PyTypeNum_ISNUMBER(wanted) or not (
            cnp.PyTypeNum_ISNUMBER(given) or cnp.PyTypeNum_ISBOOL(given)
        ):
            return None
        if cnp.PyArray_CanCastSafely(given, wanted):
            return cnp.PyArray_Cast(array, wanted)
        if wanted != cnp.NPY_FLOAT or given != cnp.NPY_DOUBLE or not (
            cnp.PyArray_ISCARRAY_RO(array)
        ):
            return None
        cdef cnp.ndarray result = cnp.PyArray_SimpleNew(
            cnp.PyArray_NDIM(array), cnp.PyArray_DIMS(array), cnp.NPY_FLOAT
        )
        cdef const double* wide = <const double*> cnp.PyArray_DATA(array)
        cdef float* narrow = <float*> cnp.PyArray_DATA(result)
        cdef intp_t k
        cdef bint overflow = False
        for k in range(cnp.PyArray_SIZE(array)):
            narrow[k] = <float> wide[k]
            overflow |= isinf(narrow[k]) and not isinf(wide[k])
        return None if overflow else result

    cdef bint c_same_dtype(self, cnp.ndarray array) noexcept:
        """Whether another dtype object means the same, such as long and long long of one size."""
        return PyArray_EquivTypes(<cnp.dtype> cnp.PyArray_DESCR(array), self.dtype)

    cdef bint c_store(self, PyObject* value, char* to) except -1:
        """Store a Python or NumPy scalar if a column of one number can hold it as it is meant."""
        cdef int overflow = 0
        cdef long long integer
        if c_is_int(value):
            integer = c_as_long_long(value, &overflow)
            return not overflow and c_store_int(to, self.number, integer)
        if c_is_float(value):
            return c_store_float(to, self.number, c_as_double(value))
        if c_type(value) == <PyObject*> self.scalar_type:
            memcpy(to, c_scalar_value(value), self.nbytes)
            return True
        if value == <PyObject*> NUMPY_TRUE or value == <PyObject*> NUMPY_FALSE:
            return c_store_int(to, self.number, value == <PyObject*> NUMPY_TRUE)
        if c_is_integer_scalar(value):
            number = PyNumber_Index(<object> value)
            integer = c_as_long_long(<PyObject*> number, &overflow)
            return not overflow and c_store_int(to, self.number, integer)
        return False
