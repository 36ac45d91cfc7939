"""Rows that other processes write: followed, and read as those of one ring.

The rows are shared; what is derived of them is not. A ring that follows has a header, flags and an
index of its own. ``Follower.sync`` moves these on, as if the new rows had been added in this process.
Between two calls nothing changes but bytes of rows, and ``Ring.holds`` says whether those that were
read were still there: a row may be read until the other process reserves its place for a newer one.
Nothing is written to the shared memory, and no call waits for the writer.

``Followers`` are several of them. A row has a number: its slot, and in the low bits which ring it is
in. Stored values of several rings are copied in one pass, each row to its place. What is computed of
the rows around each is read ring by ring, and then put in its places.

Compiled because every draw of a learner follows, reads and checks. Not here: where the memory is from
(``_shards``), what the writer does for its followers (``_core``), which rows are drawn
(``_together``), and further tries when rows were written over while they were read (``_sharded``).
"""

cimport cython
cimport numpy as cnp
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from cpprb_like._machine.aligned cimport c_aligned, c_empty, c_numbers
from cpprb_like._c.arrays cimport c_check_array
from cpprb_like._machine.blocks cimport Values, c_gather_values_beside_actors
from cpprb_like._c.copying cimport c_gather_at, c_move, c_prefetch_rows
from cpprb_like._c.fences cimport c_read_fence
from cpprb_like._c.typedefs cimport int64_t, intp_t, uint8_t
from cpprb_like._core cimport (
    ABSENT, ABSENT_ROWS, CLEARS, EDITS, END, EPISODE_LENS, HANDLE_BASE, LEFT_OUT, NBYTES, OFFSET,
    RESERVED, STRIDE, WRITTEN, Ring,
)
from cpprb_like._rows.chained cimport Chain, c_close
from cpprb_like._rows.column cimport Column
from cpprb_like._rows.gather cimport c_check_arrays, c_new_array
from cpprb_like.buffers._entry cimport SampleOptions

import numpy as np

from cpprb_like.buffers._parts import Parts

cnp.import_array()

cdef enum:
    CHUNK = 32               # rows that are followed at once
    TRIES = 16               # to read words of a header that belong together
    HEADER_TRIES = 4096      # ... and all words of it
    READ_CHUNK = 32          # rows whose records are fetched while those before are copied
    UNLOCKED_NBYTES = 32768  # smaller gathers keep the lock: taking it back costs more


def read_header(cnp.ndarray state not None):
    """The words of a header that another process writes, as they were at one time: a copy.

    None if they changed again and again while they were read.
    """
    c_check_array(state, "state", cnp.NPY_INT64, -1)
    cdef const volatile int64_t* live = <const volatile int64_t*> cnp.PyArray_DATA(state)
    cdef intp_t k, n = cnp.PyArray_DIM(state, 0)
    cdef cnp.ndarray found = c_numbers(1, &n, cnp.NPY_INT64)
    cdef int64_t* words = <int64_t*> cnp.PyArray_DATA(found)
    cdef int _
    for _ in range(HEADER_TRIES):
        for k in range(n):
            words[k] = live[k]
        c_read_fence()
        for k in range(n):
            if words[k] != live[k]:
                break
        else:
            return found
        c_read_fence()
    return None


