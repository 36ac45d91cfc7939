"""Rows of several steps: each read with the rows that follow it in its episode.

Compiled because it walks through the rows of every drawn window. Not here: what the steps are for
(``_rows``), and rewards of unusual dtypes.
"""

cimport cython
cimport numpy as cnp
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from cpprb_like._machine.aligned cimport c_numbers
from cpprb_like._rows.chained cimport Chain
from cpprb_like._rows.column cimport Column
from cpprb_like._machine.blocks cimport Block, c_gather_blocks
from cpprb_like._c.copying cimport c_gather
from cpprb_like._core cimport (
    ABSENT, END, NBYTES, OFFSET, STRIDE, TERMINATED, WRITTEN, Ring, c_fetch
)
from cpprb_like._rows.gather cimport c_check_arrays, c_check_steps, c_new_array, c_take_chain
from cpprb_like._c.typedefs cimport float32_t, float64_t, intp_t

import numpy as np

cnp.import_array()

cdef enum:
    CHUNK = 64                   # windows whose records are fetched before the first is walked
    UNLOCKED_NBYTES = 32768      # smaller batches keep the interpreter lock

cdef enum:  # what a batch holds of a column
    OF_FIRST = 0                 # the value of the first row of the window
    OF_LAST = 1
    SUM_OF_SINGLES = 2           # of all rows
    SUM_OF_DOUBLES = 3


cdef inline Walk c_walk_of(Ring ring) noexcept nogil:
    cdef Walk walk
    walk.flags = ring.c_flags(0)
    walk.stride = ring.flag_stride
    walk.capacity = ring.capacity
    walk.n_envs = ring.n_envs
    walk.head = <intp_t> (ring.state[WRITTEN] % ring.capacity)
    walk.any_absent = ring.c_absent() != 0
    walk.onward = ring.runs.onward
    return walk


cdef inline intp_t c_newer(const Walk* walk, intp_t slot) noexcept nogil:
    """How many rows are newer than the one in a slot in use."""
    return walk.head - 1 - slot + (0 if slot < walk.head else walk.capacity)


cdef inline intp_t c_step(const Walk* walk, intp_t slot, intp_t* newer) noexcept nogil:
    """The slot of the next row of the stream that holds a step, -1 if there is none."""
    cdef intp_t rows = walk.n_envs
    while True:
        newer[0] -= rows
        if newer[0] < 0:
            return -1
        slot += rows
        slot = slot - walk.capacity if slot >= walk.capacity else slot
        if not (walk.any_absent and walk.flags[slot * walk.stride] & ABSENT):
            return slot
        rows = max(walk.onward[slot], 1) * walk.n_envs  # 0: another thread is about to note it


def can_sum(Column column not None):
    """Whether ``Windows`` sums this column, if it is stored as it is: floats of 4 or 8 bytes."""
    return column.dtype.char in "fd"


