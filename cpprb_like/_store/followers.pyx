"""``Followers``: several rings that other processes write to, read as one.

A row of one of them has a number: its slot, and in the low bits which ring it is in. A batch whose
rows lie in several rings is copied in one pass, each row to its place, so it costs what one of a
single ring does. Compiled because that is most of what a learner does. Not here: following one ring
(``follower``), which rows are drawn (``samplers._together``), and fields that are not stored as they
are (``views._rows``, of each ring).
"""

cimport cython
cimport numpy as cnp
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from cpprb_like._c.aligned cimport c_numbers
from cpprb_like._c.arrays cimport c_check_array
from cpprb_like._c.blocks cimport Values, c_gather_values
from cpprb_like._c.typedefs cimport int64_t, intp_t
from cpprb_like._core cimport CLEARS, EDITS, HANDLE_BASE, NBYTES, OFFSET, STRIDE, WRITTEN, Ring
from cpprb_like._store.column cimport Column
from cpprb_like._store.follower cimport BUSY, Follower
from cpprb_like._store.gather cimport c_check_arrays, c_new_array

import numpy as np

cnp.import_array()

cdef enum:
    UNLOCKED_NBYTES = 32768  # smaller gathers keep the lock: taking it back costs more


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
        self.spans = <Span*> malloc(width * sizeof(Span))
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
        """Have the rows that have come since in all rings.

        Returns what has to be looked at: pairs of a ring's number and what ``Follower.sync`` said, of
        those where that was not 0. Rings that are being edited count as empty until the next call.
        """
        cdef intp_t number
        cdef int found
        cdef list told = []
        for number in range(self.width):
            if self.members[number] is None:
                continue
            found = (<Follower> self.members[number]).c_sync()
            self.usable[number] = found != BUSY
            if found:
                told.append((number, found))
        return told

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

    cdef void c_look(self) noexcept:
        """Note where the rows of each ring are now."""
        cdef intp_t number
        cdef Ring ring
        for number in range(self.width):
            self.spans[number].base = NULL
            self.spans[number].stored = 0
            self.spans[number].is_used = False
            if self.rings[number] is None:
                continue
            ring = self.c_ring(number)
            self.spans[number].base = <const char*> &ring.arena[0]
            self.spans[number].stored = ring.c_stored()
            self.spans[number].capacity = ring.capacity
            self.spans[number].head = <intp_t> (ring.state[WRITTEN] % ring.capacity)
            self.spans[number].start = ring.state[WRITTEN] - self.spans[number].head

    cdef int c_check_rows(self, rows) except -1:
        """Raise unless these are numbers of rows, in a dense 1-d array of intp; see ``c_look``."""
        c_check_array(rows, "rows", cnp.NPY_INTP, -1)
        cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(rows)
        cdef intp_t k, number, wrong = -1
        self.c_look()
        for k in range(cnp.PyArray_DIM(rows, 0)):
            number = values[k] & self.mask
            if (
                values[k] < 0 or number >= self.width
                or values[k] >> self.bits >= self.spans[number].stored
            ):
                wrong = k
            else:
                self.spans[number].is_used = True
        if wrong >= 0:
            raise IndexError(f"rows[{wrong}]: no row has the number {values[wrong]}")
        return 0

    def handles(self, cnp.ndarray rows not None):
        """What names these rows for ever: their handles, with the number of the ring in the low bits."""
        self.c_check_rows(rows)
        cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(rows)
        cdef intp_t k, n = cnp.PyArray_DIM(rows, 0), number
        cdef cnp.ndarray found = c_numbers(1, &n, cnp.NPY_INT64)
        cdef int64_t* out = <int64_t*> cnp.PyArray_DATA(found)
        cdef Ring ring
        for k in range(n):
            number = values[k] & self.mask
            ring = self.c_ring(number)
            out[k] = ring.state[HANDLE_BASE] + ring.span + ring.c_row_at(values[k] >> self.bits)
            out[k] = out[k] << self.bits | number
        return found

    # ------------------------------------------------------------------ reading

    def take(self, cnp.ndarray rows not None, tuple columns not None, list arrays=None):
        """The values of columns that are stored as they are, at the given rows, by name.

        ``columns`` are those of any of the rings: all have the same layout. ``arrays`` are the
        caller's, one for each column, as in ``gather.take``; by default they are fresh.
        """
        self.c_check_rows(rows)
        cdef intp_t k, n = cnp.PyArray_DIM(rows, 0)
        cdef Ring ring
        if arrays is None and n == 0:
            arrays = [np.empty((0, *column.shape), column.dtype) for column in columns]
        elif arrays is None:
            ring = self.c_ring((<const intp_t*> cnp.PyArray_DATA(rows))[0] & self.mask)
            arrays = [c_new_array(ring, column, n) for column in columns]
        else:
            c_check_arrays(arrays, columns, n)
        if n:
            self.c_fill(arrays, columns, rows)
        cdef dict batch = {}
        for k in range(len(arrays)):
            batch[(<Column> columns[k]).name] = arrays[k]
        return batch

    cdef int c_fill(self, list arrays, tuple columns, cnp.ndarray rows) except -1:
        """Gather rows that were checked into dense arrays of the right size."""
        cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(rows)
        cdef intp_t k, n = cnp.PyArray_DIM(rows, 0)
        cdef Ring ring = self.c_ring(values[0] & self.mask)  # all have the same layout
        cdef intp_t offset = ring.record_offset, stride = ring.record_stride
        cdef Column column
        cdef char* out
        cdef const char** records = <const char**> malloc(2 * n * sizeof(char*))
        if records == NULL:
            raise MemoryError("no memory left to gather rows")
        for k in range(n):
            records[k] = self.spans[values[k] & self.mask].base + (
                offset + (values[k] >> self.bits) * stride
            )
        for k in range(len(arrays)):
            column = <Column> columns[k]
            out = <char*> cnp.PyArray_DATA(<cnp.ndarray> arrays[k])
            if column.place < ring.in_record:
                c_collect(
                    out, records, ring.table[column.place, OFFSET] - offset,
                    ring.table[column.place, NBYTES], n,
                )
            else:
                self.c_fill_block(ring, out, records + n, column.place, values, n)
        free(records)
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
            c_gather_values(&values, n)
        else:
            with nogil:
                c_gather_values(&values, n)

    def overtaken(self, cnp.ndarray rows not None):
        """A ring of which one of the rows has been written over since it was followed, or -1.

        If there is none, all that was read of these rows is as it was at that time.
        """
        self.c_check_rows(rows)
        cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(rows)
        cdef intp_t k, number, slot, n = cnp.PyArray_DIM(rows, 0), found = -1
        cdef int64_t row
        cdef bint any_bound = False
        cdef Span* span
        cdef Ring ring
        for number in range(self.width):
            span = self.spans + number
            if not span.is_used:
                continue
            ring = self.c_ring(number)
            span.bound = ring.c_bound()
            any_bound |= span.bound > ring.state[WRITTEN] - span.stored
        for k in range(n if any_bound else 0):
            span = self.spans + (values[k] & self.mask)
            slot = values[k] >> self.bits
            row = span.start + slot - (0 if slot < span.head else span.capacity)
            if row < span.bound:
                found = values[k] & self.mask
        for number in range(self.width):
            if self.spans[number].is_used:
                ring = self.c_ring(number)
                if (
                    ring.live[EDITS] != ring.live_edits or ring.live[CLEARS] != ring.state[CLEARS]
                    or ring.changes[0] != ring.seen
                ):
                    found = number
        return found


cdef inline void c_collect(
    char* out, const char** records, intp_t offset, intp_t size, intp_t n
) noexcept nogil:
    """out[k] = the value at an offset in records[k]."""
    cdef intp_t k
    if size == 4:
        for k in range(n):
            memcpy(out + 4 * k, records[k] + offset, 4)
    elif size == 8:
        for k in range(n):
            memcpy(out + 8 * k, records[k] + offset, 8)
    elif size == 16:
        for k in range(n):
            memcpy(out + 16 * k, records[k] + offset, 16)
    elif size == 1:
        for k in range(n):
            out[k] = (records[k] + offset)[0]
    else:
        for k in range(n):
            memcpy(out + size * k, records[k] + offset, size)
