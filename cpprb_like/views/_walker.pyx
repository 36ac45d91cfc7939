"""``Walker``: walks the windows of a batch once. A window is the rows around a row in its episode.

The walk reads values of the first and last rows, and discounted sums. Compiled because it visits every
row of every window. Not here: the use of windows (the layers), steps along a stream (``_core``), and
sums of unusual dtypes (``_rows``).
"""

cimport cython
cimport numpy as cnp
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from cpprb_like._machine.aligned cimport c_numbers
from cpprb_like._rows.chained cimport Chain
from cpprb_like._rows.column cimport Column
from cpprb_like._machine.blocks cimport Block, c_gather_blocks
from cpprb_like._c.arrays cimport c_check_array
from cpprb_like._c.copying cimport FETCHED, FETCHED_STEPS, UNLOCKED_NBYTES, c_gather_at
from cpprb_like._core cimport NBYTES, OFFSET, STRIDE, Ring, c_walk_of
from cpprb_like._rows.walk cimport (
    TERMINATED, Cursor, Firsts, Walk, c_cursor, c_forward_in_episode, c_repeat, c_rows_before,
)
from cpprb_like._rows.gather cimport c_check_arrays, c_check_steps, c_new_array, c_take_chain
from cpprb_like._rows.rings cimport Rings, Span, c_fetch_records
from cpprb_like._c.typedefs cimport float32_t, float64_t, intp_t, uint8_t

import numpy as np

cnp.import_array()


cdef struct Read:                # state while one batch is read
    char** outs                  # by ``place`` of the column; NULL of columns that are not read
    const intp_t* slots          # the rows; of several rings their numbers
    const char** records         # address of the record of each row
    const intp_t* steps          # most rows of each n-step return; NULL: ``most`` of each
    intp_t most
    intp_t before                # most rows before each row
    intp_t after                 # most rows behind each row
    bint is_whole                # ``windows`` has room for all rows, not for one chunk
    intp_t* windows              # matrix of slots with before + 1 + after columns
    intp_t* counts               # rows before and behind each row; NULL unless ``is_whole``
    intp_t* lengths              # rows of each n-step return
    intp_t* last                 # slot of the last row of each n-step return
    const float64_t* powers      # powers of gamma
    float32_t* discount          # NULL if there is no such column
    Block* blocks                # room for one block of each column
    Walk* walks                  # of each ring, by number
    const Span* spans            # of each ring, by number
    int bits                     # low bits of a row that hold the number of its ring
    intp_t mask                  # mask of these bits


cdef struct Summed:              # the column that a chunk of n-step returns sums
    intp_t offset                # of the value in slot 0
    intp_t stride                # bytes from slot to slot
    char* out                    # sums of the chunk