@cython.final
cdef class Windows:
    """Reads windows: a row and those that follow it in its episode, so many in all or less.

    Parameters
    ----------
    ring : Ring
        The rows.
    size : int
        The most rows of a window.
    gamma : float
        The factor of each further row.
    sums, last_step_fields : frozenset of str
        Names of the stored columns that are summed over a window, which ``can_sum``, and of those
        columns that are of its last row. All others are of its first.
    discount_shape : tuple of int, optional
        Of a row of the column ``discount``: () or (1,). Without it there is no such column.
    """

    def __cinit__(
        self, Ring ring not None, intp_t size, gamma, frozenset sums, frozenset last_step_fields,
        discount_shape,
    ):
        cdef Column column
        self.ring = ring
        self.size = size
        self.powers = c_powers(gamma, size)
        self.last_step_fields = last_step_fields
        self.discount_ndim = 0 if discount_shape is None else 1 + len(discount_shape)
        self.origins = np.zeros(len(ring.columns), np.uint8)
        self.lead = -1
        for column in ring.stored_columns:
            if column.name in sums:
                self.origins[column.place] = (
                    SUM_OF_SINGLES if column.dtype.itemsize == 4 else SUM_OF_DOUBLES
                )
                if column.nbytes == column.dtype.itemsize:
                    self.lead = column.place  # the last such column, if there are more
            elif column.name in last_step_fields:
                self.origins[column.place] = OF_LAST

    def take(
        self, cnp.ndarray slots not None, list arrays=None, steps=None, tuple columns=None,
    ):
        """A batch of the windows of the rows in the given slots: a dict of fresh arrays.

        ``columns`` are some of those of the ring, by default all. ``arrays`` are the caller's, one
        for each of them. ``steps`` stands for ``size``: an array of intp, a number for each row, at
        least 1 and at most ``size``. Raises ``TypeError`` and ``IndexError`` as ``take`` does,
        ``ValueError`` for other steps.
        """
        cdef Ring ring = self.ring
        ring.c_check_slots(slots)
        cdef intp_t k, n = cnp.PyArray_DIM(slots, 0)
        if steps is not None:
            c_check_steps(steps, n, self.size)
        cdef Column column
        if columns is None:
            columns = ring.columns
        if arrays is None:
            arrays = [c_new_array(ring, column, n) for column in columns]
        else:
            c_check_arrays(arrays, columns, n)
        cdef cnp.ndarray last = c_numbers(1, &n, cnp.NPY_INTP)
        cdef cnp.ndarray discount = self.c_new_discount(n)
        self.c_fill(slots, columns, arrays, last, discount, steps)
        if ring.object_columns:
            for column, array in zip(columns, arrays):
                if column.objects is not None:
                    array[...] = column.objects[slots]  # never of the last row: see derived
        cdef dict batch = {}
        for k in range(len(arrays)):
            batch[(<Column> columns[k]).name] = arrays[k]
        cdef Chain chain
        for chain in ring.chains:
            if chain.name in batch:
                c_take_chain(
                    ring, chain, last if chain.name in self.last_step_fields else slots, batch[chain.name]
                )
        if discount is not None:
            batch["discount"] = discount
        return batch

    cdef cnp.ndarray c_new_discount(self, intp_t n):
        cdef intp_t[2] dims
        dims[0], dims[1] = n, 1
        if self.discount_ndim == 0:
            return None
        return c_numbers(self.discount_ndim, dims, cnp.NPY_FLOAT32)

    cdef int c_fill(
        self, cnp.ndarray slots, tuple columns, list arrays, cnp.ndarray last,
        cnp.ndarray discount, steps
    ) except -1:
        """Read what lies in the arena, and find the last rows of the windows."""
        cdef Ring ring = self.ring
        cdef Read read
        cdef intp_t k, n = cnp.PyArray_DIM(slots, 0)
        read.slots = <const intp_t*> cnp.PyArray_DATA(slots)
        read.last = <intp_t*> cnp.PyArray_DATA(last)
        read.discount = NULL
        if discount is not None:
            read.discount = <float32_t*> cnp.PyArray_DATA(discount)
        read.powers = &self.powers[0]
        read.steps = NULL
        read.most = self.size
        if steps is not None:
            read.steps = <const intp_t*> cnp.PyArray_DATA(<cnp.ndarray?> steps)
        read.outs = <char**> calloc(1 + len(ring.columns), sizeof(char*))
        read.blocks = <Block*> calloc(1 + len(ring.columns), sizeof(Block))
        if read.outs == NULL or read.blocks == NULL:
            free(read.outs)
            free(read.blocks)
            raise MemoryError("no memory left to gather rows")
        for k in range(len(arrays)):
            read.outs[(<Column> columns[k]).place] = <char*> cnp.PyArray_DATA(
                <cnp.ndarray> arrays[k]
            )
        if n * ring.row_nbytes < UNLOCKED_NBYTES:
            self.c_read(&read, n)
        else:
            with nogil:
                self.c_read(&read, n)
        free(read.outs)
        free(read.blocks)
        return 0

    cdef void c_read(self, Read* read, intp_t n) noexcept nogil:
        """Chunk by chunk, so that records stay in the first cache while their columns are read."""
        cdef Walk walk = c_walk_of(self.ring)
        cdef intp_t[CHUNK] lengths
        cdef intp_t start = 0, count = min(n, CHUNK), following, k, number
        cdef const intp_t* row
        cdef const intp_t* slots
        cdef const char* column
        cdef char* out
        c_fetch(self.ring, read.slots, count)
        while start < n:
            following = min(n - start - count, CHUNK)
            c_fetch(self.ring, read.slots + start + count, following)
            self.c_walk_chunk(&walk, read, start, count, lengths)
            for number in range(self.ring.table.shape[0]):
                if number == self.lead or read.outs[number] == NULL:
                    continue
                row = &self.ring.table[number, 0]
                column = <const char*> &self.ring.arena[0] + row[OFFSET]
                out = read.outs[number] + start * row[NBYTES]
                if number >= self.ring.in_record and self.origins[number] in (OF_FIRST, OF_LAST):
                    continue
                if self.origins[number] == OF_FIRST:
                    c_gather(out, column, row[STRIDE], row[NBYTES], read.slots + start, count)
                elif self.origins[number] == OF_LAST:
                    c_gather(out, column, row[STRIDE], row[NBYTES], read.last + start, count)
                else:
                    c_sum(
                        walk, column, row[STRIDE], row[NBYTES],
                        self.origins[number] == SUM_OF_SINGLES, read.slots + start, lengths,
                        read.powers, count, out,
                    )
            if read.discount != NULL:
                for k in range(count):
                    read.discount[start + k] = <float32_t> read.powers[lengths[k]]
                    if walk.flags[read.last[start + k] * walk.stride] & TERMINATED:
                        read.discount[start + k] = 0
            start += count
            count = following
        count = 0
        for number in range(self.ring.in_record, self.ring.table.shape[0]):
            if read.outs[number] == NULL or self.origins[number] not in (OF_FIRST, OF_LAST):
                continue
            row = &self.ring.table[number, 0]
            column = <const char*> &self.ring.arena[0] + row[OFFSET]
            slots = read.slots
            if self.origins[number] == OF_LAST:
                slots = read.last
            read.blocks[count] = Block(read.outs[number], column, row[STRIDE], row[NBYTES], slots)
            count += 1
        c_gather_blocks(read.blocks, count, n)

    cdef void c_walk_chunk(
        self, const Walk* walk, const Read* read, intp_t start, intp_t n, intp_t* lengths
    ) noexcept nogil:
        """Walk through the windows of a chunk, in a loop made for what there is to sum."""
        cdef const intp_t* row
        cdef const char* column
        cdef char* out
        if self.lead < 0 or read.outs[self.lead] == NULL:
            c_walk(walk[0], read, start, n, lengths, False, False, NULL, 0, NULL)
            return
        row = &self.ring.table[self.lead, 0]
        column = <const char*> &self.ring.arena[0] + row[OFFSET]
        out = read.outs[self.lead]
        if self.origins[self.lead] == SUM_OF_SINGLES:
            c_walk(walk[0], read, start, n, lengths, True, True, column, row[STRIDE], out)
        else:
            c_walk(walk[0], read, start, n, lengths, True, False, column, row[STRIDE], out)


