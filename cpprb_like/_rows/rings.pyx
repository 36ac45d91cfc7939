"""``Rings``: rows of several rings of one layout, with one numbering, read like rows of one ring.

The number of a row has the number of its ring in the low bits and its slot above them. Stored values of
several rings are copied in one pass, each row to its place. Compiled because it looks at every row that
is read. Not here: rows of one ring (``gather``), how rings are followed (``processes``), and the
windows around rows (``views._walker``).
"""

cimport numpy as cnp
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from cpprb_like._machine.aligned cimport c_numbers
from cpprb_like._c.arrays cimport c_check_array
from cpprb_like._machine.blocks cimport Values, c_gather_values
from cpprb_like._c.copying cimport FETCHED, UNLOCKED_NBYTES, c_gather_at
from cpprb_like._c.typedefs cimport int64_t, intp_t, uint8_t
from cpprb_like._core cimport (
    CLEARS, EDITS, HANDLE_BASE, NBYTES, OFFSET, STRIDE, WRITTEN, Ring, c_bound, c_stored,
)
from cpprb_like._rows.chained cimport Chain, c_close
from cpprb_like._rows.column cimport Column
from cpprb_like._rows.gather cimport c_check_arrays, c_new_array

cnp.import_array()


cdef class Parts:
    """Names of rows in several parts: the sources of a mixture, or the shards of a learner.

    A name has the number of the part in its low bits. The bits above are the row's own name in its
    part: an index, a handle or a slot.

    Parameters
    ----------
    width : int
        Number of parts, at least 1.
    """

    def __cinit__(self, intp_t width, *others):
        if width < 1:
            raise ValueError(f"width: expected at least 1, got {width}")
        self.width = width
        self.bits = (width - 1).bit_length()
        self.mask = (<intp_t> 1 << self.bits) - 1

    def name(self, intp_t number, cnp.ndarray own not None):
        """The names of rows of one part, from their own names in it."""
        c_check_array(own, "own", cnp.NPY_INT64, -1)
        cdef intp_t k, n = cnp.PyArray_DIM(own, 0)
        cdef cnp.ndarray names = c_numbers(1, &n, cnp.NPY_INT64)
        for k in range(n):
            (<int64_t*> cnp.PyArray_DATA(names))[k] = (
                (<const int64_t*> cnp.PyArray_DATA(own))[k] << self.bits | number
            )
        return names

    def split(self, cnp.ndarray names not None):
        """Names by part: the number of the part, the places of its names, and its own names.

        Negative names, which name no row, are left out. A number may be ``width`` or more, if the names
        are not those of ``name``.
        """
        c_check_array(names, "names", cnp.NPY_INT64, -1)
        cdef const int64_t* values = <const int64_t*> cnp.PyArray_DATA(names)
        cdef intp_t k, number, mask = self.mask, n = cnp.PyArray_DIM(names, 0)
        cdef int bits = self.bits
        cdef cnp.ndarray theirs, ids
        cdef list found = [None] * (mask + 1)
        cdef intp_t* counts = <intp_t*> calloc(mask + 1, sizeof(intp_t))
        cdef intp_t** places = <intp_t**> calloc(2 * (mask + 1), sizeof(intp_t*))
        cdef int64_t** own = <int64_t**> (places + mask + 1)
        if counts == NULL or places == NULL:
            free(counts)
            free(places)
            raise MemoryError("no memory left to split rows")
        try:
            for k in range(n):
                counts[values[k] & mask] += values[k] >= 0
            for number in range(mask + 1):
                if counts[number]:
                    theirs = c_numbers(1, counts + number, cnp.NPY_INTP)
                    ids = c_numbers(1, counts + number, cnp.NPY_INT64)
                    found[number] = (number, theirs, ids)
                    places[number] = <intp_t*> cnp.PyArray_DATA(theirs)
                    own[number] = <int64_t*> cnp.PyArray_DATA(ids)
            for k in range(n):
                number = values[k] & mask
                if values[k] >= 0:
                    places[number][0], own[number][0] = k, values[k] >> bits
                    places[number] += 1
                    own[number] += 1
        finally:
            free(counts)
            free(places)
        return [part for part in found if part is not None]


