"""Copies of several rows for each item of a batch: frame stacks, sequences and rows at offsets.

The rows of a sequence lie at even distances in memory, except at the end of the ring and around
absent rows. Runs of rows are copied field by field, while the rows of the next sequence are
prefetched. Compiled because these copies are most of the cost of a batch of windows. Not here: which
rows are in a window (``_walker``, ``samplers._starts``), and stacks that are stored as single
frames (``_rows.chained``).
"""

cimport cython
cimport numpy as cnp
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from cpprb_like._machine.aligned cimport c_numbers
from cpprb_like._machine.blocks cimport Values, c_gather_values, c_share
from cpprb_like._rows.chained cimport Chain, NextOf
from cpprb_like._rows.column cimport Column
from cpprb_like._c.copying cimport FETCHED, UNLOCKED_NBYTES, c_copy, c_move, c_prefetch_rows
from cpprb_like._core cimport OFFSET, STRIDE, WRITTEN, Moment, Ring, c_stored, c_walk_of
from cpprb_like._rows.walk cimport ABSENT, END, Cursor, Walk, c_cursor, c_forward
from cpprb_like.samplers._starts cimport Starts
from cpprb_like._rows.gather cimport c_new_array
from cpprb_like._rows.rings cimport Rings, Span, c_find_records
from cpprb_like._c.typedefs cimport int64_t, intp_t, uint8_t

import numpy as np

cnp.import_array()

cdef enum:
    COPIED_ROWS = 128            # rows copied at a time: their records stay in the first cache

COPIED_AT_ONCE = UNLOCKED_NBYTES  # bytes below which a copy keeps the interpreter lock


cdef struct CopiedColumn:    # a column of a batch that is copied in runs
    char* to                 # rows of the batch
    const char* column       # value in slot 0
    intp_t stride            # bytes from slot to slot
    intp_t nbytes            # bytes of a row
    bint first_only          # whether only the first row of each sequence is read
    const uint8_t* apart     # of next values, by slot: not 0 if the value is stored apart
    uint8_t* aside           # of next values, by row of the batch: whether to read the chain


cdef struct SequencesCopy:   # the copy of some sequences
    CopiedColumn* parts
    intp_t n_parts
    intp_t rows              # rows of a sequence
    bint across              # whether sequences continue across the ends of episodes
    uint8_t* marks           # by row of the batch: ``mask`` or ``is_first`` of ``views.Sequences``
    int64_t* ids             # by row of the batch: row id; NULL if not needed
    Walk walk
    const char* records      # record of slot 0
    intp_t record_stride     # bytes from record to record
    const intp_t* starts     # slots of the first rows of the sequences
    const intp_t* places     # places of the sequences in the batch; NULL: all of the batch, in order


cdef struct RowInBatch:      # a row of a sequence
    Cursor at                # the row in the ring
    intp_t number            # number of the row in the batch


