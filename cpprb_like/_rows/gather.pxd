"""C signatures of copies between rows of a ring and arrays."""

from numpy cimport ndarray

from cpprb_like._rows.chained cimport Chain
from cpprb_like._rows.column cimport Column
from cpprb_like._core cimport Ring
from cpprb_like._c.typedefs cimport intp_t

cdef list c_find_arrays(out, tuple columns, intp_t n)
cdef bint c_are_apart(list arrays) except -1
cdef dict c_take_rows(Ring ring, slots, list arrays, tuple columns)
cdef int c_take_chain(Ring ring, Chain chain, ndarray slots, ndarray out) except -1
cdef int c_check_steps(ndarray steps, intp_t n, intp_t most) except -1
cdef int c_check_arrays(list arrays, tuple columns, intp_t n) except -1
cdef ndarray c_new_array(Ring ring, Column column, intp_t n)
cdef int c_gather_columns(Ring ring, list arrays, tuple columns, ndarray slots) except -1
cdef void c_gather_rows(Ring ring, char** outs, const intp_t* slots, intp_t n) noexcept nogil
cdef void c_write_columns(
    Ring ring, list columns, list arrays, tuple items, const intp_t* slots, intp_t n
) noexcept
