"""``Followers``: several rings that other processes write to, read as one.

A row of one of them has a number: its slot, and in the low bits which ring it is in. A batch whose
rows lie in several rings is copied in one pass, each row to its place, so it costs what one of a
single ring does. Compiled because that is most of what a learner does. Not here: following one ring
(``follower``), which rows are drawn (``processes._together``), and n-step returns (``views._rows``, of
each ring).
"""

cimport cython
cimport numpy as cnp
from libc.stdlib cimport calloc, free, malloc

from cpprb_like._machine.aligned cimport c_numbers
from cpprb_like._c.arrays cimport c_check_array
from cpprb_like._machine.blocks cimport Values, c_gather_values_beside_actors
from cpprb_like._c.copying cimport c_gather_at, c_prefetch_rows
from cpprb_like._c.typedefs cimport int64_t, intp_t
from cpprb_like._core cimport CLEARS, EDITS, HANDLE_BASE, NBYTES, OFFSET, STRIDE, WRITTEN, Ring
from cpprb_like._rows.chained cimport Chain, c_close
from cpprb_like._rows.column cimport Column
from cpprb_like.processes._follower cimport BUSY, Follower
from cpprb_like._rows.gather cimport c_check_arrays, c_new_array

import numpy as np

cnp.import_array()

cdef enum:
    READ_CHUNK = 32          # rows whose records are fetched while those before are copied
    UNLOCKED_NBYTES = 32768  # smaller gathers keep the lock: taking it back costs more


def places_by_label(cnp.ndarray labels not None):
    """Where each label stands: a list of labels, ascending, with the places that have it.

    ``labels`` are integers from 0 on, such as numbers of rings, so few that an array of them is small.
    """
    return [
        (label, np.flatnonzero(labels == label))
        for label in np.flatnonzero(np.bincount(labels)).tolist()
    ]