def take_stacks(
    ring not None, Column column not None, const intp_t[:, ::1] slots not None, intp_t axis,
    cnp.ndarray out=None,
):
    """Stacks of the values of a column, by a matrix of slots; the new axis comes before ``axis``.

    ``slots`` has the shape (n, depth); a negative slot stands for a value of zeros. The column is
    stored as plain bytes. ``out`` is a dense array of the caller's. Raises ``IndexError`` if a slot is
    not in use.
    """
    cdef Rings rings = None if type(ring) is Ring else <Rings> ring
    cdef Ring one = <Ring> ring if rings is None else rings.c_any()
    cdef intp_t k, wrong, n = slots.shape[0], depth = slots.shape[1]
    cdef intp_t outer = 1, nbytes = n * depth * column.nbytes
    cdef Span own
    if out is None:
        shape = (n, *column.shape[:axis], depth, *column.shape[axis:])
        out = c_new_array(one if rings is None else rings.layout, column, n * depth).reshape(shape)
    assert cnp.PyArray_NBYTES(out) == nbytes
    if n * depth == 0:
        return out
    for k in range(axis):
        outer *= column.dims[k]
    cdef const char** frames = <const char**> malloc(n * depth * sizeof(char*))
    cdef char* zeros = <char*> calloc(max(column.nbytes, 1), 1)
    if frames == NULL or zeros == NULL:
        free(frames)
        free(zeros)
        raise MemoryError("no memory left to stack frames")
    # From here on no Python code runs that could change the rows.
    own.base, own.stored = <const char*> &one.arena[0], c_stored(one)
    if rings is not None:
        rings.c_look()
    wrong = c_find_records(
        &own if rings is None else rings.spans, 0 if rings is None else rings.bits,
        one.table[column.place, OFFSET], one.table[column.place, STRIDE], &slots[0, 0], n * depth,
        zeros, frames,
    )
    if wrong >= 0 or nbytes == 0:
        free(frames)
        free(zeros)
        if wrong >= 0:
            row = np.asarray(slots).ravel()[wrong : wrong + 1]
            if rings is None:
                one.c_check_slots(row)
            else:
                rings.c_check_rows(row, NULL)
        return out
    cdef Values stacks = Values(
        <char*> cnp.PyArray_DATA(out), NULL, frames, depth * column.nbytes, depth, outer,
        column.nbytes // outer,
    )
    if nbytes < UNLOCKED_NBYTES:
        c_gather_values(&stacks, n, False)
    else:
        with nogil:
            c_gather_values(&stacks, n, False)
    free(frames)
    free(zeros)
    return out


def places_at(
    const intp_t[:, :] rows not None, const intp_t[:, :] counts not None, intp_t before,
    const intp_t[::1] offsets not None, const intp_t[::1] steps, bint repeats,
):
    """Slots of the rows at offsets from each row, and where an offset leads out of its window.

    ``rows``, ``counts`` and ``before`` are those of ``Windows``. Offsets count from the last of
    ``steps`` rows, or of None from the row itself. Places out of the window have its first or last
    row if ``repeats``, else -1. Both arrays have the shape (n, offsets).
    """
    cdef intp_t k, place, at, dims[2]
    dims[0], dims[1] = rows.shape[0], offsets.shape[0]
    cdef cnp.ndarray slots = c_numbers(2, dims, cnp.NPY_INTP), is_pad = c_numbers(2, dims, cnp.NPY_BOOL)
    cdef intp_t* to = <intp_t*> cnp.PyArray_DATA(slots)
    cdef uint8_t* pad = <uint8_t*> cnp.PyArray_DATA(is_pad)
    for k in range(dims[0]):
        for place in range(dims[1]):
            at = offsets[place] if steps is None else offsets[place] + steps[k] - 1
            pad[0] = at > counts[k, 1] or -at > counts[k, 0]
            to[0] = rows[k, before + at] if repeats or not pad[0] else -1
            to += 1
            pad += 1
    return slots, is_pad


def take_sequences(
    list parts not None, intp_t n, frozenset single not None, tuple columns=None, dict arrays=None,
    bint located=False,
):
    """The n sequences that start at some slots of a ring, or of several of one layout.

    ``parts`` has for each ring its ``Starts``, the slots of first rows, and the places of these
    sequences in the batch; None for all places in order. Only the first row of ``single`` columns is
    read. ``arrays`` are the caller's, by name. Returns the columns, the marks (``views.Sequences``)
    and, if ``located``, row ids of shape (n, rows); padding has the id of the last row. Returns None
    if rows were overwritten; the caller checks ``Ring.holds`` at the end.
    """
    cdef Sequences sequences = Sequences.__new__(Sequences)
    sequences.single, sequences.given = single, arrays
    sequences.columns, sequences.asides = {}, {}
    cdef Starts starts
    cdef Column column
    for starts, slots, _ in parts:
        if starts.across:
            starts.c_sync_index()
        starts.ring.c_check_slots(slots)
    sequences.c_open_sequences(<Starts> parts[0][0], columns, n, located)
    for starts, slots, places in parts:
        if not sequences.c_read_sequences(starts, slots, places):
            return None
    for column in sequences.wanted:
        if column.name not in single and column.name in sequences.unstored:
            sequences.c_clear_padding(sequences.columns[column.name])
    return sequences.columns, sequences.marks, sequences.ids if located else None


