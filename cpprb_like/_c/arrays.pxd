"""Checks of arguments of compiled functions: integers and dense arrays."""

cimport numpy as cnp
from cpython.number cimport PyNumber_AsSsize_t

from cpprb_like._c.typedefs cimport intp_t


cdef inline intp_t c_index(number) except? -1:
    """An integer: Cython's own conversion would cut the fraction off a float."""
    return PyNumber_AsSsize_t(number, OverflowError)


cdef inline int c_check_array(array, str name, int typenum, intp_t n) except -1:
    """Raise unless ``array`` is a dense 1-d array of a dtype, with n elements unless n is -1."""
    dtype = "intp" if typenum == cnp.NPY_INTP else "float64"
    if not cnp.PyArray_Check(array):
        raise TypeError(f"{name}: expected an array of {dtype}, got {type(array).__name__}")
    if cnp.PyArray_TYPE(array) != typenum or not (
        cnp.PyArray_NDIM(array) == 1 and cnp.PyArray_ISCARRAY_RO(array)
    ):
        order = "" if array.flags.c_contiguous else "strided "
        raise TypeError(
            f"{name}: expected a dense 1-d array of {dtype}, "
            f"got a {order}{array.ndim}-d one of {array.dtype}"
        )
    if n != -1 and cnp.PyArray_DIM(array, 0) != n:
        raise ValueError(f"{name}: expected {n}, got {cnp.PyArray_DIM(array, 0)}")
    return 0
