"""``Walker``: walks the windows of a batch, the rows around each drawn row in its episode, once.

Values that a batch takes from the windows are read on the way: those of the first and last row, and
discounted sums. Compiled because it visits every row of every window. Not here: what the windows
are for (the layers), steps along a stream (``_core``), and sums of unusual dtypes (``_rows``).
"""

cimport cython
cimport numpy as cnp
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from cpprb_like._machine.aligned cimport c_numbers
from cpprb_like._rows.chained cimport Chain
from cpprb_like._rows.column cimport Column
from cpprb_like._machine.blocks cimport Block, c_gather_blocks
from cpprb_like._c.copying cimport c_gather
from cpprb_like._core cimport (
    NBYTES, OFFSET, STRIDE, TERMINATED, Cursor, Firsts, Ring, Walk,
    c_cursor, c_fetch, c_forward_in_episode, c_repeat, c_rows_before, c_walk_of,
)
from cpprb_like._rows.gather cimport c_check_arrays, c_check_steps, c_new_array, c_take_chain
from cpprb_like._c.typedefs cimport float32_t, float64_t, intp_t

import numpy as np

cnp.import_array()

cdef enum:
    CHUNK = 64                   # windows whose records are fetched before the first is walked
    UNLOCKED_NBYTES = 32768      # smaller batches keep the interpreter lock

cdef enum:  # what a batch holds of a column
    OF_FIRST = 0                 # the value of the drawn row
    OF_LAST = 1                  # the value of the last row of its n-step return
    SUM_OF_SINGLES = 2           # the discounted sum over the rows of its n-step return
    SUM_OF_DOUBLES = 3


def can_sum(Column column not None):
    """Whether ``Walker`` sums this column, if it is stored as it is: floats of 4 or 8 bytes."""
    return column.dtype.char in "fd"