@cython.final
cdef class Walker:
    """Walks the windows of drawn rows, and reads batches of them.

    ``summed`` is the stored column of one float that is summed over n-step returns of at most
    ``size`` rows. Columns of ``last_fields`` are of the last row, all others of the drawn row.
    A window has at most ``before`` rows before its row, and ``after`` or ``size - 1`` behind it.
    ``discount_shape`` is that of a row of the column ``discount``, None for no such column. With
    ``Rings`` rows and windows are numbers of rows, not slots.
    """

    cdef Ring ring               # or the layout of ``rings``
    cdef Rings rings             # several of them, or None
    cdef intp_t size             # most rows of an n-step return
    cdef intp_t before           # rows before each row that are walked
    cdef intp_t after            # rows behind each row that are walked, at least size - 1
    cdef intp_t least_after      # rows behind each row that are walked for any n
    cdef bint gives_windows
    cdef bint keeps              # whether slots of windows are written
    cdef float64_t[::1] powers   # powers of gamma, from 0 to ``size``
    cdef frozenset last_fields   # names of columns that are read from the last row
    cdef uint8_t[::1] of_last    # the same by ``place`` of the column
    cdef intp_t lead             # ``place`` of the summed column, or -1
    cdef bint is_single          # whether numbers of that column have 4 bytes, not 8
    cdef int discount_ndim       # 0 if there is no such column

    def __cinit__(
        self, ring not None, *, intp_t size, gamma, Column summed, frozenset last_fields,
        discount_shape, intp_t before, intp_t after, bint gives_windows,
    ):
        cdef Column column
        self.rings = None if type(ring) is Ring else <Rings?> ring
        self.ring = <Ring> ring if self.rings is None else self.rings.layout
        self.size = size
        self.before = before
        self.after = max(after, size - 1)
        self.least_after = after
        self.gives_windows = gives_windows
        self.powers = c_powers(gamma, size)
        self.last_fields = last_fields
        self.discount_ndim = 0 if discount_shape is None else 1 + len(discount_shape)
        self.of_last = np.zeros(len(self.ring.columns), np.uint8)
        for column in self.ring.stored_columns:
            self.of_last[column.place] = column.name in last_fields
        self.lead = -1 if summed is None else summed.place
        self.is_single = summed is not None and summed.nbytes == 4
        self.keeps = gives_windows or self.lead < 0

    def take(
        self, cnp.ndarray slots not None, list arrays=None, steps=None, tuple columns=None,
    ):
        """A batch of the rows in the given slots, and their windows.

        ``arrays`` are the caller's, one for each of ``columns``. ``steps`` are the most rows of each
        n-step return, 1 to ``size``. Returns the batch; slots of windows, shape
        (n, before + 1 + after), where the first and last row of the episode are repeated, or None; the
        rows before and behind each, shape (n, 2), or None; and the rows of each n-step return.
        """
        c_check_array(slots, "slots", cnp.NPY_INTP, -1)
        cdef cnp.ndarray windows = None, counts = None
        cdef intp_t[2] dims
        dims[0], dims[1] = cnp.PyArray_DIM(slots, 0), 2
        cdef cnp.ndarray lengths = c_numbers(1, dims, cnp.NPY_INTP)
        if self.gives_windows:
            counts = c_numbers(2, dims, cnp.NPY_INTP)
            dims[1] = self.before + 1 + self.after
            windows = c_numbers(2, dims, cnp.NPY_INTP)
        batch = self.c_take(slots, arrays, steps, columns, windows, counts, lengths)
        return batch, windows, counts, lengths

    def read(self, cnp.ndarray slots not None, list arrays=None, steps=None, tuple columns=None):
        """The batch of ``take`` alone."""
        c_check_array(slots, "slots", cnp.NPY_INTP, -1)
        return self.c_take(slots, arrays, steps, columns, None, None, None)

    cdef dict c_take(
        self, cnp.ndarray slots, list arrays, steps, tuple columns, cnp.ndarray windows,
        cnp.ndarray counts, cnp.ndarray lengths,
    ):
        """The batch of ``take``, whose further results go to arrays if they are given."""
        cdef Ring ring = self.ring
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
        cdef cnp.ndarray discount = None, last = None
        cdef intp_t[2] dims
        dims[0], dims[1] = n, 1
        if self.discount_ndim:
            discount = c_numbers(self.discount_ndim, dims, cnp.NPY_FLOAT32)
        if ring.chains:
            last = c_numbers(1, dims, cnp.NPY_INTP)
        self.c_walk_windows(slots, columns, arrays, last, lengths, windows, counts, discount, steps)
        if ring.object_columns:
            for column, array in zip(columns, arrays):
                if column.objects is not None:
                    array[...] = column.objects[slots]  # ``_fields.derived`` refuses objects among ``last_fields``
        cdef dict batch = {}
        for k in range(len(arrays)):
            batch[(<Column> columns[k]).name] = arrays[k]
        cdef Chain chain
        cdef cnp.ndarray rows
        for chain in ring.chains:
            if chain.name in batch:
                rows = last if chain.name in self.last_fields else slots
                if self.rings is None:
                    c_take_chain(ring, chain, rows, batch[chain.name])
                else:
                    self.rings.take_chain(chain, rows, batch[chain.name])
        if discount is not None:
            batch["discount"] = discount
        return batch

    cdef int c_walk_windows(
        self, cnp.ndarray slots, tuple columns, list arrays, cnp.ndarray last, cnp.ndarray lengths,
        cnp.ndarray windows, cnp.ndarray counts, cnp.ndarray discount, steps
    ) except -1:
        """Check the rows, walk their windows, and read the columns that lie in the arena.

        Arrays of None are not needed: ``last``, ``lengths``, ``windows`` with ``counts``, ``discount``.
        """
        cdef Ring ring = self.ring
        cdef Read read
        cdef Span span
        cdef Walk walk
        cdef intp_t* scratch = NULL
        cdef intp_t k, n = cnp.PyArray_DIM(slots, 0), several = 0, width = 0
        read.slots = <const intp_t*> cnp.PyArray_DATA(slots)
        read.discount = NULL
        if discount is not None:
            read.discount = <float32_t*> cnp.PyArray_DATA(discount)
        read.powers = &self.powers[0]
        read.most, read.before, read.after = self.size, self.before, self.after
        read.steps = NULL
        if steps is not None:
            read.steps = <const intp_t*> cnp.PyArray_DATA(<cnp.ndarray?> steps)
        read.is_whole = windows is not None
        if not read.is_whole:
            width = self.before + 1 + self.after
        scratch = <intp_t*> malloc((2 * n + min(n, FETCHED) * width) * sizeof(intp_t) + 1)
        read.last, read.lengths, read.windows, read.counts = scratch, scratch + n, scratch + 2 * n, NULL
        if last is not None:
            read.last = <intp_t*> cnp.PyArray_DATA(last)
        if lengths is not None:
            read.lengths = <intp_t*> cnp.PyArray_DATA(lengths)
        if read.is_whole:
            read.windows = <intp_t*> cnp.PyArray_DATA(windows)
            read.counts = <intp_t*> cnp.PyArray_DATA(counts)
        if self.rings is not None:
            several = self.rings.mask + 1
        read.outs = <char**> calloc(1 + len(ring.columns), sizeof(char*))
        read.blocks = <Block*> calloc(1 + len(ring.columns), sizeof(Block))
        read.records = <const char**> malloc((1 + n) * sizeof(char*) + several * sizeof(Walk))
        try:
            if (
                scratch == NULL or read.outs == NULL or read.blocks == NULL
                or read.records == NULL
            ):
                raise MemoryError("no memory left to gather rows")
            for k in range(len(arrays)):
                read.outs[(<Column> columns[k]).place] = <char*> cnp.PyArray_DATA(
                    <cnp.ndarray> arrays[k]
                )
            if several:
                self.rings.c_check_rows(slots, read.records)
                read.walks = <Walk*> (read.records + n)
                self.c_read_several(&read, n)
            else:
                ring.c_check_slots(slots)
                span.base, walk = <const char*> &ring.arena[0], c_walk_of(ring)
                read.spans, read.walks, read.bits, read.mask = &span, &walk, 0, 0
                for k in range(n):
                    read.records[k] = span.base + read.slots[k] * ring.record_stride
                self.c_read(ring, &read, n)
        finally:
            free(scratch)
            free(read.outs)
            free(read.blocks)
            free(read.records)
        return 0

    cdef int c_read_several(self, Read* read, intp_t n) except -1:
        """Read rows of several rings that were checked."""
        cdef Rings rings = self.rings
        cdef Ring ring = rings.c_any()
        cdef intp_t number, place
        read.spans, read.bits, read.mask = rings.spans, rings.bits, rings.mask
        for number in range(rings.width):
            if rings.spans[number].is_used:
                read.walks[number] = c_walk_of(rings.c_ring(number))
        self.c_read(ring, read, n)
        for place in range(ring.in_record, ring.table.shape[0]):
            if place != self.lead and read.outs[place] != NULL:
                rings.c_fill_block(
                    ring, read.outs[place], read.records, place,
                    c_rows_of(read, self.of_last[place]), n,
                )
        return 0

    cdef int c_read(self, Ring ring, Read* read, intp_t n) except -1:
        """Read rows; of several rings without the columns in blocks."""
        if n * ring.row_nbytes < UNLOCKED_NBYTES:
            self.c_read_chunks(ring, read, n)
        else:
            with nogil:
                self.c_read_chunks(ring, read, n)
        return 0

    cdef void c_read_chunks(self, Ring ring, Read* read, intp_t n) noexcept nogil:
        """Read chunk by chunk, so that records stay in the first cache for all their columns."""
        cdef intp_t start = 0, count = min(n, FETCHED), following, place
        cdef intp_t ahead = min(self.before, FETCHED_STEPS), rows = min(1 + self.after, FETCHED_STEPS)
        cdef const intp_t* row
        cdef const char* lasts[FETCHED]
        c_fetch_windows(ring, read.records, count, ahead, rows)
        while start < n:
            following = min(n - start - count, FETCHED)
            c_fetch_windows(ring, read.records + start + count, following, ahead, rows)
            self.c_walk_chunk(ring, read, start, count, lasts)
            for place in range(ring.in_record):
                if place == self.lead or read.outs[place] == NULL:
                    continue
                row = &ring.table[place, 0]
                c_gather_at(
                    read.outs[place] + start * row[NBYTES],
                    &lasts[0] if self.of_last[place] else read.records + start,
                    row[OFFSET], row[NBYTES], count,
                )
            if read.discount != NULL:
                c_find_discounts(read, start, count)
            start += count
            count = following
        if self.rings is None:
            self.c_read_blocks(ring, read, n)

    cdef void c_read_blocks(self, Ring ring, Read* read, intp_t n) noexcept nogil:
        """Read the columns of a single ring that lie in blocks."""
        cdef intp_t place, count = 0
        cdef const intp_t* row
        for place in range(ring.in_record, ring.table.shape[0]):
            if place == self.lead or read.outs[place] == NULL:
                continue
            row = &ring.table[place, 0]
            read.blocks[count] = Block(
                read.outs[place], read.spans.base + row[OFFSET], row[STRIDE], row[NBYTES],
                c_rows_of(read, self.of_last[place]),
            )
            count += 1
        c_gather_blocks(read.blocks, count, n)

    cdef void c_walk_chunk(
        self, Ring ring, const Read* read, intp_t start, intp_t n, const char** lasts
    ) noexcept nogil:
        """Walk the windows of a chunk, in a loop that is compiled for the kind of rings and of sum."""
        cdef const intp_t* row
        cdef Summed summed = Summed(0, 0, NULL)
        if self.lead >= 0 and read.outs[self.lead] != NULL:
            row = &ring.table[self.lead, 0]
            summed = Summed(
                row[OFFSET], row[STRIDE], read.outs[self.lead] + start * row[NBYTES]
            )
        if read.mask:
            c_walk_kind(self, ring, read, True, start, n, summed, lasts)
        else:
            c_walk_kind(self, ring, read, False, start, n, summed, lasts)