cdef class Rings(Parts):
    """Several rings as one. Subclasses set ``rings``, which other processes write.

    One thread at a time may call it.

    Parameters
    ----------
    width : int
        Most rings.
    layout : Ring
        A ring with the same fields, and no rows.
    capacity : int
        Slots of each ring.
    """

    def __cinit__(self, intp_t width, Ring layout not None, intp_t capacity):
        self.layout = layout
        self.capacity = capacity
        self.rings = [None] * width
        self.spans = <Span*> calloc(self.mask + 1, sizeof(Span))
        if self.spans == NULL:
            raise MemoryError("no memory left for a learner")

    def __dealloc__(self):
        free(self.spans)

    @property
    def n_envs(self):
        """Streams of each ring."""
        return self.layout.n_envs

    @property
    def lookahead(self):
        """``lookahead`` of each ring."""
        return self.layout.lookahead

    @property
    def columns(self):
        """Columns of all fields: see ``Ring.columns``. Their offsets may differ by ring."""
        return self.layout.columns

    @property
    def stored_columns(self):
        """Columns whose values are stored as they are."""
        return self.layout.stored_columns

    @property
    def chains(self):
        """Chained fields of the layout."""
        return self.layout.chains

    cdef Ring c_ring(self, intp_t number):
        """The ring of a number, which must exist."""
        return <Ring> self.rings[number]

    cdef Ring c_any(self):
        """A ring that exists, as all have one layout; without any the empty ring of the fields."""
        for ring in self.rings:
            if ring is not None:
                return ring
        return self.layout

    cdef void c_look(self) noexcept:
        """Fill ``spans`` with the present state of each ring."""
        cdef intp_t number
        cdef Ring ring
        cdef Span* span
        for number in range(self.width):
            span = self.spans + number
            span.stored = 0
            span.is_used = False
            if self.rings[number] is None:
                continue
            ring = self.c_ring(number)
            span.base = <const char*> &ring.arena[0]
            span.stored = c_stored(ring)
            span.capacity = ring.capacity
            span.head = <intp_t> (ring.state[WRITTEN] % ring.capacity)
            span.start = ring.state[WRITTEN] - span.head
            span.clears = ring.state[CLEARS]
            span.edits = ring.live_edits
            span.changes, span.gone = ring.seen, ring.left_before

    cdef int c_check_rows(self, rows, const char** records) except -1:
        """Raise unless these are numbers of rows, in a dense 1-d array of intp. Calls ``c_look``.

        ``records``, unless NULL, gets the address of the slot of each row, from the arena's start on.
        """
        c_check_array(rows, "rows", cnp.NPY_INTP, -1)
        cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(rows)
        self.c_look()
        cdef intp_t wrong = c_find_records(
            self.spans, self.bits, 0, self.c_any().record_stride, values, cnp.PyArray_DIM(rows, 0),
            NULL, records,
        )
        if wrong >= 0:
            raise IndexError(f"rows[{wrong}]: no row has the number {values[wrong]}")
        return 0

    def handles(self, cnp.ndarray rows not None):
        """Handles of these rows, with the number of the ring in the low bits."""
        self.c_check_rows(rows, NULL)
        return self.c_handles(rows)

    cdef cnp.ndarray c_handles(self, cnp.ndarray rows):
        """``handles`` of rows that were drawn since all rings were followed."""
        cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(rows)
        cdef intp_t k, n = cnp.PyArray_DIM(rows, 0), number, mask = self.mask
        cdef int bits = self.bits
        cdef cnp.ndarray found = c_numbers(1, &n, cnp.NPY_INT64)
        cdef int64_t* out = <int64_t*> cnp.PyArray_DATA(found)
        cdef int64_t row
        cdef Ring ring
        self.c_look()
        for number in range(self.width):
            if self.rings[number] is not None:
                ring = self.c_ring(number)
                self.spans[number].handles = ring.state[HANDLE_BASE] + ring.span
        for k in range(n):
            number = values[k] & mask
            row = c_row_of(self.spans + number, values[k] >> bits)
            out[k] = (self.spans[number].handles + row) << bits | number
        return found

    # ------------------------------------------------------------------ moments

    def now(self):
        """The present state of all rings: the argument of ``holds``."""
        self.c_look()
        return PyBytes_FromStringAndSize(<char*> self.spans, (self.mask + 1) * sizeof(Span))

    def holds(self, bytes moment not None, cnp.ndarray rows not None):
        """Whether these rows have not changed since a moment: see ``Ring.holds``."""
        c_check_array(rows, "rows", cnp.NPY_INTP, -1)
        cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(rows)
        cdef intp_t k, n = cnp.PyArray_DIM(rows, 0)
        cdef Span* spans = <Span*> malloc((self.mask + 1) * sizeof(Span))
        if spans == NULL:
            raise MemoryError("no memory left to look at rows")
        memcpy(spans, PyBytes_AS_STRING(moment), (self.mask + 1) * sizeof(Span))
        for k in range(n):
            spans[values[k] & self.mask].is_used = True
        cdef bint holds = self.c_rows_hold(spans, values, n)
        free(spans)
        return holds

    def is_now(self, bytes moment not None):
        """Whether no row of any ring was added, edited, cleared or overwritten since a moment."""
        cdef const Span* spans = <const Span*> PyBytes_AS_STRING(moment)
        cdef intp_t number
        cdef Ring ring
        for number in range(self.width):
            if self.rings[number] is not None:
                ring = self.c_ring(number)
                if (
                    ring.state[WRITTEN] != spans[number].start + spans[number].head
                    or c_bound(ring) > max(
                        spans[number].start + spans[number].head - spans[number].stored,
                        spans[number].gone,
                    )
                    or ring.live[EDITS] != spans[number].edits
                    or ring.live[CLEARS] != spans[number].clears
                    or ring.changes[0] != spans[number].changes
                ):
                    return False
        return True

    # ------------------------------------------------------------------ rows

    def flags_at(self, cnp.ndarray rows not None):
        """The flags of rows: see ``Ring.flags_at``."""
        self.c_check_rows(rows, NULL)
        cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(rows)
        cdef intp_t k, n = cnp.PyArray_DIM(rows, 0)
        cdef cnp.ndarray found = c_numbers(1, &n, cnp.NPY_UINT8)
        for k in range(n):
            (<uint8_t*> cnp.PyArray_DATA(found))[k] = (
                self.c_ring(values[k] & self.mask).c_flags(values[k] >> self.bits)[0]
            )
        return found

    # ------------------------------------------------------------------ reading

    def take(self, rows, list arrays=None, tuple columns=None):
        """The values of columns at the given rows, by name.

        See ``gather.take``; chained columns are read, too. ``columns`` are some of ``columns``, or
        of those of any ring, as all have the same layout.
        """
        return self.c_take_columns(rows, arrays, self.layout.columns if columns is None else columns)

    def take_chain(self, Chain chain not None, rows, cnp.ndarray out not None):
        """See ``gather.take_chain``."""
        self.c_take_columns(rows, [out], (self.layout.c_column(chain.name),))

    cdef dict c_take_columns(self, rows, list arrays, tuple columns):
        """``take`` of these columns."""
        c_check_array(rows, "rows", cnp.NPY_INTP, -1)
        cdef intp_t k, n = cnp.PyArray_DIM(rows, 0)
        cdef const char** records = <const char**> malloc((1 + 2 * n) * sizeof(char*))
        if records == NULL:
            raise MemoryError("no memory left to gather rows")
        try:
            self.c_check_rows(rows, records)
            if arrays is None:
                arrays = [None] * len(columns)
                for k in range(len(columns)):
                    arrays[k] = c_new_array(self.layout, <Column> columns[k], n)
            else:
                c_check_arrays(arrays, columns, n)
            if n:
                self.c_gather_records(arrays, columns, <const intp_t*> cnp.PyArray_DATA(rows), n, records)
        finally:
            free(records)
        cdef dict batch = {}
        for k in range(len(arrays)):
            batch[(<Column> columns[k]).name] = arrays[k]
        return batch

    cdef int c_gather_records(
        self, list arrays, tuple columns, const intp_t* rows, intp_t n, const char** records
    ) except -1:
        """Gather rows that were checked into dense arrays of the right size.

        ``records`` has the addresses of the n records, and memory for n further addresses.
        """
        cdef Ring ring = self.c_any()
        cdef intp_t k, stored = ring.table.shape[0]
        cdef Column column
        cdef char* out
        cdef char** outs = <char**> calloc(1 + stored, sizeof(char*))
        if outs == NULL:
            raise MemoryError("no memory left to gather rows")
        for k in range(len(arrays)):
            column = <Column> columns[k]
            if column.place < stored:
                outs[column.place] = <char*> cnp.PyArray_DATA(<cnp.ndarray> arrays[k])
        c_fill_records(ring, outs, records, n)
        for k in range(ring.in_record, stored):
            if outs[k] != NULL:
                self.c_fill_block(ring, outs[k], records + n, k, rows, n)
        free(outs)
        for k in range(len(arrays)):
            column = <Column> columns[k]
            if column.place >= stored:
                out = <char*> cnp.PyArray_DATA(<cnp.ndarray> arrays[k])
                self.c_fill_chain(ring, out, column.place, rows, n)
        return 0

    cdef void c_fill_block(
        self, Ring ring, char* out, const char** wholes, intp_t place, const intp_t* rows, intp_t n
    ) noexcept:
        """Gather a column that lies in a block of its own; ``wholes`` has room for n."""
        cdef Values values
        c_find_records(
            self.spans, self.bits, ring.table[place, OFFSET], ring.table[place, STRIDE], rows, n, NULL,
            wholes,
        )
        values.out, values.wholes, values.frames = out, wholes, NULL
        values.nbytes, values.depth, values.outer, values.inner = ring.table[place, NBYTES], 1, 1, 0
        if n * values.nbytes < UNLOCKED_NBYTES:
            c_gather_values(&values, n, True)
        else:
            with nogil:
                c_gather_values(&values, n, True)

    cdef int c_fill_chain(
        self, Ring ring, char* out, intp_t place, const intp_t* rows, intp_t n
    ) except -1:
        """Gather a chained field: the addresses come from each ring, then all values are copied."""
        cdef intp_t k, number, found, count = 0
        cdef Values values
        cdef Chain chain
        while (<Chain> ring.chains[count]).place != place:
            count += 1
        cdef int64_t* ids = <int64_t*> malloc((1 + n) * (sizeof(int64_t) + sizeof(intp_t)))
        cdef intp_t* places = <intp_t*> (ids + n)
        if ids == NULL:
            raise MemoryError("no memory left to gather rows")
        try:
            (<Chain> ring.chains[count]).c_open(&values, out, n)
        except MemoryError:
            free(ids)
            raise
        for number in range(self.width):
            if not self.spans[number].is_used:
                continue
            found = 0
            for k in range(n):
                if rows[k] & self.mask == number:
                    ids[found], places[found] = c_row_of(self.spans + number, rows[k] >> self.bits), k
                    found += 1
            ring = self.c_ring(number)
            chain = <Chain> ring.chains[count]
            chain.c_aim(ids, places, found, ring.state[WRITTEN], &values)
        with nogil:
            c_gather_values(&values, n, True)
        c_close(&values)
        free(ids)
        return 0

    cdef bint c_hold_now(self, cnp.ndarray rows):
        """``c_rows_hold`` of rows that the last call has read."""
        return self.c_rows_hold(
            self.spans, <const intp_t*> cnp.PyArray_DATA(rows), cnp.PyArray_DIM(rows, 0)
        )

    cdef bint c_rows_hold(self, Span* spans, const intp_t* rows, intp_t n) noexcept:
        """Whether all that was read of these rows is as it was when ``c_look`` filled ``spans``.

        False if a ring with chained fields was followed again since: a chain knows only the rows of the
        last time.
        """
        cdef intp_t k, number
        cdef bint any_bound = False
        cdef Span* span
        cdef Ring ring
        cdef Chain chain
        for number in range(self.width):
            span = spans + number
            if not span.is_used:
                continue
            ring = self.c_ring(number)
            span.bound = c_bound(ring)
            any_bound |= span.bound > span.start + span.head - span.stored
        for k in range(n if any_bound else 0):
            span = spans + (rows[k] & self.mask)
            if c_row_of(span, rows[k] >> self.bits) < span.bound:
                return False
        for number in range(self.width):
            span = spans + number
            if not span.is_used:
                continue
            ring = self.c_ring(number)
            if (
                ring.live[EDITS] != span.edits or ring.live[CLEARS] != span.clears
                or ring.changes[0] != span.changes
            ):
                return False
            for chain in ring.chains:
                if chain.is_promise_lost or ring.state[WRITTEN] != span.start + span.head:
                    return False
        return True