@cython.final
cdef class Follower:
    """Has a ring follow the one that another process writes to, over the same memory.

    Parameters
    ----------
    ring : Ring
        Empty, made with ``flags`` and a ``state`` of its own.
    state : ndarray of int64
        The header of the other one, in shared memory.
    flags : ndarray of uint8, shape (capacity,)
        The flags of the other one: a view of its records.
    changes : ndarray of int64, shape (1,)
        Change counter of the writer: +2 after an edit that cannot be followed row by row: it hid
        rows, or set right what another process left half-done, or keeps values in other files. The
        counter is odd during the edit.
    reopen : callable
        ``reopen(base, oldest, stop)`` opens the files beside the rows again.
    """

    def __cinit__(
        self, Ring ring not None, cnp.ndarray state not None, cnp.ndarray flags not None,
        cnp.ndarray changes not None, reopen,
    ):
        c_check_array(state, "state", cnp.NPY_INT64, EPISODE_LENS + ring.n_envs)
        c_check_array(changes, "changes", cnp.NPY_INT64, 1)
        if ring.own_flags is None or ring.live != NULL or ring.state[WRITTEN]:
            raise ValueError("ring: expected an empty one with flags of its own")
        if cnp.PyArray_TYPE(flags) != cnp.NPY_UINT8 or flags.shape[0] != ring.capacity:
            raise ValueError(f"flags: expected {ring.capacity} bytes")
        self.ring = ring
        self.memory = flags
        self.live = <const volatile int64_t*> cnp.PyArray_DATA(state)
        self.live_flags = <const uint8_t*> cnp.PyArray_DATA(flags)
        self.live_stride = cnp.PyArray_STRIDE(flags, 0)
        self.changes_memory = changes
        self.reopen = reopen
        ring.changes = <const volatile int64_t*> cnp.PyArray_DATA(changes)
        ring.seen = -1
        ring.live, ring.live_state = self.live, state
        ring.live_edits = -1

    cdef bint c_is_behind(self) noexcept nogil:
        """Whether anything has happened since the last ``sync``."""
        return (
            self.live[WRITTEN] != self.ring.state[WRITTEN]
            or self.live[EDITS] != self.ring.live_edits
            or self.ring.changes[0] != self.ring.seen
        )

    def sync(self):
        """Follow what has happened since; see ``c_sync`` for what is returned."""
        return self.c_sync()

    @property
    def written(self):
        """Rows that the other process has written since its last clear."""
        return self.live[WRITTEN]

    @property
    def bound(self):
        """The oldest row that the other process does not write over."""
        return self.ring.c_bound()

    @property
    def first(self):
        """The oldest row that is not left out."""
        return max(self.ring.c_first(), self.left_out)

    @property
    def is_busy(self):
        """Whether the other process is editing rows; so it was, if it is dead."""
        return (self.live[EDITS] | self.ring.changes[0]) & 1 != 0

    cdef int c_sync(self) except -1:
        """Follow what has happened since.

        Returns 0; or ``BUSY``, and what was followed is older, while rows are being edited. Cost: in
        proportion to the rows that came; to all rows after an edit that cannot be followed row by row.
        """
        cdef intp_t _
        cdef int found = BUSY
        if self.is_inside:  # a thread that opens files
            return BUSY
        if not self.c_is_behind():
            return 0
        self.is_inside = True
        try:
            for _ in range(TRIES):
                found = self.c_try()
                if found != BUSY:
                    break
        finally:
            self.is_inside = False
        return found

    cdef int c_try(self) except -1:
        """As ``c_sync``, once."""
        cdef Ring ring = self.ring
        cdef Chain chain
        cdef int64_t changes = ring.changes[0], edits, written, clears, base
        c_read_fence()
        edits = self.live[EDITS]
        c_read_fence()
        written, clears, base = self.live[WRITTEN], self.live[CLEARS], self.live[HANDLE_BASE]
        c_read_fence()
        if (edits | changes) & 1 or self.live[EDITS] != edits or ring.changes[0] != changes:
            return BUSY
        cdef bint rereads = changes != ring.seen, complete = True
        if clears != ring.state[CLEARS] or written < ring.state[WRITTEN]:
            self.c_forget(clears, base)
        elif edits != ring.live_edits and not rereads:
            self.c_follow_ends()
        ring.live_edits = edits
        cdef bint lapped = written - ring.state[WRITTEN] >= ring.capacity
        if rereads or lapped:
            self.c_reread(written)
        else:
            self.c_follow_rows(written)
        if rereads or lapped and ring.chains:  # a queue that has gone around is read again, too
            ring.seen = -1  # if it raises, the next try looks at all rows, and reads it again
            self.reopen(base, ring.c_bound(), written)
        ring.seen = changes
        for chain in ring.chains:
            complete = chain.c_follow(base, written, ring.c_bound()) and complete
        return 0 if complete else BUSY

    cdef int c_forget(self, int64_t clears, int64_t base) except -1:
        """The other process has forgotten all rows."""
        cdef Ring ring = self.ring
        self.left_out = 0
        if ring.out.count:
            ring.out.c_forget(ring.out.c_allocate())
        ring.state[CLEARS], ring.state[HANDLE_BASE] = clears, base
        ring.state[WRITTEN] = ring.state[RESERVED] = ring.state[ABSENT_ROWS] = 0
        ring.state[EPISODE_LENS:] = 0
        ring.kept_from = ring.n_open = 0
        ring.counts[:] = 0
        return 0

    cdef void c_follow_ends(self) noexcept:
        """Rows were edited: the newest of each stream, which we know, may be the last of its episode.

        No other flag changes without ``changes``.
        """
        cdef Ring ring = self.ring
        cdef intp_t stream, slot
        cdef int64_t row
        cdef uint8_t flags
        ring.c_begin_edit()
        for stream in range(ring.n_envs):
            row = ring.c_newest_of(stream)
            if row < 0:
                continue
            slot = <intp_t> (row % ring.capacity)
            flags = self.live_flags[slot * self.live_stride]
            if row < ring.c_bound() or flags == ring.c_flags(slot)[0]:
                continue
            ring.c_flags(slot)[0] = flags
            if flags & END:
                while ring.counts[stream]:
                    ring.c_complete(stream)
                ring.state[EPISODE_LENS + stream] = 0
        if ring.lookahead:
            ring.c_drop(ring.state[WRITTEN])
        ring.c_end_edit()

    cdef int c_follow_rows(self, int64_t written) except -1:
        """Follow the rows before ``written``: as ``Ring.c_write_records``, whose flags are there."""
        cdef Ring ring = self.ring
        cdef uint8_t[CHUNK] flags
        cdef uint8_t any_flag
        cdef int64_t first = ring.state[WRITTEN]
        cdef intp_t slot = <intp_t> (first % ring.capacity), n = <intp_t> (written - first)
        cdef intp_t start = 0, count, k, stored = ring.c_stored()
        while start < n:
            count = min(min(n - start, CHUNK), ring.capacity - slot)
            any_flag = 0
            for k in range(count):
                flags[k] = self.live_flags[(slot + k) * self.live_stride]
                any_flag |= flags[k]
            if any_flag & ABSENT:
                ring.c_expect_absent()
            ring.c_count_steps(flags, start, count, any_flag)
            if ring.lookahead:
                for k in range(count):
                    ring.c_follow(first + start + k, slot + k, flags[k])
            if any_flag & ABSENT or ring.state[ABSENT_ROWS]:
                ring.c_count_absent(flags, slot, count, stored)
            c_move(<char*> ring.c_flags(slot), ring.flag_stride, <char*> flags, 1, 1, count)
            for k in range(count if any_flag & ABSENT else 0):
                if flags[k] & ABSENT:
                    ring.c_join_run(first + start + k, True)
            slot = slot + count if slot + count < ring.capacity else 0
            start += count
        ring.state[WRITTEN] = ring.state[RESERVED] = written
        return 0

    cdef int c_reread(self, int64_t written) except -1:
        """Look at all rows: as if a buffer with them had been opened."""
        cdef Ring ring = self.ring
        cdef intp_t slot
        ring.c_begin_edit()
        ring.state[WRITTEN] = ring.state[RESERVED] = written
        ring.own_flags[...] = self.memory
        self.left_out = 0
        ring.state[ABSENT_ROWS] = 0
        for slot in range(ring.c_stored()):
            ring.state[ABSENT_ROWS] += (ring.c_flags(slot)[0] & ABSENT) != 0
        for slot in range(ring.n_envs):
            ring.state[EPISODE_LENS + slot] = self.live[EPISODE_LENS + slot]
        ring.c_rebuild()
        ring.c_end_edit()
        return 0

    def leave_out(self, int64_t row):
        """Leave out the rows before this one, as if they were absent.

        For rows that another process is about to write over, after a read of them came too late.
        """
        cdef Ring ring = self.ring
        cdef int64_t first = max(ring.state[WRITTEN] - ring.c_stored(), self.left_out), other
        cdef intp_t slot
        row = min(row, ring.state[WRITTEN])
        if ring.lookahead:
            while ring.kept_from < row:
                ring.c_drop_oldest()
            return
        ring.c_expect_absent()
        ring.c_begin_edit()
        for other in range(first, row):
            slot = <intp_t> (other % ring.capacity)
            if not ring.c_is_absent(slot):
                ring.c_join_run(other, False)
                # Other bits may be those of a newer row, which had begun to take the place of this.
                ring.c_flags(slot)[0] = ABSENT | LEFT_OUT
                ring.state[ABSENT_ROWS] += 1
                ring.out.c_add(slot)
        ring.c_log_hidden(first, row - 1, 1)
        self.left_out = max(self.left_out, row)
        ring.c_end_edit()


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
        self.names = Parts(width)
        self.bits = self.names.bits
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

    cdef list c_parts(self, cnp.ndarray rows, intp_t* places):
        """Rows that were checked, ring by ring: a list of the number of a ring, and its slots.

        ``places[k]`` becomes the place of ``rows[k]`` among the rows in this order.
        """
        cdef intp_t k, number, start = 0, n = cnp.PyArray_DIM(rows, 0)
        cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(rows)
        cdef cnp.ndarray ordered = c_numbers(1, &n, cnp.NPY_INTP)
        cdef intp_t* slots = <intp_t*> cnp.PyArray_DATA(ordered)
        cdef intp_t* stops = <intp_t*> calloc(self.mask + 2, sizeof(intp_t))
        cdef list found = []
        if stops == NULL:
            raise MemoryError("no memory left to gather rows")
        for k in range(n):
            stops[(values[k] & self.mask) + 1] += 1
        for number in range(self.mask):
            stops[number + 1] += stops[number]
        for k in range(n):
            number = values[k] & self.mask
            places[k] = stops[number]
            slots[stops[number]] = values[k] >> self.bits
            stops[number] += 1
        for number in range(self.width):  # now each is where the rows of its ring stop
            if stops[number] > start:
                found.append((number, ordered[start:stops[number]]))
            start = stops[number]
        free(stops)
        return found

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
            span.clears, span.edits = ring.state[CLEARS], ring.live_edits
            span.changes = ring.seen

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
        return c_row_of(self.spans + (row & self.mask), row >> self.bits)

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

    cdef dict c_read(self, cnp.ndarray rows, tuple columns, list arrays, intp_t* late):
        """The values of columns at the given rows, by name.

        ``columns`` are those of any of the rings: all have the same layout. ``arrays`` are the
        caller's, one for each column, as in ``gather.take``; by default they are fresh.

        ``late`` becomes the number of a ring of which one of the rows has been written over since it
        was followed, or -1.
        """
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
        late[0] = self.c_overtaken(self.spans, <const intp_t*> cnp.PyArray_DATA(rows), n)
        return batch

    cdef dict c_read_parts(
        self, cnp.ndarray rows, list readers, names, bint located, dict arrays, intp_t* late
    ):
        """A batch of rows; those in slots of one ring are ``reader.read(slots, names, located)``.

        That is a dict; or None, if a row was seen to be written over. The batch of no rows is empty.
        ``arrays`` are the caller's, by column. ``late`` is as in ``c_read``.
        """
        self.c_check_rows(rows, NULL)
        cdef intp_t n = cnp.PyArray_DIM(rows, 0)
        cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(rows)
        cdef dict batch
        cdef list parts = []
        if n == 0:
            return {}
        # Layers of the caller may draw from the same rings, which looks at them anew.
        cdef Span* spans = <Span*> malloc((self.mask + 1) * sizeof(Span) + n * sizeof(intp_t))
        cdef intp_t* places = <intp_t*> (spans + self.mask + 1)
        if spans == NULL:
            raise MemoryError("no memory left to gather rows")
        memcpy(spans, self.spans, (self.mask + 1) * sizeof(Span))
        try:
            for number, slots in self.c_parts(rows, places):
                part = readers[number].read(slots, names, located)
                if part is None:
                    late[0] = number
                    return None
                parts.append((number, len(slots), part))
            batch = self.c_join(parts, values, places, n, arrays)
        except (ValueError, IndexError):
            late[0] = self.c_overtaken(spans, values, n)
            if late[0] < 0:  # the rows that were read are there, so the error is theirs
                raise
            return None
        else:
            late[0] = self.c_overtaken(spans, values, n)
            return batch
        finally:
            free(spans)

    cdef dict c_join(
        self, list parts, const intp_t* rows, const intp_t* places, intp_t n, dict arrays
    ):
        """A batch of the columns of its parts, each row in its place; see ``c_parts``.

        A part is the number of its ring, its number of rows, and its columns.
        """
        cdef dict first = parts[0][2], batch = {}, part
        cdef cnp.ndarray out, values
        cdef intp_t k, number, count, start, nbytes
        cdef const char** bases
        cdef const char** wholes
        if len(parts) == 1 and arrays is None:
            return first  # the rows of one ring are in their order
        bases = <const char**> malloc((self.mask + 1 + n) * sizeof(char*))
        if bases == NULL:
            raise MemoryError("no memory left to gather rows")
        wholes = bases + self.mask + 1
        try:
            for name in first:
                values = first[name]
                out = None if arrays is None else arrays.get(name)
                if out is None:
                    out = c_like(values, n)
                start = 0
                for number, count, part in parts:
                    values = part[name]
                    c_check_part(name, values, out, count)
                    if not cnp.PyArray_IS_C_CONTIGUOUS(values) or values.dtype != out.dtype:
                        values = part[name] = np.ascontiguousarray(values, out.dtype)
                    nbytes = cnp.PyArray_NBYTES(values) // count
                    bases[number] = cnp.PyArray_BYTES(values) - start * nbytes
                    start += count
                if out.dtype.hasobject:  # of a layer of the caller
                    joined = np.concatenate([part[name] for _, _, part in parts])
                    for k in range(n):
                        out[k] = joined[places[k]]
                    batch[name] = out
                    continue
                for k in range(n):
                    wholes[k] = bases[rows[k] & self.mask] + places[k] * nbytes
                if n * nbytes < UNLOCKED_NBYTES:
                    c_gather_at(cnp.PyArray_BYTES(out), wholes, 0, nbytes, n)
                else:
                    with nogil:
                        c_gather_at(cnp.PyArray_BYTES(out), wholes, 0, nbytes, n)
                batch[name] = out
        finally:
            free(bases)
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

    cdef intp_t c_overtaken(self, Span* spans, const intp_t* rows, intp_t n) noexcept:
        """A ring of which one of the rows has been written over since it was followed, or -1.

        If there is none, all that was read of these rows is as it was at that time. ``spans`` are
        those of ``c_look`` at that time. A ring that was followed again since, and has chains, is
        one of those that were written over: chains know the rows that they followed last.
        """
        cdef intp_t k, number, found = -1
        cdef bint any_bound = False
        cdef Span* span
        cdef Ring ring
        cdef Chain chain
        for number in range(self.width):
            span = spans + number
            if not span.is_used:
                continue
            ring = self.c_ring(number)
            span.bound = ring.c_bound()
            any_bound |= span.bound > span.start + span.head - span.stored
        for k in range(n if any_bound else 0):
            span = spans + (rows[k] & self.mask)
            if c_row_of(span, rows[k] >> self.bits) < span.bound:
                found = rows[k] & self.mask
        for number in range(self.width):
            span = spans + number
            if span.is_used:
                ring = self.c_ring(number)
                if (
                    ring.live[EDITS] != span.edits or ring.live[CLEARS] != span.clears
                    or ring.changes[0] != span.changes
                ):
                    found = number
                for chain in ring.chains:
                    if (
                        not chain.c_promises_hold()
                        or ring.state[WRITTEN] != span.start + span.head
                    ):
                        found = number
        return found


