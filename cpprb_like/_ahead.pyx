"""Rows of several steps: each read with the rows that follow it in its episode.

Compiled because it walks through the rows of every drawn window. Not here: what the steps are for
(``views``), and fields that are not stored as they are (``_take``).
"""

cimport numpy as cnp
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from cpprb_like._column cimport Column
from cpprb_like._copy cimport c_prefetch_rows
from cpprb_like._core cimport END, UPDATES, WRITTEN, Ring
from cpprb_like._take cimport c_check_arrays, c_gather_rows, c_new_array
from cpprb_like._typedefs cimport float32_t, float64_t, int64_t, intp_t, uint8_t

cnp.import_array()

cdef enum:
    CHUNK = 64                   # windows whose records are fetched before the first is walked
    FETCHED_ROWS = 16            # of a window, at most
    UNLOCKED_NBYTES = 32768      # smaller batches keep the interpreter lock


def can_sum(Column column not None):
    """Whether ``take_ahead`` sums this column: it holds floats of 4 or 8 bytes of this machine."""
    return column.dtype.isnative and column.dtype.char in "fd"


def take_ahead(
    Ring ring not None, cnp.ndarray slots, int64_t written, int64_t revision, list arrays,
    frozenset rewards, frozenset there, cnp.ndarray steps, cnp.ndarray powers,
):
    """The stored columns of rows of several steps, by name: arrays of shape (n, *shape).

    ``steps`` are of intp, at least 1 and at most ``len(powers)``, one for each slot. A window is a
    row and those that follow it in its episode, so many in all or less. Columns named in
    ``rewards`` are summed over it, each row times its power; those in ``there`` are of its last
    row, the others of its first.

    Returns the columns, the slots and flags of the last rows, and how many rows each window has.
    None if one of the rows was overwritten since ``written`` and ``revision`` were read, or values
    were replaced meanwhile. ``arrays`` are the caller's, one for each stored column.
    """
    if ring.c_is_overwritten(slots, written, revision):
        return None
    ring.c_check_slots(slots)
    cdef intp_t k, n = cnp.PyArray_DIM(slots, 0)
    cdef int64_t updates = ring.state[UPDATES]
    cdef tuple columns = ring.stored_columns
    cdef Column column
    cdef char* data
    if arrays is None:
        arrays = [c_new_array(ring, column, n) for column in columns]
    else:
        c_check_arrays(arrays, columns, n)
    cdef cnp.ndarray last = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_INTP)
    cdef cnp.ndarray counts = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_INTP)
    cdef cnp.ndarray flags = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_UINT8)
    cdef const intp_t* first_rows = <const intp_t*> cnp.PyArray_DATA(slots)
    cdef intp_t* last_rows = <intp_t*> cnp.PyArray_DATA(last)
    cdef intp_t* lengths = <intp_t*> cnp.PyArray_DATA(counts)
    cdef uint8_t* ends = <uint8_t*> cnp.PyArray_DATA(flags)
    cdef const intp_t* wanted = <const intp_t*> cnp.PyArray_DATA(steps)
    cdef const float64_t* factors = <const float64_t*> cnp.PyArray_DATA(powers)
    cdef char** here_outs = <char**> calloc(2 * (1 + len(columns)), sizeof(char*))
    cdef char** there_outs = here_outs + 1 + len(columns)
    if here_outs == NULL:
        raise MemoryError("no memory left to gather rows")
    for k in range(len(columns)):
        column = <Column> columns[k]
        data = <char*> cnp.PyArray_DATA(<cnp.ndarray> arrays[k])
        if column.name in there:
            there_outs[column.place] = data
        elif column.name not in rewards:
            here_outs[column.place] = data
    cdef Walk walk = c_walk_of(ring)
    cdef bint unlocked = n * ring.row_nbytes >= UNLOCKED_NBYTES
    if unlocked:
        with nogil:
            c_find_last(&walk, first_rows, wanted, n, last_rows, lengths, ends)
    else:
        c_find_last(&walk, first_rows, wanted, n, last_rows, lengths, ends)
    for k in range(len(columns)):
        column = <Column> columns[k]
        if column.name in rewards:
            data = <char*> cnp.PyArray_DATA(<cnp.ndarray> arrays[k])
            c_sum_column(
                &walk, <const char*> &ring.arena[0] + column.offset, column, first_rows, lengths,
                factors, n, data,
            )
    if unlocked:
        with nogil:
            c_gather_rows(ring, here_outs, first_rows, n)
            c_gather_rows(ring, there_outs, last_rows, n)
    else:
        c_gather_rows(ring, here_outs, first_rows, n)
        c_gather_rows(ring, there_outs, last_rows, n)
    free(here_outs)
    if ring.boxed:
        for k in range(len(columns)):
            column = <Column> columns[k]
            if column.objects is not None:
                arrays[k][...] = column.objects[last if column.name in there else slots]
    if ring.state[UPDATES] != updates or ring.c_is_overwritten(slots, written, revision):
        return None
    cdef dict batch = {}
    for k in range(len(columns)):
        batch[(<Column> columns[k]).name] = arrays[k]
    return batch, last, flags, counts


