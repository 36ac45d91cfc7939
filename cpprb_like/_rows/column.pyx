"""``Column``: place and dtype of the values of a field, and the fast path of a value of ``add``.

Values of the declared dtype and shape are used without a copy, and numbers of other dtypes are
cast in C. Compiled because every value of every ``add`` is read here. Not here: the casts
(``_c.number_casts``), and values that need Python to convert them (``casting``).
"""

cimport cython
cimport numpy as cnp
from cpython.object cimport PyObject
from libc.math cimport isinf
from libc.string cimport memcpy

from cpprb_like._c.number_casts cimport (
    BOOL, FLOAT32, FLOAT64, INT64, NO_NUMBER, c_cast_block, c_cast_run, c_kind_of,
    c_kind_of_scalar, c_size_of,
)
from cpprb_like._c.typedefs cimport intp_t

import sys

import numpy as np

cnp.import_array()

cdef enum:
    MOST_AXES = 34           # most axes of a value: those of a row, and two

cdef extern from "numpy/arrayobject.h":
    int PyArray_EquivTypes(cnp.dtype left, cnp.dtype right)
    bint c_is_array "PyArray_CheckExact"(PyObject* value)

cdef extern from "numpy/arrayscalars.h":
    """
    /* Borrowed views of arguments: no reference is counted. */
    #define CPPRB_DTYPE(value) ((PyObject *)PyArray_DESCR((PyArrayObject *)(value)))
    #define CPPRB_TYPENUM(value) (PyArray_TYPE((PyArrayObject *)(value)))
    #define CPPRB_ITEMSIZE(value) ((npy_intp)PyArray_ITEMSIZE((PyArrayObject *)(value)))
    #define CPPRB_NDIM(value) ((npy_intp)PyArray_NDIM((PyArrayObject *)(value)))
    #define CPPRB_DIMS(value) PyArray_DIMS((PyArrayObject *)(value))
    #define CPPRB_STRIDES(value) PyArray_STRIDES((PyArrayObject *)(value))
    #define CPPRB_DATA(value) PyArray_DATA((PyArrayObject *)(value))
    #define CPPRB_IS_DENSE(value) PyArray_IS_C_CONTIGUOUS((PyArrayObject *)(value))
    #define CPPRB_IS_NATIVE(value) PyArray_ISNOTSWAPPED((PyArrayObject *)(value))
    /* NumPy's numbers of up to 8 bytes all keep their value behind the object's head. */
    #define CPPRB_SCALAR_VALUE(value) ((void *)&((PyByteScalarObject *)(value))->obval)
    #define CPPRB_TYPE(value) ((PyObject *)Py_TYPE(value))
    #define CPPRB_IS_SEQUENCE(value) (PyList_CheckExact(value) || PyTuple_CheckExact(value))
    """
    PyObject* c_dtype "CPPRB_DTYPE"(PyObject* value)
    int c_typenum "CPPRB_TYPENUM"(PyObject* value)
    intp_t c_itemsize "CPPRB_ITEMSIZE"(PyObject* value)
    intp_t c_ndim "CPPRB_NDIM"(PyObject* value)
    intp_t* c_dims "CPPRB_DIMS"(PyObject* value)
    intp_t* c_strides "CPPRB_STRIDES"(PyObject* value)
    void* c_data "CPPRB_DATA"(PyObject* value)
    bint c_is_dense "CPPRB_IS_DENSE"(PyObject* value)
    bint c_is_native "CPPRB_IS_NATIVE"(PyObject* value)
    void* c_scalar_value "CPPRB_SCALAR_VALUE"(PyObject* value)
    PyObject* c_type "CPPRB_TYPE"(PyObject* value)
    bint c_is_sequence "CPPRB_IS_SEQUENCE"(PyObject* value)  # list or tuple, no subclass

cdef extern from "Python.h":
    bint c_is_float "PyFloat_Check"(PyObject* value)
    bint c_is_int "PyLong_Check"(PyObject* value)
    double c_as_double "PyFloat_AS_DOUBLE"(PyObject* value)
    long long c_as_long_long "PyLong_AsLongLongAndOverflow"(
        PyObject* value, int* overflow
    ) noexcept
    intp_t c_length "PySequence_Fast_GET_SIZE"(PyObject* sequence)
    PyObject** c_items "PySequence_Fast_ITEMS"(PyObject* sequence)