cdef inline int64_t c_row_of(const Span* span, intp_t slot) noexcept nogil:
    """The row id of a slot."""
    return span.start + slot - (0 if slot < span.head else span.capacity)


cdef intp_t c_find_records(
    Span* spans, int bits, intp_t offset, intp_t stride, const intp_t* rows, intp_t n,
    const char* blank, const char** values,
) noexcept nogil:
    """Addresses of a value of each row: ``offset`` is that in slot 0, from the start of the arena.

    ``blank``, unless NULL, is the address for negative rows; NULL in ``values`` asks for none. Returns the
    place of a row that is not in use, or -1.
    """
    cdef intp_t k, slot, wrong = -1, mask = (<intp_t> 1 << bits) - 1
    cdef Span* span
    if bits == 0:
        return c_find_in_one(spans, offset, stride, rows, n, blank, values)
    for k in range(n):
        if rows[k] < 0 and blank != NULL:
            values[k] = blank
            continue
        span = spans + (rows[k] & mask)
        slot = rows[k] >> bits
        if <size_t> slot >= <size_t> span.stored:  # a negative slot is huge here
            wrong = k
        span.is_used = True
        if values != NULL:
            values[k] = span.base + (offset + slot * stride)
    return wrong


cdef intp_t c_find_in_one(
    Span* span, intp_t offset, intp_t stride, const intp_t* slots, intp_t n, const char* blank,
    const char** values,
) noexcept nogil:
    """``c_find_records`` of one ring."""
    cdef intp_t k, slot, wrong = -1
    cdef size_t stored = span.stored
    cdef const char* base = span.base + offset
    span.is_used = span.is_used or n > 0
    for k in range(n):
        slot = slots[k]
        if slot < 0 and blank != NULL:
            values[k] = blank
            continue
        if <size_t> slot >= stored:  # a negative slot is huge here
            wrong = k
        if values != NULL:
            values[k] = base + slot * stride
    return wrong