cdef float64_t[::1] c_powers(float64_t gamma, intp_t size):
    """The powers of gamma from 0 to ``size``."""
    return gamma ** np.arange(1.0 + size)


cdef inline float64_t c_number(const char* value, bint single) noexcept nogil:
    """The number at an address, which may be any."""
    cdef float32_t narrow
    cdef float64_t wide
    if single:
        memcpy(&narrow, value, sizeof(narrow))
        return narrow
    memcpy(&wide, value, sizeof(wide))
    return wide


cdef inline void c_put(char* to, float64_t number, bint single) noexcept nogil:
    """Write a number at an address, which may be any."""
    cdef float32_t narrow = <float32_t> number
    if single:
        memcpy(to, &narrow, sizeof(narrow))
    else:
        memcpy(to, &number, sizeof(number))


cdef inline void c_walk(
    Walk walk, const Read* read, intp_t start, intp_t n, intp_t* lengths, bint sums, bint single,
    const char* column, intp_t stride, char* out,
) noexcept nogil:
    """Find the last row of each window, and how many rows there are.

    On the way the values of a column of one number are summed, if ``sums``. Sums begin with the
    first row, whose factor is 1; that of a lone row is its value, to the last bit.
    """
    cdef const float64_t* powers = read.powers
    cdef intp_t k, slot, following, count, newer, most = read.most, nbytes = 4 if single else 8
    cdef float64_t total = 0.0
    for k in range(start, start + n):
        slot = read.slots[k]
        newer = c_newer(&walk, slot)
        if read.steps != NULL:
            most = read.steps[k]
        if sums:
            total = c_number(column + slot * stride, single)
        count = 1
        while count < most and not walk.flags[slot * walk.stride] & END:
            following = c_step(&walk, slot, &newer)
            if following < 0:
                break
            slot = following
            if sums and powers[count] != 0.0:  # otherwise infinite rewards would make it NaN
                total += powers[count] * c_number(column + slot * stride, single)
            count += 1
        read.last[k] = slot
        lengths[k - start] = count
        if sums and count == 1:
            memcpy(out + k * nbytes, column + slot * stride, nbytes)
        elif sums:
            c_put(out + k * nbytes, total, single)


cdef void c_sum(
    Walk walk, const char* column, intp_t stride, intp_t nbytes, bint single,
    const intp_t* slots, const intp_t* lengths, const float64_t* powers, intp_t n, char* out,
) noexcept nogil:
    """Sum the values of a column over windows that were walked; see ``c_walk``."""
    cdef intp_t k, i, slot, item, newer, size = 4 if single else 8
    cdef float64_t total
    cdef const char* value
    for k in range(n):
        if lengths[k] == 1:
            memcpy(out + k * nbytes, column + slots[k] * stride, nbytes)
            continue
        for item in range(nbytes // size):
            value = column + item * size
            slot = slots[k]
            newer = c_newer(&walk, slot)
            total = c_number(value + slot * stride, single)
            for i in range(1, lengths[k]):
                slot = c_step(&walk, slot, &newer)
                if slot < 0:  # rows were made absent meanwhile
                    break
                if powers[i] != 0.0:
                    total += powers[i] * c_number(value + slot * stride, single)
            c_put(out + k * nbytes + item * size, total, single)
