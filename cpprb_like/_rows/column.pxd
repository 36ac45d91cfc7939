"""Attributes and C signatures of ``Column``."""

from cpython.object cimport PyObject
from numpy cimport NPY_MAXDIMS, dtype, ndarray

from cpprb_like._c.typedefs cimport intp_t


cdef class Column:
    cdef readonly str name
    cdef readonly dtype dtype
    cdef readonly tuple shape        # shape of one row; a named axis has the length 0
    cdef readonly str axis           # name of the axis whose length differs from row to row; or ""
    cdef readonly bint is_entry      # whether the values are entries: where the items of a row lie
    cdef readonly ndarray objects    # (capacity, *shape) for Python objects, read-only; else None
    cdef readonly intp_t offset      # place of row 0 in the arena
    cdef readonly intp_t stride      # bytes from row to row
    cdef readonly intp_t nbytes      # bytes of one row
    cdef intp_t kind                 # kind of number of the dtype; NO_NUMBER for other dtypes
    cdef intp_t number               # ``kind`` if a row has one number, else NO_NUMBER
    cdef object scalar_type          # type of the NumPy scalars of this dtype
    cdef bint is_structured          # whether the dtype is structured
    cdef bint is_object              # whether values are Python objects
    cdef bint takes_scalars          # whether ``shape`` is (1,), which takes () and (N,) too
    cdef intp_t ndim                 # length of ``shape``
    cdef intp_t[NPY_MAXDIMS] dims    # ``shape`` for C
    cdef intp_t place                # place of its address among those of a call; arena columns first

    cdef intp_t c_rows(self, const intp_t* dims, intp_t ndim, intp_t n_envs) noexcept
    cdef intp_t c_locate(
        self, PyObject* value, bint converted, intp_t n_envs, char* scratch, intp_t* address
    ) noexcept
    cdef intp_t c_measure(self, PyObject* value, intp_t n_envs) noexcept
    cdef bint c_fill(self, PyObject* value, char* to) noexcept
    cdef bint c_fill_part(
        self, PyObject* value, const intp_t* dims, intp_t ndim, char** to
    ) noexcept
    cdef object c_cast(self, PyObject* value, intp_t n_envs)
    cdef bint c_same_dtype(self, PyObject* value, bint converted) noexcept