cdef void c_name_rows(
    const Share* shares, intp_t count, int spread, intp_t* rows, intp_t n
) noexcept nogil:
    """Replace places among the rows of all shares by numbers of rows, with the ring in the low bits."""
    cdef intp_t k, place, slot, scale = (count << 32) // shares[count - 1].stop
    cdef const Share* share
    for k in range(n):
        place = rows[k]
        share = shares + (place * scale >> 32)  # a guess: right if all shares have equal sizes
        while place < share.start:
            share -= 1
        while place >= share.stop:
            share += 1
        slot = share.first + place
        slot = slot if slot < share.capacity else slot - share.capacity
        rows[k] = slot << spread | share.number


cdef void c_fill_records(Ring ring, char** outs, const char** records, intp_t n) noexcept:
    """Gather the columns of records: all columns of some rows, then those of the next rows.

    Shared memory mostly has pages of 4 kB, and the first table of addresses holds some 64 of them.
    """
    cdef intp_t k, start = 0, count = min(n, FETCHED), following
    cdef intp_t first = ring.record_offset, size = ring.record_stride
    c_fetch_records(records, first, size, count)
    while start < n:
        following = min(n - start - count, FETCHED)
        c_fetch_records(records + start + count, first, size, following)
        for k in range(ring.in_record):
            if outs[k] != NULL:
                c_gather_at(
                    outs[k] + start * ring.table[k, NBYTES], records + start,
                    ring.table[k, OFFSET], ring.table[k, NBYTES], count,
                )
        start += count
        count = following