cdef float64_t[::1] c_powers(float64_t gamma, intp_t size):
    """The powers of gamma from 0 to ``size``."""
    return gamma ** np.arange(1.0 + size)


cdef inline float64_t c_get_number(const char* value, bint single) noexcept nogil:
    """Read a number at an address of any alignment."""
    cdef float32_t narrow
    cdef float64_t wide
    if single:
        memcpy(&narrow, value, sizeof(narrow))
        return narrow
    memcpy(&wide, value, sizeof(wide))
    return wide


cdef inline void c_put_number(char* to, float64_t number, bint single) noexcept nogil:
    """Write a number at an address of any alignment."""
    cdef float32_t narrow = <float32_t> number
    if single:
        memcpy(to, &narrow, sizeof(narrow))
    else:
        memcpy(to, &number, sizeof(number))


cdef inline const intp_t* c_rows_of(const Read* read, bint last) noexcept nogil:
    """The drawn rows, or the last rows of n-step returns."""
    if last:
        return read.last
    return read.slots


cdef inline void c_fetch_windows(
    Ring ring, const char** records, intp_t n, intp_t ahead, intp_t rows
) noexcept nogil:
    """Prefetch records: of ``ahead`` rows before each of n, and of ``rows`` rows from there on."""
    cdef intp_t i, size = ring.record_stride
    if ring.n_envs == 1:
        c_fetch_records(records, ring.record_offset - ahead * size, size * (ahead + rows), n)
        return
    for i in range(-ahead, rows):
        c_fetch_records(records, ring.record_offset + i * ring.n_envs * size, size, n)