@cython.final
cdef class Followers:
    """The rings of several ``Follower`` objects, as one.

    One thread at a time may call it.

    Parameters
    ----------
    width : int
        Rings, at most.
    """

    def __cinit__(self, intp_t width):
        if width < 1:
            raise ValueError(f"width: expected at least 1, got {width}")
        self.width = width
        self.bits = 0
        while <intp_t> 1 << self.bits < width:
            self.bits += 1
        self.mask = (<intp_t> 1 << self.bits) - 1
        self.members = [None] * width
        self.rings = [None] * width
        self.usable = [False] * width
        self.spans = <Span*> calloc(self.mask + 1, sizeof(Span))
        if self.spans == NULL:
            raise MemoryError("no memory left for a learner")

    def __dealloc__(self):
        free(self.spans)

    cdef Ring c_ring(self, intp_t number):
        """The ring of a number; there is one."""
        return <Ring> self.rings[number]

    cdef bint c_is_usable(self, intp_t number) noexcept:
        """Whether rows of a ring may be drawn: it is there, and not being edited."""
        return <bint> self.usable[number]

    def put(self, intp_t number, Follower follower not None):
        """Have the ring of this number, from 0 on, from now on."""
        self.members[number] = follower
        self.rings[number] = follower.ring

    def follow(self):
        """Take in the rows that were published in all rings since the last call.

        Returns the numbers of the rings that are being edited. They count as empty until the next
        call.
        """
        return self.c_follow()

    cdef list c_follow(self):
        """As ``follow``."""
        cdef intp_t number
        cdef bint is_busy
        cdef list busy = []
        for number in range(self.width):
            if self.members[number] is None:
                continue
            is_busy = (<Follower> self.members[number]).c_sync() == BUSY
            self.usable[number] = not is_busy
            if is_busy:
                busy.append(number)
        return busy

    def leave_out(self, intp_t number):
        """Have a ring count as empty until the next ``follow``."""
        self.usable[number] = False

    @property
    def usable_rings(self):
        """The rings whose rows may be drawn, with their numbers."""
        return [
            (number, ring) for number, ring in enumerate(self.rings) if self.usable[number]
        ]

    def __len__(self):
        cdef intp_t number, count = 0
        for number in range(self.width):
            if self.c_is_usable(number):
                count += self.c_ring(number).c_drawable()
        return count

    @property
    def stored(self):
        """Slots in use of all rings."""
        cdef intp_t number, count = 0
        for number in range(self.width):
            if self.c_is_usable(number):
                count += self.c_ring(number).c_stored()
        return count

    def number(self, intp_t number, slots):
        """The numbers of rows in slots of one ring."""
        return slots << self.bits | number

    def parts(self, rows):
        """These numbers of rows, ring by ring: a list of the number of a ring, the places of its rows
        among those given, and their slots.

        Handles of rows have a ring in the same bits: of these it gives the handles in their rings.
        """
        return [
            (number, places, rows[places] >> self.bits)
            for number, places in places_by_label(rows & self.mask)
        ]

    cdef void c_look(self) noexcept:
        """Note where the rows of each ring are now."""
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
            span.stride = ring.record_stride
            span.stored = ring.c_stored()
            span.capacity = ring.capacity
            span.head = <intp_t> (ring.state[WRITTEN] % ring.capacity)
            span.start = ring.state[WRITTEN] - span.head

    cdef int c_check_rows(self, rows, const char** records) except -1:
        """Raise unless these are numbers of rows, in a dense 1-d array of intp; see ``c_look``.

        Where the records lie is noted, counted from the first byte of ``c_record``.
        """
        c_check_array(rows, "rows", cnp.NPY_INTP, -1)
        cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(rows)
        cdef intp_t k, slot, mask = self.mask, wrong = -1
        cdef int bits = self.bits
        cdef Span* span
        self.c_look()
        for k in range(cnp.PyArray_DIM(rows, 0)):
            span = self.spans + (values[k] & mask)
            slot = values[k] >> bits
            if <size_t> slot >= <size_t> span.stored:  # so is a negative one
                wrong = k
            span.is_used = True
            if records != NULL:
                records[k] = span.base + slot * span.stride
        if wrong >= 0:
            raise IndexError(f"rows[{wrong}]: no row has the number {values[wrong]}")
        return 0

    cdef int64_t c_row(self, intp_t row) noexcept nogil:
        """The row id, in its ring, of a row that was checked."""
        cdef const Span* span = self.spans + (row & self.mask)
        cdef intp_t slot = row >> self.bits
        return span.start + slot - (0 if slot < span.head else span.capacity)

    def handles(self, cnp.ndarray rows not None):
        """What names these rows for ever: their handles, with the number of the ring in the low bits."""
        self.c_check_rows(rows, NULL)
        return self.c_handles(rows)

    cdef cnp.ndarray c_handles(self, cnp.ndarray rows):
        """As ``handles``, of rows that were drawn since all rings were followed."""
        cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(rows)
        cdef intp_t k, n = cnp.PyArray_DIM(rows, 0), number, mask = self.mask
        cdef int bits = self.bits
        cdef cnp.ndarray found = c_numbers(1, &n, cnp.NPY_INT64)
        cdef int64_t* out = <int64_t*> cnp.PyArray_DATA(found)
        cdef Ring ring
        self.c_look()
        for number in range(self.width):
            if self.rings[number] is not None:
                ring = self.c_ring(number)
                self.spans[number].handles = ring.state[HANDLE_BASE] + ring.span
        for k in range(n):
            number = values[k] & mask
            out[k] = (self.spans[number].handles + self.c_row(values[k])) << bits | number
        return found

    # ------------------------------------------------------------------ reading

    def read(self, cnp.ndarray rows not None, tuple columns not None, list arrays=None):
        """The values of columns at the given rows, and whether they are as they were when followed.

        ``columns`` are those of any of the rings: all have the same layout. ``arrays`` are the
        caller's, one for each column, as in ``gather.take``; by default they are fresh.

        Returns the number of a ring of which one of the rows has been written over since it was
        followed, or -1; and the values by name.
        """
        cdef intp_t late = -1
        cdef dict batch = self.c_read(rows, columns, arrays, &late)
        return late, batch

    cdef dict c_read(self, cnp.ndarray rows, tuple columns, list arrays, intp_t* late):
        """As ``read``; ``late`` becomes the number of a ring, or -1."""
        cdef intp_t k, n = cnp.PyArray_SIZE(rows)
        cdef Ring ring
        cdef const char** records = <const char**> malloc((1 + 2 * n) * sizeof(char*))
        if records == NULL:
            raise MemoryError("no memory left to gather rows")
        try:
            self.c_check_rows(rows, records)
            if arrays is None and n == 0:
                arrays = [np.empty((0, *column.shape), column.dtype) for column in columns]
            elif arrays is None:
                ring = self.c_ring((<const intp_t*> cnp.PyArray_DATA(rows))[0] & self.mask)
                arrays = [c_new_array(ring, column, n) for column in columns]
            else:
                c_check_arrays(arrays, columns, n)
            if n:
                self.c_fill(arrays, columns, <const intp_t*> cnp.PyArray_DATA(rows), n, records)
        finally:
            free(records)
        cdef dict batch = {}
        for k in range(len(arrays)):
            batch[(<Column> columns[k]).name] = arrays[k]
        late[0] = self.c_overtaken(<const intp_t*> cnp.PyArray_DATA(rows), n)
        return batch

    cdef int c_fill(
        self, list arrays, tuple columns, const intp_t* rows, intp_t n, const char** records
    ) except -1:
        """Gather rows that were checked into dense arrays of the right size.

        ``records`` are where their records lie, and room for as many more.
        """
        cdef Ring ring = self.c_ring(rows[0] & self.mask)  # all have the same layout
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
        """Gather a column that lies in a block of its own."""
        cdef Values values
        cdef intp_t k
        for k in range(n):
            wholes[k] = self.spans[rows[k] & self.mask].base + (
                ring.table[place, OFFSET] + (rows[k] >> self.bits) * ring.table[place, STRIDE]
            )
        values.out, values.wholes, values.frames = out, wholes, NULL
        values.nbytes, values.depth, values.outer, values.inner = ring.table[place, NBYTES], 1, 1, 0
        if n * values.nbytes < UNLOCKED_NBYTES:
            c_gather_values_beside_actors(&values, n)
        else:
            with nogil:
                c_gather_values_beside_actors(&values, n)

    cdef int c_fill_chain(
        self, Ring ring, char* out, intp_t place, const intp_t* rows, intp_t n
    ) except -1:
        """Gather a chained field: each ring says where its values lie, and all are copied at once."""
        cdef intp_t k, number, found, count = 0
        cdef Values values
        cdef Chain chain
        cdef list held = []
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
                    ids[found], places[found] = self.c_row(rows[k]), k
                    found += 1
            ring = self.c_ring(number)
            chain = <Chain> ring.chains[count]
            held.append(chain.c_held())
            chain.c_aim(ids, places, found, ring.state[WRITTEN], &values)
        with nogil:
            c_gather_values_beside_actors(&values, n)
        c_close(&values)
        free(ids)
        return 0

    cdef intp_t c_overtaken(self, const intp_t* rows, intp_t n) noexcept:
        """A ring of which one of the rows has been written over since it was followed, or -1.

        If there is none, all that was read of these rows is as it was at that time.
        """
        cdef intp_t k, number, found = -1
        cdef bint any_bound = False
        cdef Span* span
        cdef Ring ring
        cdef Chain chain
        for number in range(self.width):
            span = self.spans + number
            if not span.is_used:
                continue
            ring = self.c_ring(number)
            span.bound = ring.c_bound()
            any_bound |= span.bound > ring.state[WRITTEN] - span.stored
        for k in range(n if any_bound else 0):
            if self.c_row(rows[k]) < self.spans[rows[k] & self.mask].bound:
                found = rows[k] & self.mask
        for number in range(self.width):
            if self.spans[number].is_used:
                ring = self.c_ring(number)
                if (
                    ring.live[EDITS] != ring.live_edits or ring.live[CLEARS] != ring.state[CLEARS]
                    or ring.changes[0] != ring.seen
                ):
                    found = number
                for chain in ring.chains:
                    if not chain.c_promises_hold():
                        found = number
        return found


cdef void c_fill_records(Ring ring, char** outs, const char** records, intp_t n) noexcept:
    """Gather the columns of records, all of them of some rows before the next rows are fetched.

    Shared memory has pages of 4 kB as a rule, and a processor knows where some 64 of them are.
    """
    cdef intp_t k, start = 0, count = min(n, READ_CHUNK), following
    cdef intp_t first = ring.record_offset, size = ring.record_stride
    c_fetch_records(records, first, size, count)
    while start < n:
        following = min(n - start - count, READ_CHUNK)
        c_fetch_records(records + start + count, first, size, following)
        for k in range(ring.in_record):
            if outs[k] != NULL:
                c_gather_at(
                    outs[k] + start * ring.table[k, NBYTES], records + start,
                    ring.table[k, OFFSET], ring.table[k, NBYTES], count,
                )
        start += count
        count = following


cdef inline void c_fetch_records(
    const char** records, intp_t first, intp_t size, intp_t n
) noexcept nogil:
    """Ask for the cache lines of records."""
    cdef intp_t k, zero = 0
    for k in range(n):
        c_prefetch_rows(records[k] + first, size, size, &zero, 1)
