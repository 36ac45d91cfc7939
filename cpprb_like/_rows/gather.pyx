"""Copies between rows of a ring and dense arrays, in both directions.

Other threads may change rows during a copy. The caller checks once, after all reads, whether the
rows are valid (``Ring.holds``). Writes hold the interpreter lock from the first byte to the last.

Compiled because copies are most of the cost of a batch, and because no other thread may run within a
write. Not here: which rows (``samplers._uniform_draws``, ``samplers._base``), fields that are not
stored as they are (``views._rows``), and which values may be replaced (``buffers._replacing``).
"""

cimport numpy as cnp
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdlib cimport calloc, free, malloc, qsort
from libc.string cimport memcmp, memcpy

from cpprb_like._machine.aligned cimport LARGE_NBYTES, Lease, c_empty, c_numbers, c_over, c_start
from cpprb_like._c.arrays cimport c_check_array
from cpprb_like._rows.changes cimport c_mark_disk, c_mark_edited
from cpprb_like._rows.chained cimport Chain
from cpprb_like._rows.column cimport Column
from cpprb_like._machine.blocks cimport Block, c_gather_blocks
from cpprb_like._c.copying cimport FETCHED, UNLOCKED_NBYTES, c_gather_strided, c_prefetch_rows, c_swap
from cpprb_like._core cimport NBYTES, OFFSET, STRIDE, WRITTEN, Ring, c_begin_edit, c_end_edit, c_living
from cpprb_like._c.typedefs cimport int64_t, intp_t
from cpprb_like._rows.item_ring cimport ItemRing, Living
from cpprb_like._rows.row_handles cimport c_find_rows

import numpy as np

cnp.import_array()

cdef enum:
    BLOCKS = 16                  # columns that are gathered at once


def take(ring not None, slots, list arrays=None, tuple columns=None):
    """The values of columns at the given slots, by name: arrays of shape (n, *shape).

    ``arrays`` are the caller's, one for each column, of the right size, dense and writeable;
    without them the arrays are fresh. ``columns`` are some of ``stored_columns``, by default
    all. Raises ``TypeError`` if the slots are no dense 1-d array of intp, ``IndexError`` if one
    is not in use.

    ``ring`` is a ``Ring`` or a ``Rings``, here and below.
    """
    if type(ring) is not Ring:
        return ring.take(slots, arrays, columns)
    return c_take_rows(<Ring> ring, slots, arrays, columns)


cdef dict c_take_rows(Ring ring, slots, list arrays, tuple columns):
    """As ``take``."""
    ring.c_check_slots(slots)
    cdef intp_t number, n = cnp.PyArray_DIM(slots, 0)
    if columns is None:
        columns = ring.stored_columns
    if arrays is None:
        arrays = [None] * len(columns)
        for number in range(len(columns)):
            arrays[number] = c_new_array(ring, <Column> columns[number], n)
    else:
        c_check_arrays(arrays, columns, n)
    c_gather_columns(ring, arrays, columns, slots)
    cdef dict batch = {}
    for number in range(len(arrays)):
        batch[(<Column> columns[number]).name] = arrays[number]
    return batch


def take_chain(ring not None, Chain chain not None, cnp.ndarray slots not None, cnp.ndarray out not None):
    """Read the values of a chained field at the given slots into a dense array of the right size.

    Raises ``TypeError`` if the slots are no dense 1-d array of intp, ``IndexError`` if one is not
    in use, ``ValueError`` for an array that does not fit.
    """
    if type(ring) is not Ring:
        ring.take_chain(chain, slots, out)
        return
    cdef Ring one = <Ring> ring
    one.c_check_slots(slots)
    if chain not in one.chains:
        raise ValueError(f"field {chain.name!r}: expected one of this ring that is chained")
    c_check_arrays([out], (one.c_column(chain.name),), cnp.PyArray_DIM(slots, 0))
    c_take_chain(one, chain, slots, out)


