"""New values for rows that are in a ring.

Compiled because no other thread may run between the first byte and the last. Not here: what may be
replaced, and values that need conversion (``buffers._replacing``).
"""

cimport numpy as cnp
from libc.string cimport memcpy

from cpprb_like._rows.column cimport Column
from cpprb_like._c.copying cimport c_swap
from cpprb_like._core cimport Ring
from cpprb_like._rows.row_handles cimport c_find_rows
from cpprb_like._c.typedefs cimport int64_t, intp_t

cnp.import_array()


def write(Ring ring not None, const int64_t[::1] indexes, list columns, list arrays):
    """Replace values of the rows that handles or slots name; of duplicates the last wins.

    ``arrays`` hold a value for each index, dense, one array for each of ``columns``, which are
    stored as they are. Values of Python objects are exchanged with those in the ring, so that the
    old ones die with the array. Rows that were overwritten are skipped. Raises ``IndexError`` for a
    slot that holds no step, and for a handle that no row got; then nothing has changed.
    """
    cdef intp_t n = indexes.shape[0]
    cdef Column column
    for column, array in zip(columns, arrays, strict=True):
        if column not in ring.stored_columns:
            raise ValueError(f"field {column.name!r}: expected one that is stored as it is")
        if not cnp.PyArray_Check(array) or not (
            cnp.PyArray_IS_C_CONTIGUOUS(array) and cnp.PyArray_NBYTES(array) == n * column.nbytes
        ):
            raise ValueError(f"field {column.name!r}: expected a dense array of {n} rows")
        if column.objects is not None and array.dtype != column.dtype:
            raise ValueError(f"field {column.name!r}: expected {column.dtype}, got {array.dtype}")
    ring.c_check_writable()
    cdef cnp.ndarray slots = c_find_rows(ring, indexes)
    c_write(ring, columns, arrays, <const intp_t*> cnp.PyArray_DATA(slots), n)


cdef void c_write(
    Ring ring, list columns, list arrays, const intp_t* slots, intp_t n
) noexcept:
    """As ``write``; no Python code runs."""
    cdef intp_t number, k, size, stride
    cdef Column column
    cdef char* to
    cdef char* values
    ring.c_begin_edit()
    if ring.undo is not None:
        for k in range(n):
            if slots[k] >= 0:
                c_write_row(ring, columns, arrays, slots[k], k)
        columns = []
    for number in range(len(columns)):
        column = <Column> columns[number]
        values = <char*> cnp.PyArray_DATA(<cnp.ndarray> arrays[number])
        size = column.nbytes
        if column.objects is not None:
            to = <char*> cnp.PyArray_DATA(column.objects)
            for k in range(n):
                if slots[k] >= 0:
                    c_swap(to + slots[k] * size, values + k * size, size)
            continue
        to = <char*> &ring.arena[0] + column.offset
        stride = column.stride
        for k in range(n):
            if slots[k] >= 0:
                memcpy(to + slots[k] * stride, values + k * size, size)
    if ring.trackers or ring.undo is not None:
        for k in range(n):
            if slots[k] >= 0:
                ring.c_tell(slots[k])
    ring.c_end_edit()


cdef void c_write_row(Ring ring, list columns, list arrays, intp_t slot, intp_t k) noexcept:
    """Replace the values of one row in a file: all of them, or none if the process is killed."""
    cdef intp_t number, offset
    cdef Column column
    for number in range(len(columns)):
        column = <Column> columns[number]
        ring.undo.c_save(column.offset + slot * column.stride, column.nbytes)
    ring.undo.c_begin()
    for number in range(len(columns)):
        column = <Column> columns[number]
        offset = column.offset + slot * column.stride
        memcpy(
            <char*> &ring.arena[0] + offset,
            <const char*> cnp.PyArray_DATA(<cnp.ndarray> arrays[number]) + k * column.nbytes,
            column.nbytes,
        )
    ring.undo.c_end()
