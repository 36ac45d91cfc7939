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
from cpprb_like._core cimport CLEARS, EDITS, HANDLE_BASE, NBYTES, OFFSET, STRIDE, Ring
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

    cdef int c_check_rows(self, rows) except -1:
        """Raise unless these are numbers of rows, in a dense 1-d array of intp."""
        c_check_array(rows, "rows", cnp.NPY_INTP, -1)
        cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(rows)
        cdef intp_t k, number
        for k in range(cnp.PyArray_DIM(rows, 0)):
            number = values[k] & self.mask
            if (
                values[k] < 0 or number >= self.width or self.rings[number] is None
                or values[k] >> self.bits >= self.c_ring(number).c_stored()
            ):
                raise IndexError(f"rows[{k}]: no row has the number {values[k]}")
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
        """Gather rows into dense arrays of the right size."""
        cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(rows)
        cdef intp_t k, n = cnp.PyArray_DIM(rows, 0), number
        cdef Ring ring = None
        cdef Column column
        cdef char* out
        cdef const char** records = <const char**> malloc(2 * n * sizeof(char*))
        cdef const char** bases = <const char**> malloc(self.width * sizeof(char*))
        if records == NULL or bases == NULL:
            free(records)
            free(bases)
            raise MemoryError("no memory left to gather rows")
        for number in range(self.width):
            bases[number] = NULL
            if self.rings[number] is not None:
                ring = self.c_ring(number)
                bases[number] = <const char*> &ring.arena[0]
        for k in range(n):
            records[k] = bases[values[k] & self.mask] + (
                ring.record_offset + (values[k] >> self.bits) * ring.record_stride
            )
        for k in range(len(arrays)):
            column = <Column> columns[k]
            out = <char*> cnp.PyArray_DATA(<cnp.ndarray> arrays[k])
            if column.place < ring.in_record:
                c_collect(
                    out, records, ring.table[column.place, OFFSET] - ring.record_offset,
                    ring.table[column.place, NBYTES], n,
                )
            else:
                self.c_fill_block(ring, out, bases, records + n, column.place, values, n)
        free(records)
        free(bases)
        return 0

    cdef void c_fill_block(
        self, Ring ring, char* out, const char** bases, const char** wholes, intp_t place,
        const intp_t* rows, intp_t n,
    ) noexcept:
        """Gather a column that lies in a block of its own."""
        cdef Values values
        cdef intp_t k
        for k in range(n):
            wholes[k] = bases[rows[k] & self.mask] + (
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
        cdef intp_t k, number, n = cnp.PyArray_DIM(rows, 0), found = -1
        cdef int64_t last
        cdef Ring ring
        cdef int64_t* bounds = <int64_t*> malloc(self.width * sizeof(int64_t))
        cdef intp_t* counts = <intp_t*> malloc(self.width * sizeof(intp_t))
        if bounds == NULL or counts == NULL:
            free(bounds)
            free(counts)
            raise MemoryError("no memory left to look at rows")
        for number in range(self.width):
            counts[number] = 0
            bounds[number] = 0
            if self.rings[number] is not None:
                bounds[number] = self.c_ring(number).c_bound()
        for k in range(n):
            number = values[k] & self.mask
            counts[number] += 1
            if self.c_ring(number).c_row_at(values[k] >> self.bits) < bounds[number]:
                found = number
        for number in range(self.width):
            if counts[number] and self.rings[number] is not None:
                ring = self.c_ring(number)
                last = ring.live[EDITS]
                if (
                    last != ring.live_edits or ring.live[CLEARS] != ring.state[CLEARS]
                    or ring.changes[0] != ring.seen
                ):
                    found = number
        free(bounds)
        free(counts)
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