cdef int c_take_chain(Ring ring, Chain chain, cnp.ndarray slots, cnp.ndarray out) except -1:
    """As ``take_chain``, into an array that fits."""
    ring.c_check_slots(slots)
    cdef intp_t k, n = cnp.PyArray_DIM(slots, 0)
    cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(slots)
    cdef cnp.ndarray rows = c_numbers(1, &n, cnp.NPY_INT64)
    cdef int64_t* ids = <int64_t*> cnp.PyArray_DATA(rows)
    for k in range(n):
        ids[k] = ring.c_row_at(values[k])
    return chain.c_gather(ids, n, ring.state[WRITTEN], <char*> cnp.PyArray_DATA(out))


cdef int c_check_steps(cnp.ndarray steps, intp_t n, intp_t most) except -1:
    """Raise unless steps of windows are a dense array of n numbers of intp, 1 to ``most``."""
    c_check_array(steps, "steps", cnp.NPY_INTP, n)
    cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(steps)
    cdef intp_t k
    for k in range(n):
        if not 1 <= values[k] <= most:
            raise ValueError(f"steps[{k}]: expected 1 to {most}, got {values[k]}")
    return 0


def new_array(ring not None, Column column not None, intp_t n):
    """An uninitialised array for n rows of a column."""
    return c_new_array(ring if type(ring) is Ring else ring.layout, column, n)


cdef struct ByteRange:          # addresses of the bytes of an array
    char* start
    char* stop


cdef int c_by_address(const void* one, const void* other) noexcept nogil:
    """Order of spans, for ``qsort``."""
    cdef char* first = (<const ByteRange*> one).start
    cdef char* second = (<const ByteRange*> other).start
    return (first > second) - (first < second)


cdef list c_find_arrays(out, tuple columns, intp_t n):
    """Arrays of a caller's batch for n rows of columns; None if some array may not fit.

    Then ``Schema.check_out`` converts them, or raises.
    """
    if type(out) is not dict:
        return None
    cdef list arrays = []
    cdef Column column
    cdef cnp.ndarray array
    cdef PyObject* found
    for column in columns:
        found = PyDict_GetItem(out, column.name)
        if found == NULL or type(<object> found) is not cnp.ndarray:
            return None
        array = <cnp.ndarray> found
        if (
            not cnp.PyArray_ISCARRAY(array)
            or cnp.PyArray_NDIM(array) != 1 + column.ndim
            or cnp.PyArray_DIM(array, 0) != n
            or memcmp(cnp.PyArray_DIMS(array) + 1, column.dims, column.ndim * sizeof(intp_t))
            or not (array.dtype is column.dtype or column.c_same_dtype(found, False))
        ):
            return None
        arrays.append(array)
    return arrays if c_are_apart(arrays) else None


cdef bint c_are_apart(list arrays) except -1:
    """Whether no two dense arrays share memory."""
    cdef intp_t k, nbytes, count = 0
    cdef bint apart = True
    cdef cnp.ndarray array
    cdef ByteRange* spans = <ByteRange*> malloc((1 + len(arrays)) * sizeof(ByteRange))
    if spans == NULL:
        raise MemoryError("no memory left to compare arrays")
    for array in arrays:
        nbytes = cnp.PyArray_NBYTES(array)
        if nbytes:
            spans[count].start = <char*> cnp.PyArray_DATA(array)
            spans[count].stop = spans[count].start + nbytes
            count += 1
    qsort(spans, count, sizeof(ByteRange), c_by_address)
    for k in range(1, count):
        apart &= spans[k - 1].stop <= spans[k].start
    free(spans)
    return apart


cdef int c_check_arrays(list arrays, tuple columns, intp_t n) except -1:
    cdef Column column
    if len(arrays) != len(columns):
        raise ValueError(f"expected {len(columns)} arrays, got {len(arrays)}")
    for column, array in zip(columns, arrays):
        if not (
            cnp.PyArray_Check(array)
            and cnp.PyArray_IS_C_CONTIGUOUS(array)
            and cnp.PyArray_ISWRITEABLE(array)
            and cnp.PyArray_NBYTES(array) == n * column.nbytes
        ):
            raise ValueError(f"field {column.name!r}: expected a dense array of {n} rows")
    return 0