@cython.final
cdef class Sequences:
    """State of ``take_sequences``."""

    cdef Starts starts       # starts of the ring that is read
    cdef cnp.ndarray slots   # slots of the first rows in that ring
    cdef cnp.ndarray places  # places of these sequences in the batch; None: all, in order
    cdef tuple wanted        # the columns that are read
    cdef frozenset single    # names of the columns of which the first row only is read
    cdef dict given          # arrays of the caller's by name, or None
    cdef dict columns        # columns of the batch by name
    cdef cnp.ndarray marks
    cdef cnp.ndarray ids     # row id of each row of the batch; None if not needed
    cdef dict asides         # by name: which next values have to be read from the chain
    cdef set unstored        # names of columns that are not copied in runs

    cdef int c_open_sequences(self, Starts starts, tuple columns, intp_t n, bint located) except -1:
        """Allocate the arrays of a batch of n sequences; with row ids if ``located``."""
        cdef Ring ring = starts.ring
        cdef intp_t[2] lengths
        cdef Column column
        cdef Chain chain
        lengths[0], lengths[1] = n, starts.rows
        self.starts = starts
        self.wanted = ring.columns if columns is None else columns
        for column in self.wanted:
            self.columns[column.name] = self.c_new_column(column, lengths)
        self.marks = c_numbers(2, lengths, cnp.NPY_BOOL)
        if ring.chains or ring.object_columns or located:
            self.ids = c_numbers(2, lengths, cnp.NPY_INT64)
        self.unstored = {column.name for column in ring.object_columns}
        for chain in ring.chains:
            if chain.name not in self.columns:
                continue
            if c_is_beside(chain, self.single):
                self.asides[chain.name] = cnp.PyArray_EMPTY(2, lengths, cnp.NPY_BOOL, 0)
            else:
                self.unstored.add(chain.name)
        return 0

    cdef bint c_read_sequences(self, Starts starts, cnp.ndarray slots, cnp.ndarray places) except -1:
        """Read the sequences of one ring; false if rows were overwritten before chains were read."""
        cdef Ring ring = starts.ring
        cdef Moment moment = ring.c_now()
        cdef Column column
        cdef Chain chain
        self.starts, self.slots, self.places = starts, slots, places
        self.c_copy_stored()
        for column in ring.object_columns:
            if column.name in self.columns:
                self.c_copy_objects(column)
        for chain in ring.chains:
            if chain.name not in self.columns:
                continue
            if not ring.c_holds(moment, slots):  # a chain has no values of overwritten rows
                return False
            self.c_read_chain(chain)
        return True

    cdef int c_copy_stored(self) except -1:
        """Copy the columns that lie in the arena, and row ids if needed."""
        cdef Ring ring = self.starts.ring
        cdef const intp_t* slots = <const intp_t*> cnp.PyArray_DATA(self.slots)
        cdef intp_t k, n = cnp.PyArray_DIM(self.slots, 0), nbytes = 0
        cdef SequencesCopy copy
        copy.rows = self.starts.rows
        copy.across = self.starts.across
        copy.marks = <uint8_t*> cnp.PyArray_DATA(self.marks)
        copy.ids = NULL
        if self.ids is not None:
            copy.ids = <int64_t*> cnp.PyArray_DATA(self.ids)
        copy.walk = c_walk_of(ring)
        copy.records, copy.record_stride = <const char*> ring.c_record(0), ring.record_stride
        copy.starts = slots
        copy.places = NULL
        if self.places is not None:
            copy.places = <const intp_t*> cnp.PyArray_DATA(self.places)
        copy.parts = <CopiedColumn*> calloc(1 + len(ring.columns), sizeof(CopiedColumn))
        if copy.parts == NULL:
            raise MemoryError("no memory left to copy sequences")
        try:
            copy.n_parts = self.c_describe_parts(copy.parts)
            if copy.across:
                # With the interpreter lock: ``c_is_first`` reads the row before, which may be overwritten next.
                for k in range(n):
                    copy.marks[c_first_number(&copy, k)] = self.starts.c_is_first(ring.c_row_at(slots[k]))
            for k in range(copy.n_parts):
                nbytes += n * (1 if copy.parts[k].first_only else copy.rows) * copy.parts[k].nbytes
            if n * copy.rows * ring.row_nbytes < UNLOCKED_NBYTES:
                c_copy_sequences(&copy, 0, n)
            else:
                with nogil:
                    c_share(c_copy_sequences, &copy, n, nbytes)
        finally:
            free(copy.parts)
        return 0

    cdef cnp.ndarray c_new_column(self, Column column, const intp_t* lengths):
        """The array of a column: the caller's, or a new one; ``lengths`` are sequences and rows."""
        if self.given is not None:
            return self.given[column.name]
        if column.name in self.single:
            return c_new_array(self.starts.ring, column, lengths[0])
        array = c_new_array(self.starts.ring, column, lengths[0] * lengths[1])
        cdef intp_t[cnp.NPY_MAXDIMS + 2] dims
        cdef cnp.PyArray_Dims shape
        memcpy(dims, lengths, 2 * sizeof(intp_t))
        memcpy(dims + 2, column.dims, column.ndim * sizeof(intp_t))
        shape.ptr, shape.len = dims, <int> column.ndim + 2
        return cnp.PyArray_Newshape(array, &shape, cnp.NPY_CORDER)

    cdef intp_t c_describe_parts(self, CopiedColumn* parts) except -1:
        """Describe the columns that are copied in runs; returns their number."""
        cdef Ring ring = self.starts.ring
        cdef Column column
        cdef Chain chain
        cdef intp_t count = 0
        for column in ring.stored_columns:
            if column.objects is None and column.name in self.columns:
                parts[count] = c_part(ring, column, self.columns[column.name])
                parts[count].first_only = column.name in self.single
                count += 1
        for chain in ring.chains:
            if chain.name in self.asides:
                parts[count] = c_part(ring, (<NextOf> chain).column, self.columns[chain.name])
                parts[count].apart = &(<NextOf> chain).marks[0]
                parts[count].aside = <uint8_t*> cnp.PyArray_DATA(self.asides[chain.name])
                count += 1
        return count

    cdef int c_copy_objects(self, Column column) except -1:
        """Copy a column of Python objects, which only a single ring can have."""
        values = self.columns[column.name]
        if column.name in self.single:
            values[...] = column.objects[self.slots]
        else:
            values[...] = column.objects[self.ids % self.starts.ring.capacity]
        return 0

    cdef int c_read_chain(self, Chain chain) except -1:
        """Read the values of a chained field that were not copied in runs."""
        cdef cnp.ndarray values = self.columns[chain.name], ids = self.ids, found
        cdef intp_t rows = self.starts.rows
        places = self.places
        if chain.name in self.asides:  # next values that are stored apart
            aside = self.asides[chain.name]
            numbers = (aside if places is None else aside[places]).ravel().nonzero()[0]
            if len(numbers) == 0:
                return 0
            if places is not None:
                numbers += (places[numbers // rows] - numbers // rows) * rows
            ids = ids.reshape(-1)[numbers]
            places = numbers
            values = values.reshape(len(values) * rows, *(<object> values).shape[2:])
        else:
            if chain.name in self.single:
                ids = ids[:, 0]
            ids = np.ascontiguousarray(ids if places is None else ids[places])
        found = values if places is None else np.empty(
            (len(places), *(<object> values).shape[1:]), values.dtype
        )
        chain.c_gather(
            <const int64_t*> cnp.PyArray_DATA(ids), cnp.PyArray_SIZE(ids),
            self.starts.ring.state[WRITTEN], <char*> cnp.PyArray_DATA(found),
        )
        if places is not None:
            values[places] = found
        return 0

    cdef int c_clear_padding(self, values) except -1:
        """Write zeros, or ``None``, into the padding of a column."""
        if not self.starts.across:
            values[~self.marks] = None if values.dtype == object else np.zeros((), values.dtype)
        return 0


cdef CopiedColumn c_part(Ring ring, Column column, cnp.ndarray values) except *:
    """A part that copies all rows of a stored column into ``values``."""
    return CopiedColumn(
        <char*> cnp.PyArray_DATA(values), <const char*> &ring.arena[0] + column.offset,
        column.stride, column.nbytes, False, NULL, NULL,
    )


cdef bint c_is_beside(Chain chain, frozenset single) except -1:
    """Whether next values are copied in runs from the rows that follow."""
    return (
        isinstance(chain, NextOf) and chain.name not in single and (<NextOf> chain).column is not None
    )


cdef inline intp_t c_first_number(const SequencesCopy* copy, intp_t k) noexcept nogil:
    """Number in the batch of the first row of the k-th sequence of a copy."""
    return (k if copy.places == NULL else copy.places[k]) * copy.rows


cdef void c_copy_sequences(const void* work, intp_t first, intp_t stop) noexcept nogil:
    """Copy the sequences from number ``first`` to ``stop`` of a copy."""
    cdef const SequencesCopy* copy = <const SequencesCopy*> work
    cdef const intp_t* starts = copy.starts
    cdef intp_t k, count, number, ahead = max(1, FETCHED // copy.rows)
    cdef RowInBatch start
    for k in range(first, min(first + ahead, stop)):
        c_fetch_run(copy, starts[k], 0, min(copy.rows, COPIED_ROWS))
    for k in range(first, stop):
        number = c_first_number(copy, k)
        start = RowInBatch(c_cursor(&copy.walk, starts[k]), number)
        count = c_copy_sequence(copy, start, starts[min(k + ahead, stop - 1)])
        if not copy.across:
            memset(copy.marks + number, True, count)
        c_blank(copy, number + count, copy.rows - count)


cdef inline void c_fetch_run(
    const SequencesCopy* copy, intp_t slot, intp_t start, intp_t n
) noexcept nogil:
    """Prefetch the records of n rows of the sequence that begins in a slot, from number ``start`` on."""
    cdef intp_t step = copy.walk.n_envs, stride = copy.record_stride
    n = min(n, (copy.walk.capacity - 1 - slot) // step + 1 - start)
    slot += start * step
    if step == 1 and n > 0:
        c_prefetch_rows(copy.records, stride, n * stride, &slot, 1)
        return
    while n > 0:
        c_prefetch_rows(copy.records, stride, stride, &slot, 1)
        slot += step
        n -= 1


cdef intp_t c_copy_sequence(
    const SequencesCopy* copy, RowInBatch place, intp_t following
) noexcept nogil:
    """Copy a sequence while the one that begins in slot ``following`` is prefetched.

    Returns how many rows it has.
    """
    cdef intp_t k, n, end = place.number + copy.rows
    cdef const CopiedColumn* part
    cdef uint8_t ended
    for k in range(copy.n_parts):
        part = copy.parts + k
        if part.first_only:
            c_copy(
                part.to + place.number // copy.rows * part.nbytes,
                part.column + place.at.slot * part.stride,
                part.nbytes,
            )
    while True:
        n = c_run(copy, &place, min(end - place.number, COPIED_ROWS))
        c_copy_run(copy, &place, n, following, place.number + copy.rows - end)
        place.number += n
        place.at.slot += (n - 1) * copy.walk.n_envs
        place.at.row += (n - 1) * copy.walk.n_envs
        ended = copy.walk.flags[place.at.slot * copy.walk.stride] & END
        if (
            place.number == end
            or ended and not copy.across
            or not c_forward(&copy.walk, &place.at)
        ):
            return place.number - end + copy.rows
        if copy.across:
            copy.marks[place.number] = ended


cdef intp_t c_run(const SequencesCopy* copy, const RowInBatch* place, intp_t most) noexcept nogil:
    """Number of rows of a sequence, from a row on, that lie at even distances in memory."""
    cdef Walk walk = copy.walk
    cdef intp_t n = 1, step = walk.n_envs * walk.stride
    cdef const uint8_t* flags = walk.flags + place.at.slot * walk.stride
    cdef uint8_t* marks = copy.marks + place.number
    most = min(most, (walk.capacity - 1 - place.at.slot) // walk.n_envs + 1)
    if place.at.row + (most - 1) * walk.n_envs >= walk.stop:
        most = <intp_t> ((walk.stop - 1 - place.at.row) // walk.n_envs + 1)
    if copy.across:
        while n < most and not flags[step] & ABSENT:
            marks[n] = flags[0] & END
            flags += step
            n += 1
    else:
        while n < most and not (flags[0] & END or flags[step] & ABSENT):
            flags += step
            n += 1
    return n


cdef void c_copy_run(
    const SequencesCopy* copy, const RowInBatch* place, intp_t n, intp_t following, intp_t start
) noexcept nogil:
    """Copy n rows at even distances, n of at most ``COPIED_ROWS``.

    As many rows of the sequence that begins in slot ``following`` are prefetched, from number ``start``
    on: some before each column, as the processor waits where it is asked for all at once.
    """
    cdef intp_t k, fetched = 0, upto
    cdef const CopiedColumn* part
    for k in range(copy.n_parts):
        part = copy.parts + k
        upto = n * (k + 1) // copy.n_parts
        c_fetch_run(copy, following, start + fetched, upto - fetched)
        fetched = upto
        if part.apart != NULL:
            c_copy_next(copy, part, place, n)
        elif not part.first_only:
            c_move(
                part.to + place.number * part.nbytes, part.nbytes,
                part.column + place.at.slot * part.stride, copy.walk.n_envs * part.stride,
                part.nbytes, n,
            )
    if copy.ids != NULL:
        for k in range(n):
            copy.ids[place.number + k] = place.at.row + k * copy.walk.n_envs


cdef void c_copy_next(
    const SequencesCopy* copy, const CopiedColumn* part, const RowInBatch* place, intp_t n
) noexcept nogil:
    """Copy the next values of n rows at even distances, and mark those that are stored apart."""
    cdef char* to = part.to + place.number * part.nbytes
    cdef intp_t k, step = copy.walk.n_envs * part.stride
    cdef intp_t last = place.at.slot + n * copy.walk.n_envs  # slot of the next value of the last row
    cdef const uint8_t* apart = part.apart + place.at.slot
    cdef uint8_t* aside = part.aside + place.number
    c_move(
        to, part.nbytes, part.column + place.at.slot * part.stride + step, step, part.nbytes, n - 1
    )
    last = last - copy.walk.capacity if last >= copy.walk.capacity else last
    c_copy(to + (n - 1) * part.nbytes, part.column + last * part.stride, part.nbytes)
    for k in range(n):
        aside[k] = apart[k * copy.walk.n_envs] != 0
    if place.at.row + n * copy.walk.n_envs >= copy.walk.stop:
        aside[n - 1] = True


cdef void c_blank(const SequencesCopy* copy, intp_t number, intp_t n) noexcept nogil:
    """Write padding into n rows of the batch."""
    cdef intp_t k
    cdef const CopiedColumn* part
    if n == 0:
        return
    memset(copy.marks + number, False, n)
    for k in range(copy.n_parts):
        part = copy.parts + k
        if not part.first_only:
            memset(part.to + number * part.nbytes, 0, n * part.nbytes)
        if part.aside != NULL:
            memset(part.aside + number, False, n)
    if copy.ids != NULL:
        for k in range(number, number + n):
            copy.ids[k] = copy.ids[number - 1]