@cython.final
cdef class Column:
    """Memory, dtype of the machine's byte order, and shape of a row, of the values of one field.

    Row 0 is at ``offset`` in the arena. Fields of Python objects have an array of their own. Columns
    of a named axis take no bytes of a row: their items lie in the memory of the axis, where the
    column of its entries says.
    """

    def __cinit__(
        self, str name, cnp.dtype dtype, tuple shape, intp_t capacity, intp_t offset, intp_t stride,
        *, str axis="", bint is_entry=False,
    ):
        # ``add`` compares keywords by address first, so a name from a file costs more otherwise.
        self.name = sys.intern(name)
        self.dtype = dtype
        self.shape = shape
        self.axis = axis
        self.is_entry = is_entry
        self.nbytes = dtype.itemsize
        for length in shape:
            self.nbytes *= length
        self.offset = offset
        self.stride = stride
        self.objects = None
        if dtype.hasobject:
            self.objects = np.empty((capacity, *shape), dtype)
            self.objects.flags.writeable = False  # for Python; rows are written by their address
            self.offset = -1
            self.stride = self.nbytes
        self.is_object = dtype.hasobject
        self.is_structured = (<object> dtype).names is not None
        self.scalar_type = (<object> dtype).type  # of the Python object, not of the C struct
        self.takes_scalars = shape == (1,)
        self.ndim = len(shape)
        for k, length in enumerate(shape):
            self.dims[k] = length
        self.kind = c_kind_of(dtype.type_num)
        self.number = self.kind if shape in ((), (1,)) else NO_NUMBER

    cdef intp_t c_rows(self, const intp_t* dims, intp_t ndim, intp_t n_envs) noexcept:
        """Number of rows of a value of this shape; -1 if the shape does not fit.

        One step of ``n_envs`` environments has the leading axis ``n_envs``, and a block of T steps
        two axes ``(T, n_envs)``. With one environment the leading axis is time, or there is none.
        """
        cdef intp_t axis, lead = ndim - self.ndim
        if self.takes_scalars and (ndim < 2 or dims[ndim - 1] != 1):
            lead = ndim
        else:
            if lead < 0:
                return -1
            for axis in range(self.ndim):
                if dims[lead + axis] != self.dims[axis]:
                    return -1
        if lead == 1 and (n_envs == 1 or dims[0] == n_envs):
            return dims[0]
        if lead == 2 and dims[1] == n_envs:
            return dims[0] * n_envs
        return 1 if lead == 0 and n_envs == 1 else -1

    cdef intp_t c_locate(
        self, PyObject* value, bint converted, intp_t n_envs, char* scratch, intp_t* address
    ) noexcept:
        """Number of rows of a value, and their address; -1 if the value has to be converted first.

        A single number is put into ``scratch``. Runs no Python code. Arrays of Python objects are
        taken only if ``converted``, as the ring exchanges their contents.
        """
        if not c_is_array(value):
            if self.number == NO_NUMBER or n_envs > 1:
                return -1
            if c_type(value) == <PyObject*> self.scalar_type:
                memcpy(scratch, c_scalar_value(value), self.nbytes)
            elif not c_store(value, self.number, scratch):
                return -1
            address[0] = <intp_t> scratch
            return 1
        if c_dtype(value) != <PyObject*> self.dtype and not self.c_same_dtype(value, converted):
            return -1
        if not c_is_dense(value) or (self.is_object and not converted):
            return -1
        address[0] = <intp_t> c_data(value)
        return self.c_rows(c_dims(value), c_ndim(value), n_envs)

    cdef intp_t c_measure(self, PyObject* value, intp_t n_envs) noexcept:
        """Number of rows of a value that ``c_fill`` may be able to cast; -1 for any other value.

        Arrays of numbers, and lists and tuples of them. Runs no Python code.
        """
        cdef intp_t[MOST_AXES] dims
        cdef intp_t ndim = 0, axis
        if self.kind == NO_NUMBER:
            return -1
        while c_is_sequence(value):
            if ndim == MOST_AXES:
                return -1
            dims[ndim] = c_length(value)
            ndim += 1
            if dims[ndim - 1] == 0:
                return self.c_rows(dims, ndim, n_envs)
            value = c_items(value)[0]
        if c_is_array(value):
            if c_kind_of(c_typenum(value)) == NO_NUMBER or not c_is_native(value):
                return -1
            for axis in range(c_ndim(value)):
                if ndim == MOST_AXES:
                    return -1
                dims[ndim] = c_dims(value)[axis]
                ndim += 1
        return self.c_rows(dims, ndim, n_envs)

    cdef bint c_fill(self, PyObject* value, char* to) noexcept:
        """Cast a value that ``c_measure`` has measured; false if that would change its meaning.

        Runs no Python code.
        """
        cdef intp_t[MOST_AXES] dims
        cdef intp_t ndim = 0, axis
        cdef PyObject* item = value
        while c_is_sequence(item):
            dims[ndim] = c_length(item)
            ndim += 1
            if dims[ndim - 1] == 0:
                break
            item = c_items(item)[0]
        if c_is_array(item):
            for axis in range(c_ndim(item)):
                dims[ndim] = c_dims(item)[axis]
                ndim += 1
        return self.c_fill_part(value, dims, ndim, &to)

    cdef bint c_fill_part(
        self, PyObject* value, const intp_t* dims, intp_t ndim, char** to
    ) noexcept:
        """``c_fill`` for a part of a value, of shape ``dims``; moves ``to`` behind the part."""
        cdef intp_t k, axis, size
        if c_is_sequence(value):
            if ndim == 0 or c_length(value) != dims[0]:
                return False
            for k in range(dims[0]):
                if not self.c_fill_part(c_items(value)[k], dims + 1, ndim - 1, to):
                    return False
            return True
        if c_is_array(value):
            if c_ndim(value) != ndim or not c_is_native(value):
                return False
            size = c_size_of(self.kind)
            for axis in range(ndim):
                if c_dims(value)[axis] != dims[axis]:
                    return False
                size *= dims[axis]
            if not c_cast_block(
                c_kind_of(c_typenum(value)), self.kind, <const char*> c_data(value), ndim, dims,
                c_strides(value), to[0],
            ):
                return False
            to[0] += size
            return True
        if ndim or not c_store(value, self.kind, to[0]):
            return False
        to[0] += c_size_of(self.kind)
        return True

    cdef object c_cast(self, PyObject* value, intp_t n_envs):
        """A value as an array of this column's dtype, shape ``(n, *shape)`` or, for a block of time
        steps, ``(T, n_envs, *shape)``, over fresh memory; None if that needs Python.
        """
        cdef intp_t rows = self.c_measure(value, n_envs)
        if rows < 0:
            return None
        cdef tuple leading = (rows,)
        if n_envs > 1 and rows != n_envs:
            leading = (rows // n_envs, n_envs)
        cdef cnp.ndarray array = np.empty((*leading, *self.shape), self.dtype)
        return array if self.c_fill(value, <char*> cnp.PyArray_DATA(array)) else None

    def cast(self, value, intp_t n_envs=1):
        """Call ``c_cast``."""
        return self.c_cast(<PyObject*> value, n_envs)

    cdef bint c_same_dtype(self, PyObject* value, bint converted) noexcept:
        """Whether another dtype object is equivalent, such as long and long long of the same size.

        Runs no Python code. So structured dtypes, whose names may be any objects, are equivalent only
        if ``converted``.
        """
        if self.kind != NO_NUMBER:
            return c_kind_of(c_typenum(value)) == self.kind and c_is_native(value)
        if converted:
            return c_itemsize(value) == self.dtype.itemsize
        return not self.is_structured and PyArray_EquivTypes(
            <cnp.dtype> c_dtype(value), self.dtype
        )


cdef bint c_store(PyObject* value, intp_t kind, char* to) noexcept:
    """Store a Python or NumPy number if a number of this kind can represent it."""
    cdef int overflow = 0
    cdef long long integer
    cdef double wide
    if c_is_int(value):  # first: a comparison of types is cheap
        integer = c_as_long_long(value, &overflow)
        return not overflow and c_store_int(to, kind, integer)
    if c_is_float(value):
        wide = c_as_double(value)
        if kind == FLOAT32:
            (<float*> to)[0] = <float> wide
            return not isinf((<float*> to)[0]) or isinf(wide)
        if kind == FLOAT64:
            (<double*> to)[0] = wide
            return True
        return c_cast_run(FLOAT64, kind, <const char*> &wide, sizeof(double), to, 1)
    kind_given = c_kind_of_scalar(value)
    return kind_given != NO_NUMBER and c_cast_run(
        kind_given, kind, <const char*> c_scalar_value(value), 0, to, 1
    )


cdef inline bint c_store_int(char* to, intp_t kind, long long value) noexcept nogil:
    """Store an int if a number of this kind can represent it."""
    if kind == INT64:
        (<long long*> to)[0] = value
        return True
    if kind == BOOL:
        to[0] = <char> value
        return 0 <= value <= 1
    if kind == FLOAT32:
        (<float*> to)[0] = <float> value
        return True
    return c_cast_run(INT64, kind, <const char*> &value, sizeof(long long), to, 1)


def load_objects(Column column not None, cnp.ndarray values not None):
    """Write the first rows of a column of Python objects, of a new ring."""
    rows = column.objects
    rows.flags.writeable = True
    try:
        rows[: len(values)] = values
    finally:
        rows.flags.writeable = False