cdef cnp.ndarray c_new_array(Ring ring, Column column, intp_t n):
    """An uninitialised array for n rows; a large one uses memory of the pool."""
    cdef intp_t dims[cnp.NPY_MAXDIMS]
    cdef intp_t ndim = 1 + column.ndim
    dims[0] = n
    memcpy(dims + 1, column.dims, column.ndim * sizeof(intp_t))
    cdef intp_t nbytes = n * column.nbytes
    cdef Lease lease
    if nbytes >= LARGE_NBYTES and column.objects is None:
        lease = ring.pool.c_lease(nbytes)
        return c_over(column.dtype, ndim, dims, c_start(lease.memory), lease)
    if ring.pool.spare_nbytes:
        ring.pool.c_pass()
    if column.objects is not None:
        return np.empty((n, *column.shape), column.dtype)
    return c_empty(column.dtype, ndim, dims)


cdef int c_gather_columns(Ring ring, list arrays, tuple columns, cnp.ndarray slots) except -1:
    """Gather checked slots into dense arrays of the right size, one for each column."""
    cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(slots)
    cdef intp_t number, n = cnp.PyArray_DIM(slots, 0)
    cdef Column column
    cdef char** outs = <char**> calloc(1 + len(ring.stored_columns), sizeof(char*))
    if outs == NULL:
        raise MemoryError("no memory left to gather rows")
    for number in range(len(arrays)):
        column = <Column> columns[number]
        outs[column.place] = <char*> cnp.PyArray_DATA(<cnp.ndarray> arrays[number])
    if n * ring.row_nbytes < UNLOCKED_NBYTES:
        c_gather_rows(ring, outs, values, n)
    else:
        with nogil:
            c_gather_rows(ring, outs, values, n)
    free(outs)
    if ring.object_columns:
        for column, array in zip(columns, arrays):
            if column.objects is not None:
                array[...] = column.objects[slots]
    return 0


cdef void c_gather_rows(Ring ring, char** outs, const intp_t* slots, intp_t n) noexcept nogil:
    cdef intp_t start = 0, count = min(n, FETCHED), following, number, n_blocks = 0
    cdef const intp_t* row
    cdef const char* base = <const char*> &ring.arena[0]
    cdef const char* records = base + ring.record_offset
    cdef intp_t size = ring.record_stride
    cdef Block[BLOCKS] blocks
    c_prefetch_rows(records, size, size, slots, count)
    while start < n:
        following = min(n - start - count, FETCHED)
        c_prefetch_rows(records, size, size, slots + start + count, following)
        for number in range(ring.in_record):
            if outs[number] == NULL:
                continue
            row = &ring.table[number, 0]
            c_gather_strided(
                outs[number] + start * row[NBYTES],
                base + row[OFFSET], row[STRIDE], row[NBYTES], slots + start, count,
            )
        start += count
        count = following
    for number in range(ring.in_record, ring.table.shape[0]):
        if outs[number] == NULL:
            continue
        row = &ring.table[number, 0]
        blocks[n_blocks] = Block(outs[number], base + row[OFFSET], row[STRIDE], row[NBYTES], slots)
        n_blocks += 1
        if n_blocks == BLOCKS:
            c_gather_blocks(blocks, n_blocks, n)
            n_blocks = 0
    c_gather_blocks(blocks, n_blocks, n)