cdef inline int64_t c_row_of(const Span* span, intp_t slot) noexcept nogil:
    """The row id of a slot."""
    return span.start + slot - (0 if slot < span.head else span.capacity)


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


cdef int c_check_part(name, cnp.ndarray values, cnp.ndarray out, intp_t count) except -1:
    """Raise unless a column of a part has so many rows, of the shape of those of a batch."""
    cdef intp_t k, ndim = cnp.PyArray_NDIM(values)
    cdef bint fits = ndim > 0 and ndim == cnp.PyArray_NDIM(out)
    fits = fits and cnp.PyArray_DIM(values, 0) == count
    for k in range(1, ndim if fits else 0):
        fits = fits and cnp.PyArray_DIM(values, k) == cnp.PyArray_DIM(out, k)
    if not fits:
        shape = (count, *[out.shape[k] for k in range(1, out.ndim)])
        found = tuple([values.shape[k] for k in range(ndim)])
        raise ValueError(f"column {name!r}: expected shape {shape}, got {found}")
    return 0


cdef cnp.ndarray c_like(cnp.ndarray values, intp_t n):
    """A fresh array for n rows of the kind of these."""
    cdef intp_t[cnp.NPY_MAXDIMS] dims
    cdef intp_t k, ndim = cnp.PyArray_NDIM(values)
    if ndim == 0 or values.dtype.hasobject:
        return np.empty((n, *(<object> values).shape[1:]), values.dtype)
    for k in range(ndim):
        dims[k] = cnp.PyArray_DIM(values, k)
    dims[0] = n
    return c_empty(values.dtype, ndim, dims)