@cython.final
cdef class Walker:
    """Walks the windows of drawn rows, and reads batches of them.

    Parameters
    ----------
    ring : Ring
        The rows.
    size : int
        The most rows of an n-step return.
    gamma : float
        Discount factor.
    sums, last_fields : frozenset of str
        Names of the stored columns that are summed over an n-step return, which ``can_sum``, and of
        the columns that are of its last row. All others are of the drawn row.
    discount_shape : tuple of int, optional
        Of a row of the column ``discount``: () or (1,). Without it there is no such column.
    before, after : int
        Rows before and behind each drawn row that a window has, at most. Windows have at least
        the ``size`` rows of an n-step return.
    gives_windows : bool
        Whether ``take`` returns the windows.
    """

    def __cinit__(
        self, Ring ring not None, *, intp_t size, gamma, frozenset sums, frozenset last_fields,
        discount_shape, intp_t before, intp_t after, bint gives_windows,
    ):
        cdef Column column
        cdef intp_t summed = 0
        self.ring = ring
        self.size = size
        self.before = before
        self.after = max(after, size - 1)
        self.least_after = after
        self.gives_windows = gives_windows
        self.powers = c_powers(gamma, size)
        self.last_fields = last_fields
        self.discount_ndim = 0 if discount_shape is None else 1 + len(discount_shape)
        self.origins = np.zeros(len(ring.columns), np.uint8)
        self.lead = -1
        for column in ring.stored_columns:
            if column.name in sums:
                self.origins[column.place] = (
                    SUM_OF_SINGLES if column.dtype.itemsize == 4 else SUM_OF_DOUBLES
                )
                summed += 1
                if column.nbytes == column.dtype.itemsize:
                    self.lead = column.place  # the last such column, if there are more
            elif column.name in last_fields:
                self.origins[column.place] = OF_LAST
        self.keeps = gives_windows or self.lead < 0 or summed > 1

    def take(
        self, cnp.ndarray slots not None, list arrays=None, steps=None, tuple columns=None,
    ):
        """A batch of the rows in the given slots, and their windows.

        Parameters
        ----------
        slots : ndarray of intp, shape (n,)
            Slots in use, dense.
        arrays : list of ndarray, optional
            The caller's, one for each column, of the right size, dense and writeable.
        steps : ndarray of intp, shape (n,), optional
            The most rows of each n-step return, 1 to ``size``, in place of ``size``.
        columns : tuple of Column, optional
            Columns of the ring to read; all.

        Returns
        -------
        batch : dict of ndarray
        windows : ndarray of intp, shape (n, before + 1 + after), or None
            Slots, oldest first. Outside of the episode the first and the last row are repeated.
        counts : ndarray of intp, shape (n, 2), or None
            Rows of each window before the drawn row, and behind it.
        lengths : ndarray of intp, shape (n,)
            Rows of each n-step return.

        Notes
        -----
        Raises ``TypeError`` and ``IndexError`` as ``gather.take`` does, ``ValueError`` for other
        steps.
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
        cdef cnp.ndarray lengths = c_numbers(1, &n, cnp.NPY_INTP)
        cdef cnp.ndarray discount = self.c_new_discount(n)
        cdef cnp.ndarray windows = None, counts = None
        cdef intp_t[2] dims
        dims[0], dims[1] = n, 2
        if self.gives_windows:
            counts = c_numbers(2, dims, cnp.NPY_INTP)
            dims[1] = self.before + 1 + self.after
            windows = c_numbers(2, dims, cnp.NPY_INTP)
        self.c_fill(slots, columns, arrays, last, lengths, windows, counts, discount, steps)
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
                    ring, chain, last if chain.name in self.last_fields else slots, batch[chain.name]
                )
        if discount is not None:
            batch["discount"] = discount
        return batch, windows, counts, lengths

    cdef cnp.ndarray c_new_discount(self, intp_t n):
        cdef intp_t[2] dims
        dims[0], dims[1] = n, 1
        if self.discount_ndim == 0:
            return None
        return c_numbers(self.discount_ndim, dims, cnp.NPY_FLOAT32)

    cdef int c_fill(
        self, cnp.ndarray slots, tuple columns, list arrays, cnp.ndarray last, cnp.ndarray lengths,
        cnp.ndarray windows, cnp.ndarray counts, cnp.ndarray discount, steps
    ) except -1:
        """Walk the windows, and read what lies in the arena."""
        cdef Ring ring = self.ring
        cdef Read read
        cdef intp_t* scratch = NULL
        cdef intp_t k, n = cnp.PyArray_DIM(slots, 0)
        read.slots = <const intp_t*> cnp.PyArray_DATA(slots)
        read.last = <intp_t*> cnp.PyArray_DATA(last)
        read.lengths = <intp_t*> cnp.PyArray_DATA(lengths)
        read.discount = NULL
        if discount is not None:
            read.discount = <float32_t*> cnp.PyArray_DATA(discount)
        read.powers = &self.powers[0]
        read.most, read.before, read.after = self.size, self.before, self.after
        read.steps = NULL
        if steps is not None:
            read.steps = <const intp_t*> cnp.PyArray_DATA(<cnp.ndarray?> steps)
        read.is_whole = windows is not None
        if read.is_whole:
            read.windows = <intp_t*> cnp.PyArray_DATA(windows)
            read.counts = <intp_t*> cnp.PyArray_DATA(counts)
        else:
            scratch = <intp_t*> malloc(
                min(n, CHUNK) * (self.before + 1 + self.after) * sizeof(intp_t) + 1
            )
            read.windows, read.counts = scratch, NULL
        read.outs = <char**> calloc(1 + len(ring.columns), sizeof(char*))
        read.blocks = <Block*> calloc(1 + len(ring.columns), sizeof(Block))
        if read.windows == NULL or read.outs == NULL or read.blocks == NULL:
            free(scratch)
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
        free(scratch)
        free(read.outs)
        free(read.blocks)
        return 0

    cdef void c_read(self, Read* read, intp_t n) noexcept nogil:
        """Chunk by chunk, so that records stay in the first cache while their columns are read."""
        cdef Walk walk = c_walk_of(self.ring)
        cdef intp_t start = 0, count = min(n, CHUNK), following, k, number
        cdef intp_t width = read.before + 1 + read.after
        cdef intp_t* windows
        cdef const intp_t* row
        cdef const intp_t* slots
        cdef const char* column
        cdef char* out
        c_fetch(self.ring, read.slots, count)
        while start < n:
            following = min(n - start - count, CHUNK)
            c_fetch(self.ring, read.slots + start + count, following)
            windows = read.windows + start * width * read.is_whole
            self.c_walk_chunk(walk, read, start, count, windows)
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
                elif self.origins[number] == SUM_OF_SINGLES:
                    c_sum(
                        windows + read.before, width, read.lengths + start, read.powers, column,
                        row[STRIDE], row[NBYTES], True, count, out,
                    )
                else:
                    c_sum(
                        windows + read.before, width, read.lengths + start, read.powers, column,
                        row[STRIDE], row[NBYTES], False, count, out,
                    )
            if read.discount != NULL:
                for k in range(start, start + count):
                    read.discount[k] = <float32_t> read.powers[read.lengths[k]]
                    if walk.flags[read.last[k] * walk.stride] & TERMINATED:
                        read.discount[k] = 0
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
        self, Walk walk, const Read* read, intp_t start, intp_t n, intp_t* windows
    ) noexcept nogil:
        """Walk the windows of a chunk, in a loop made for what there is to sum on the way."""
        cdef intp_t after = self.least_after
        cdef bint single = self.lead >= 0 and self.origins[self.lead] == SUM_OF_SINGLES
        cdef bint sums = self.lead >= 0 and read.outs[self.lead] != NULL
        cdef intp_t stride = 0
        cdef const intp_t* row
        cdef const char* column = NULL
        cdef char* out = NULL
        if sums:
            row = &self.ring.table[self.lead, 0]
            column, stride = <const char*> &self.ring.arena[0] + row[OFFSET], row[STRIDE]
            out = read.outs[self.lead] + start * row[NBYTES]
        if sums and single and not self.keeps:
            c_walk(walk, read, after, start, n, windows, False, True, True, column, stride, out)
        elif sums and not self.keeps:
            c_walk(walk, read, after, start, n, windows, False, True, False, column, stride, out)
        elif sums and single:
            c_walk(walk, read, after, start, n, windows, True, True, True, column, stride, out)
        elif sums:
            c_walk(walk, read, after, start, n, windows, True, True, False, column, stride, out)
        else:
            c_walk(walk, read, after, start, n, windows, True, False, False, column, stride, out)


cdef float64_t[::1] c_powers(float64_t gamma, intp_t size):
    """The powers of gamma from 0 to ``size``."""
    return gamma ** np.arange(1.0 + size)


cdef inline float64_t c_number(const char* value, bint single) noexcept nogil:
    """Read a number at an address of any alignment."""
    cdef float32_t narrow
    cdef float64_t wide
    if single:
        memcpy(&narrow, value, sizeof(narrow))
        return narrow
    memcpy(&wide, value, sizeof(wide))
    return wide


cdef inline void c_put(char* to, float64_t number, bint single) noexcept nogil:
    """Write a number at an address of any alignment."""
    cdef float32_t narrow = <float32_t> number
    if single:
        memcpy(to, &narrow, sizeof(narrow))
    else:
        memcpy(to, &number, sizeof(number))


cdef inline void c_walk(
    Walk walk, const Read* read, intp_t least_after, intp_t start, intp_t n, intp_t* windows,
    bint keeps, bint sums, bint single, const char* column, intp_t stride, char* to,
) noexcept nogil:
    """Walk the windows of a chunk: their slots if ``keeps``, and the last rows of n-step returns.

    On the way the values of a column of one number are summed, if ``sums``. Without ``keeps`` a
    window is the n-step return, and ``lengths`` and ``last`` alone are written.
    """
    cdef Firsts by_flags = Firsts(NULL, 0)
    cdef const intp_t* slots = read.slots + start
    cdef const intp_t* steps = NULL if read.steps == NULL else read.steps + start
    cdef intp_t* counts = NULL if read.counts == NULL else read.counts + 2 * start
    cdef intp_t* lengths = read.lengths + start
    cdef intp_t* last = read.last + start
    cdef const float64_t* powers = read.powers
    cdef intp_t ahead = read.before, behind = read.after, width = ahead + 1 + behind
    cdef intp_t k, slot, before = 0, count, length, most = read.most, after = behind
    cdef intp_t nbytes = 4 if single else 8
    cdef intp_t* out = windows + ahead
    cdef float64_t total = 0.0
    cdef Cursor at
    for k in range(n):
        slot = slots[k]
        at = c_cursor(&walk, slot)
        if keeps:
            out[0] = slot
            before = c_rows_before(&walk, at, ahead, by_flags, out)
        if steps != NULL:
            most = steps[k]
            after = max(least_after, most - 1)
        if sums:
            total = c_number(column + slot * stride, single)
        count = 0
        while count < after and c_forward_in_episode(&walk, &at, by_flags):
            slot = at.slot
            count += 1
            if keeps:
                out[count] = slot
            # The power: infinite rewards times 0 would make the sum NaN.
            if sums and (not keeps or count < most) and powers[count] != 0.0:
                total += powers[count] * c_number(column + slot * stride, single)
        length = 1 + count
        if keeps and length > most:
            length = most
            slot = out[length - 1]
        lengths[k] = length
        last[k] = slot
        if sums and length == 1:  # its value, to the last bit
            memcpy(to + k * nbytes, column + slot * stride, nbytes)
        elif sums:
            c_put(to + k * nbytes, total, single)
        if keeps and counts != NULL:
            counts[2 * k], counts[2 * k + 1] = before, count
            c_repeat(out, -ahead, -before, out[-before])
            c_repeat(out, count + 1, behind + 1, out[count])
        out += width


cdef inline void c_sum(
    const intp_t* windows, intp_t width, const intp_t* lengths, const float64_t* powers,
    const char* column, intp_t stride, intp_t nbytes, bint single, intp_t n, char* out,
) noexcept nogil:
    """Discounted sums of a column over n-step returns.

    A sum begins with the first row, whose factor is 1; that of a lone row is its value, to the last
    bit.
    """
    cdef intp_t k, i, item, length, size = 4 if single else 8, items = nbytes // size
    cdef float64_t total
    cdef const char* value
    for k in range(n):
        length = lengths[k]
        if length == 1:
            memcpy(out, column + windows[0] * stride, nbytes)
        else:
            for item in range(items):
                value = column + item * size
                total = c_number(value + windows[0] * stride, single)
                for i in range(1, length):
                    if powers[i] != 0.0:  # otherwise infinite rewards would make it NaN
                        total += powers[i] * c_number(value + windows[i] * stride, single)
                c_put(out + item * size, total, single)
        windows += width
        out += nbytes