cdef Walk c_walk_of(Ring ring) noexcept nogil:
    cdef Walk walk
    walk.flags = ring.c_flags(0)
    walk.stride = ring.record_stride
    walk.capacity = ring.capacity
    walk.n_envs = ring.n_envs
    walk.written = ring.state[WRITTEN]
    walk.head = <intp_t> (walk.written % ring.capacity)
    return walk


cdef void c_find_last(
    const Walk* walk, const intp_t* slots, const intp_t* wanted, intp_t n, intp_t* last,
    intp_t* lengths, uint8_t* flags,
) noexcept nogil:
    """Find the last row of each window, its flags, and how many rows there are."""
    cdef intp_t k, start = 0, slot, following, count, rows
    cdef int64_t row
    cdef const char* records = <const char*> walk.flags - (walk.stride - 1)
    while start < n:
        for k in range(start, min(start + CHUNK, n)):
            rows = (wanted[k] - 1) * walk.n_envs + 1
            rows = min(rows, walk.capacity - slots[k])
            if rows <= FETCHED_ROWS:
                c_prefetch_rows(records, walk.stride, walk.stride * rows, slots + k, 1)
        for k in range(start, min(start + CHUNK, n)):
            slot = slots[k]
            row = c_row_of(walk, slot)
            count = 1
            while count < wanted[k] and not walk.flags[slot * walk.stride] & END:
                following = c_step(walk, slot, &row)
                if following < 0:
                    break
                slot = following
                count += 1
            last[k] = slot
            lengths[k] = count
            flags[k] = walk.flags[slot * walk.stride]
        start += CHUNK


cdef void c_sum_column(
    const Walk* walk, const char* base, Column column, const intp_t* slots, const intp_t* lengths,
    const float64_t* powers, intp_t n, char* out,
) noexcept:
    """Sum the values of a column over windows; of a lone row they are copied, to the last bit."""
    cdef bint single = column.dtype.itemsize == 4
    cdef intp_t k, i, slot, item, items = column.nbytes // (4 if single else 8)
    cdef intp_t stride = column.stride, nbytes = column.nbytes
    cdef int64_t row
    cdef float64_t total
    cdef const char* value
    for k in range(n):
        if lengths[k] == 1:
            memcpy(out + k * nbytes, base + slots[k] * stride, nbytes)
            continue
        for item in range(items):
            slot = slots[k]
            row = c_row_of(walk, slot)
            total = -0.0  # plus minus zero is minus zero
            for i in range(lengths[k]):
                slot = c_step(walk, slot, &row) if i else slot
                if powers[i] != 0.0:  # otherwise infinite rewards would make it NaN
                    value = base + slot * stride
                    if single:
                        total += powers[i] * (<const float32_t*> value)[item]
                    else:
                        total += powers[i] * (<const float64_t*> value)[item]
            if single:
                (<float32_t*> out)[k * items + item] = <float32_t> total
            else:
                (<float64_t*> out)[k * items + item] = total
