"""Frames of different rows, stacked; and a frame of a stack.

Compiled because most of what it costs is the order of the bytes: each item of a stack stands beside
those of the other frames. Not here: fields that are not stored as they are, and arguments that need
conversion (``_stacking``); and stacks of which only frames are stored (``_rows.chained``).
"""

cimport numpy as cnp
from libc.stdlib cimport calloc, free, malloc

from cpprb_like._rows.column cimport Column
from cpprb_like._machine.blocks cimport Values, c_gather_values
from cpprb_like._c.copying cimport c_pick
from cpprb_like._core cimport Ring
from cpprb_like._rows.gather cimport c_new_array
from cpprb_like._c.typedefs cimport intp_t

import numpy as np

cnp.import_array()

cdef enum:
    UNLOCKED_NBYTES = 32768      # smaller stacks keep the lock: taking it back costs more

COPIED_AT_ONCE = UNLOCKED_NBYTES  # bytes below which nobody else runs while they are copied


def take_stacks(
    Ring ring not None, Column column not None, cnp.ndarray slots not None, intp_t axis,
    cnp.ndarray out=None,
):
    """The values of a column at the slots of each row of a matrix, stacked along a new axis.

    ``slots`` are of intp, dense, shape (n, depth); one below 0 stands for a value of zeros. The
    result has the shape (n, \\*shape) with depth inserted before axis ``axis`` of a value; ``out``
    is such an array of the caller's, dense and writeable.

    Raises ``IndexError`` if a slot is not in use.
    """
    if column.is_boxed or column not in ring.stored_columns:
        raise ValueError(f"field {column.name!r}: expected bytes that are stored as they are")
    if cnp.PyArray_TYPE(slots) != cnp.NPY_INTP or not (
        cnp.PyArray_NDIM(slots) == 2 and cnp.PyArray_ISCARRAY_RO(slots)
    ):
        raise TypeError("slots: expected a dense 2-d array of intp")
    if not 0 <= axis <= column.ndim:
        raise ValueError(f"axis: expected 0 to {column.ndim}, got {axis}")
    cdef intp_t k, n = cnp.PyArray_DIM(slots, 0), depth = cnp.PyArray_DIM(slots, 1)
    cdef intp_t outer = 1, nbytes = n * depth * column.nbytes, stored
    cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(slots)
    if out is None:
        shape = (n, *column.shape[:axis], depth, *column.shape[axis:])
        out = c_new_array(ring, column, n * depth).reshape(shape)
    elif not (
        cnp.PyArray_IS_C_CONTIGUOUS(out)
        and cnp.PyArray_ISWRITEABLE(out)
        and cnp.PyArray_NBYTES(out) == nbytes
    ):
        raise ValueError(f"out: expected a dense array of {nbytes} bytes")
    stored = ring.c_stored()  # from here on no Python code runs, which could change it
    for k in range(n * depth):
        if values[k] >= stored:
            ring.c_check_slots(slots[slots >= 0])  # which raises
    if nbytes == 0:
        return out
    for k in range(axis):
        outer *= column.dims[k]
    cdef const char** frames = <const char**> malloc(n * depth * sizeof(char*))
    cdef char* zeros = <char*> calloc(column.nbytes, 1)
    if frames == NULL or zeros == NULL:
        free(frames)
        free(zeros)
        raise MemoryError("no memory left to stack frames")
    cdef const char* start = <const char*> &ring.arena[0] + column.offset
    for k in range(n * depth):
        frames[k] = start + values[k] * column.stride
        if values[k] < 0:
            frames[k] = zeros
    cdef Values stacks = Values(
        <char*> cnp.PyArray_DATA(out), NULL, frames, depth * column.nbytes, depth, outer,
        column.nbytes // outer,
    )
    if nbytes < UNLOCKED_NBYTES:
        c_gather_values(&stacks, n)
    else:
        with nogil:
            c_gather_values(&stacks, n)
    free(frames)
    free(zeros)
    return out


def newest_frame(cnp.ndarray stack not None):
    """``stack[..., -1]``, dense, of a stack of at least one frame along its last axis."""
    cdef intp_t depth, n
    cdef cnp.ndarray frame
    if cnp.PyArray_ITEMSIZE(stack) != 1 or not cnp.PyArray_IS_C_CONTIGUOUS(stack):
        return np.ascontiguousarray(stack[..., -1])
    depth = stack.shape[cnp.PyArray_NDIM(stack) - 1]
    frame = np.empty((<object> stack).shape[:-1], stack.dtype)
    n = cnp.PyArray_SIZE(frame)
    c_pick(
        <char*> cnp.PyArray_DATA(frame), <const char*> cnp.PyArray_DATA(stack) + depth - 1, depth, n
    )
    return frame