cdef inline void c_find_discounts(const Read* read, intp_t start, intp_t n) noexcept nogil:
    """Write the discounts of a chunk of n-step returns."""
    cdef float32_t* discount = read.discount + start
    cdef const intp_t* lengths = read.lengths + start
    cdef const intp_t* last = read.last + start
    cdef const float64_t* powers = read.powers
    cdef const Walk* walks = read.walks  # of each ring of the batch
    cdef intp_t k, mask = read.mask, stride = walks[last[0] & mask].stride  # the same of all rings
    cdef int bits = read.bits
    cdef float32_t[2] found
    found[1] = 0.0
    for k in range(n):
        found[0] = <float32_t> powers[lengths[k]]
        discount[k] = found[
            (walks[last[k] & mask].flags[(last[k] >> bits) * stride] & TERMINATED) != 0
        ]


cdef inline void c_walk_kind(
    Walker walker, Ring ring, const Read* read, bint several, intp_t start, intp_t n, Summed summed,
    const char** lasts,
) noexcept nogil:
    """``c_walk`` of the kind of sum of a walker."""
    cdef bint single = walker.is_single, keeps = walker.keeps
    cdef intp_t after = walker.least_after, size = ring.record_stride
    if summed.out == NULL:
        c_walk(read, several, True, False, False, after, size, start, n, summed, lasts)
    elif single and not keeps:
        c_walk(read, several, False, True, True, after, size, start, n, summed, lasts)
    else:
        c_walk(read, several, keeps, True, single, after, size, start, n, summed, lasts)