def write(
    Ring ring not None, const int64_t[::1] indexes, list columns, list arrays, tuple items=()
):
    """Replace values of the rows that handles or slots name; of duplicates the last wins.

    ``arrays`` hold a value for each index, dense, one array for each of ``columns``, which are
    stored as they are. Values of Python objects are exchanged with those in the ring, so that the
    old ones die with the array. ``items`` replace those of ragged columns, of which each row keeps its
    number of items, in memory only: column, dense items of all rows, and their counts. Rows that were
    overwritten are skipped. Raises ``IndexError`` for a slot that holds no step, and for a handle that
    no row got; then nothing has changed.
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
    for ragged, values, counts in items:
        if ring.undo is not None or len(values) != counts.sum() or len(counts) != n:
            raise ValueError(f"field {ragged.name!r}: expected items of {n} rows, in memory")
    ring.c_check_writable()
    cdef cnp.ndarray slots = c_find_rows(ring, indexes)
    if c_mark_disk(ring, slots):
        slots = c_find_rows(ring, indexes)
    for ragged, _, counts in items:
        c_check_counts(ring, ragged, slots, counts)
    c_write_columns(ring, columns, arrays, items, <const intp_t*> cnp.PyArray_DATA(slots), n)


cdef int c_check_counts(Ring ring, Column ragged, cnp.ndarray slots, cnp.ndarray counts) except -1:
    """Raise ``ValueError`` unless rows have these numbers of items; slots of -1 are skipped."""
    cdef ItemRing memory = ring.c_axis(ragged.axis)
    cdef Living living = c_living(ring, memory)
    cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(slots)
    cdef intp_t k
    c_check_array(counts, "counts", cnp.NPY_INT64, cnp.PyArray_DIM(slots, 0))
    for k in range(cnp.PyArray_DIM(slots, 0)):
        if values[k] >= 0 and memory.c_entry(&living, values[k]).count != counts[k]:
            raise ValueError(f"field {ragged.name!r}: row {k} has another number of items now")
    return 0


cdef intp_t c_number_of(ItemRing memory, Column ragged) noexcept:
    """Number of a column of an axis."""
    cdef intp_t number
    for number in range(len(memory.columns)):
        if memory.columns[number] is ragged:
            return number
    return -1


cdef void c_write_items(
    Ring ring, ItemRing memory, intp_t number, const char* values, const intp_t* slots, intp_t n,
    const int64_t* counts,
) noexcept:
    """Replace the items of a column, within an edit."""
    cdef Living living = c_living(ring, memory)
    cdef intp_t k, size = memory.table[number, 1], nbytes
    for k in range(n):
        nbytes = <intp_t> counts[k] * size
        if slots[k] >= 0:
            memcpy(memory.c_items(number, memory.c_entry(&living, slots[k]).place), values, nbytes)
        values += nbytes


cdef void c_write_columns(
    Ring ring, list columns, list arrays, tuple items, const intp_t* slots, intp_t n
) noexcept:
    """``write`` for checked rows; no Python code runs."""
    cdef intp_t number, k, size, stride, n_columns = len(columns)
    cdef Column column
    cdef ItemRing memory
    cdef char* to
    cdef char* values
    c_begin_edit(ring)
    for ragged, values_of_items, counts in items:
        memory = ring.c_axis((<Column> ragged).axis)
        c_write_items(
            ring, memory, c_number_of(memory, <Column> ragged),
            <const char*> cnp.PyArray_DATA(<cnp.ndarray> values_of_items), slots, n,
            <const int64_t*> cnp.PyArray_DATA(<cnp.ndarray> counts),
        )
    if ring.undo is not None:
        for k in range(n):
            if slots[k] >= 0:
                c_write_row(ring, columns, arrays, slots[k], k)
        n_columns = 0
    for number in range(n_columns):
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
    if ring.trackers or ring.edited is not None:
        for k in range(n):
            if slots[k] >= 0:
                c_mark_edited(ring, slots[k])
    c_end_edit(ring)


cdef void c_write_row(Ring ring, list columns, list arrays, intp_t slot, intp_t k) noexcept:
    """Replace the values of one row in a file: all of them, or none if the process is killed."""
    cdef intp_t number, offset
    cdef Column column
    for number in range(len(columns)):
        column = <Column> columns[number]
        ring.undo.c_save(column.offset + slot * column.stride, column.nbytes)
    ring.undo.c_begin_change()
    for number in range(len(columns)):
        column = <Column> columns[number]
        offset = column.offset + slot * column.stride
        memcpy(
            <char*> &ring.arena[0] + offset,
            <const char*> cnp.PyArray_DATA(<cnp.ndarray> arrays[number]) + k * column.nbytes,
            column.nbytes,
        )
    ring.undo.c_end()