def attempt(
    Followers group not None, follow, look, choose, rng, SampleOptions options not None, intp_t n,
    tuple columns, list readers, names, dict arrays, draws,
):
    """A batch of all rings as they are now; None if some of its rows were written over in between.

    Then ``group.late`` is the number of a ring that has lost a row.

    Parameters
    ----------
    group : Followers
        The rings.
    follow, look : callable
        ``follow()`` takes in new rows. If it is None, ``Followers.follow`` does, and ``look(busy)``
        waits for the rings whose numbers that gave.
    choose : callable
        ``choose(rng, options, n)`` chooses n rows, and gives further columns.
    rng, options, n
        Its arguments: ``SampleOptions``, and a number of rows. With ``options.indexes`` the batch
        has a column ``indexes`` with any sampler, and the readers locate rows.
    columns : tuple of Column, optional
        The columns to read, where rows are read as they are stored; otherwise None.
    readers, names
        What reads the rows of each ring, and the names of fields: see ``Followers.c_read_parts``.
    arrays : dict of ndarray, optional
        Those of the caller, by column, in the order of the columns.
    draws : Draws, optional
        Whose state is put back if there is no batch; None if a draw changes none.
    """
    cdef intp_t late = -1
    cdef bint named = options.indexes
    cdef dict batch = None
    cdef list busy
    if follow is None:
        busy = group.c_follow()
        if busy:
            look(busy)
    else:
        follow()
    noted = None if draws is None else draws.noted()
    try:
        rows, extra = choose(rng, options, n)
        if named and "indexes" not in extra:
            extra = {**extra, "indexes": group.handles(rows)}
        if columns is not None:
            batch = group.c_read(
                rows, columns, None if arrays is None else list(arrays.values()), &late
            )
        else:
            batch = group.c_read_parts(rows, readers, names, named, arrays, &late)
        if late >= 0:
            batch = None
    finally:
        if batch is None and noted is not None:
            draws.put_back(noted)
    if batch is None:
        group.late = late
        return None
    for name, values in extra.items():
        batch[name] = c_aligned(values)
    return batch