cdef inline void c_walk(
    const Read* read, bint several, bint keeps, bint sums, bint single, intp_t least_after,
    intp_t record_stride, intp_t start, intp_t n, Summed summed, const char** lasts,
) noexcept nogil:
    """Walk the windows of a chunk: their slots if ``keeps``, and the last rows of n-step returns.

    With ``sums`` the values of a column of one number are summed. Without ``keeps`` a window is the
    n-step return, and only ``lengths``, ``last`` and ``lasts``, the records of the last rows, are
    written.
    """
    cdef Firsts by_flags = Firsts(NULL, 0)
    cdef Walk one = read.walks[0]
    cdef const Walk* walk = &one
    cdef const char* base = read.spans.base
    cdef const char* column = base + summed.offset
    cdef intp_t mask = read.mask
    cdef int bits = read.bits if several else 0
    cdef const intp_t* slots = read.slots + start
    cdef const intp_t* steps = NULL if read.steps == NULL else read.steps + start
    cdef intp_t* counts = NULL if read.counts == NULL else read.counts + 2 * start
    cdef intp_t* lengths = read.lengths + start
    cdef intp_t* last = read.last + start
    cdef const float64_t* powers = read.powers
    cdef intp_t ahead = read.before, behind = read.after, width = ahead + 1 + behind
    cdef intp_t k, slot, before = 0, count, length, most = read.most, after = behind
    cdef intp_t nbytes = 4 if single else 8, number = 0
    cdef intp_t* out = read.windows + start * width * read.is_whole + ahead
    cdef float64_t total = 0.0
    cdef Cursor at
    for k in range(n):
        slot = slots[k]
        if several:
            number = slot & mask
            slot, base = slot >> bits, read.spans[number].base
            column = base + summed.offset
            one = read.walks[number]  # a copy, which no store in the loop can change
        at = c_cursor(walk, slot)
        if keeps:
            out[0] = slots[k]
            before = c_rows_before(walk, at, ahead, by_flags, out, bits, number)
        if steps != NULL:
            most = steps[k]
            after = max(least_after, most - 1)
        if sums:
            total = c_get_number(column + slot * summed.stride, single)
        count = 0
        while count < after and c_forward_in_episode(walk, &at, by_flags):
            slot = at.slot
            count += 1
            if keeps:
                out[count] = slot << bits | number
            # A power of 0.0 is skipped, as an infinite reward times 0.0 is NaN.
            if sums and (not keeps or count < most) and powers[count] != 0.0:
                total += powers[count] * c_get_number(column + slot * summed.stride, single)
        length = 1 + count
        if keeps and length > most:
            length = most
            slot = out[length - 1] >> bits
        lengths[k] = length
        last[k] = slot << bits | number
        lasts[k] = base + slot * record_stride
        if sums and length == 1:  # the same bits, also of NaN
            memcpy(summed.out + k * nbytes, column + slot * summed.stride, nbytes)
        elif sums:
            c_put_number(summed.out + k * nbytes, total, single)
        if keeps and counts != NULL:
            counts[2 * k], counts[2 * k + 1] = before, count
            c_repeat(out, -ahead, -before, out[-before])
            c_repeat(out, count + 1, behind + 1, out[count])
        out += width
