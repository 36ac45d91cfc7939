"""The ring that holds the rows.

It writes rows into memory that it is given, and knows which rows follow one another and which can
be drawn. Compiled because moving a small row costs less than any Python statement. Not here: where
the memory comes from (``storage``), what a row means (``schema``), how rows are read (``_take``),
which are drawn (``_uniform``, ``samplers``), and the calls that users make (``_entry``,
``buffers``).
"""

cimport cython
cimport numpy as cnp
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from cpprb_like._arrays cimport c_check_array
from cpprb_like._chain cimport Chain, Rows
from cpprb_like._column cimport Column
from cpprb_like._copy cimport c_copy, c_scatter, c_swap
from cpprb_like._pool cimport Pool
from cpprb_like._typedefs cimport int64_t, intp_t, uint8_t

import numpy as np

cnp.import_array()

cdef enum:  # columns of Ring.ends
    END_PLACE = 0
    END_SIGN_BYTE = 1
    END_FLAGS = 2

cdef enum:
    WRITE_CHUNK = 32              # rows whose records stay in the first cache meanwhile

# The same numbers for schema.py.
N_STATE_WORDS = EPISODE_LENS
FLAG_TERMINATED = END | TERMINATED
FLAG_TRUNCATED = END | TRUNCATED
FLAG_DONE = DONE
FLAG_END = END
FLAG_ABSENT = ABSENT


@cython.final
@cython.freelist(8)
cdef class Moment:
    """What was true of a ring at one time: see ``Ring.now`` and ``Ring.holds``."""


@cython.final
cdef class Ring:
    """Rows in memory that somebody else allocated.

    Parameters
    ----------
    columns : sequence of Column
        The fields, in declared order.
    arena : ndarray of uint8
        All memory of the buffer but the fields of Python objects.
    state : ndarray of int64, shape (5 + n_envs,)
        Words of the header of the arena, see ``_core.pxd``.
    record : tuple of int
        Offset and stride of the records; the last byte of a record holds the flags of its row.
    ends : sequence of (int, int, int)
        For each end field: number of the column, the byte of it that holds a sign bit (-1 for
        none), and its flag bits.
    capacity, n_envs : int
        Rows held, and streams that they belong to in turn.
    chains : sequence of Chain
        Fields of ``columns`` that are not stored as they are.
    ahead : int
        A row can be drawn when so many rows of its episode follow it, or all.
    """

    def __cinit__(
        self, columns, cnp.ndarray arena, cnp.ndarray state, record, ends, *, capacity, n_envs,
        chains=(), ahead=0,
    ):
        self.capacity = capacity
        self.n_envs = n_envs
        self.columns = tuple(columns)
        self.record_offset, self.record_stride = record
        self.arena = arena
        self.state = state
        self.pool = Pool()
        self.chains = tuple(chains)
        self.ahead = ahead
        chained = {chain.name: chain for chain in self.chains}
        self.stored_columns = tuple(
            [column for column in self.columns if column.name not in chained]
        )
        self.boxed = tuple([column for column in self.stored_columns if column.objects is not None])
        plain = [column for column in self.stored_columns if column.objects is None]
        # Columns of the record first, so that one loop prefetches and copies them chunk by chunk.
        plain.sort(key=lambda column: not self._in_record(column))
        derived = [column for column in self.columns if column.name in chained]
        for place, column in enumerate([*plain, *self.boxed, *derived]):
            (<Column> column).place = place
            if column.name in chained:
                (<Chain> chained[column.name]).place = place
        self.ends = np.array(
            [((<Column> self.columns[number]).place, byte, flags) for number, byte, flags in ends],
            np.intp,
        ).reshape(len(ends), 3)
        self.in_record = sum(map(self._in_record, plain))
        self.table = np.array(
            [(column.offset, column.stride, column.nbytes) for column in plain], np.intp
        ).reshape(len(plain), 3)
        self.row_nbytes = sum(column.nbytes for column in self.columns)

    def _in_record(self, Column column):
        return self.record_offset <= column.offset < self.record_offset + self.record_stride

    @property
    def written(self):
        """Rows written since the last clear."""
        return self.state[WRITTEN]

    @property
    def stored(self):
        """Slots in use, absent rows included."""
        return self.c_stored()

    @property
    def revision(self):
        """Clears so far."""
        return self.state[REVISION]

    @property
    def absent(self):
        """Slots in use whose row cannot be drawn: it holds no step, or waits for rows to follow."""
        return self.c_stored() - self.c_drawable()

    def __len__(self):
        return self.c_drawable()

    cdef intp_t c_drawable(self) noexcept nogil:
        """How many rows can be drawn."""
        return self.c_stored() - self.c_absent() - self.c_open()

    cdef intp_t c_open(self) noexcept nogil:
        """How many rows wait for rows to follow them: the newest of each unfinished episode."""
        cdef intp_t stream, count = 0
        if self.ahead == 0:
            return 0
        if self.state[ABSENT_ROWS]:
            return self.c_waiting(NULL)
        for stream in range(self.n_envs):
            count += min(self.ahead, <intp_t> self.state[EPISODE_LENS + stream])
        return count

    cdef intp_t c_waiting(self, int64_t* rows) noexcept nogil:
        """How many rows wait, at most ``ahead * n_envs``; their row ids go to ``rows`` if given."""
        cdef int64_t row, written = self.state[WRITTEN], oldest = written - self.c_stored()
        cdef intp_t stream, left, count = 0
        for stream in range(self.n_envs if self.ahead else 0):
            left = min(self.ahead, <intp_t> self.state[EPISODE_LENS + stream])
            row = written - self.n_envs + stream
            while left and row >= oldest:
                if not self.c_is_absent(<intp_t> (row % self.capacity)):
                    if rows != NULL:
                        rows[count] = row
                    count += 1
                    left -= 1
                row -= self.n_envs
        return count

    cdef bint c_can_draw(self, intp_t slot) noexcept nogil:
        """Whether the row in a slot in use can be drawn."""
        return not (self.c_is_absent(slot) or (self.ahead and self.c_is_open(slot)))

    cdef bint c_is_open(self, intp_t slot) noexcept nogil:
        """Whether a row waits for rows to follow it."""
        cdef int64_t row = self.c_row_at(slot)
        cdef intp_t _
        if not self.state[ABSENT_ROWS] and row + self.ahead * self.n_envs < self.state[WRITTEN]:
            return False
        for _ in range(self.ahead):
            if self.c_flags(<intp_t> (row % self.capacity))[0] & END:
                return False
            row = self.c_next(row, self.state[WRITTEN])
            if row < 0:
                return True
        return False

    cdef int64_t c_next(self, int64_t row, int64_t written) noexcept nogil:
        """The next row of the stream that holds a step, -1 if there is none among ``written``."""
        row += self.n_envs
        while row < written and self.c_is_absent(<intp_t> (row % self.capacity)):
            row += self.n_envs
        return row if row < written else -1

    cdef int64_t c_row_at(self, intp_t slot) noexcept nogil:
        """The row id of the row in a slot in use."""
        cdef int64_t last = self.state[WRITTEN] - 1
        return last - (last - slot) % self.capacity

    cdef intp_t c_stored(self) noexcept nogil:
        cdef int64_t written = self.state[WRITTEN]
        return <intp_t> written if written < self.capacity else self.capacity

    cdef intp_t c_absent(self) noexcept nogil:
        return <intp_t> self.state[ABSENT_ROWS]

    cdef bint c_is_absent(self, intp_t slot) noexcept nogil:
        return self.c_flags(slot)[0] & ABSENT

    cdef intp_t c_newest_from(self, intp_t n) noexcept nogil:
        """The slot of the oldest of the n newest rows that wait for no other; one environment."""
        return self.c_oldest_of(n + self.c_open())

    cdef intp_t c_oldest_of(self, intp_t newest) noexcept nogil:
        """The slot of the oldest of so many newest rows, whatever they are."""
        return <intp_t> ((self.state[WRITTEN] - newest) % self.capacity)

    cdef uint8_t* c_record(self, intp_t slot) noexcept nogil:
        return &self.arena[self.record_offset + slot * self.record_stride]

    cdef uint8_t* c_flags(self, intp_t slot) noexcept nogil:
        return self.c_record(slot) + self.record_stride - 1

    # ------------------------------------------------------------------ writing

    cdef intp_t c_publish(self, char** rows, intp_t n, const uint8_t* present) noexcept:
        """Write n rows and make them visible; no Python code runs. Returns the slot of the first.

        ``rows`` are the values of each column, dense. Values of Python objects are exchanged with
        those in the ring, so that the old ones die with the caller's array, after the rows are
        published.
        """
        cdef int64_t written = self.state[WRITTEN]
        cdef intp_t first = <intp_t> (written % self.capacity)
        cdef intp_t skip = n - self.capacity if n > self.capacity else 0
        cdef intp_t slot = (first + skip) % self.capacity if skip else first
        cdef intp_t run = min(n - skip, self.capacity - slot)
        cdef intp_t number
        cdef const intp_t* row
        cdef Column column
        cdef char* objects
        cdef char* values
        if n == 1 and self.n_envs == 1 and present == NULL and self.state[ABSENT_ROWS] == 0:
            self.c_write_record(rows, slot)
        else:
            self.c_write_records(rows, n, skip, slot, present)
        for number in range(self.in_record, self.table.shape[0]):
            row = &self.table[number, 0]
            memcpy(
                &self.arena[0] + row[OFFSET] + slot * row[NBYTES],
                rows[number] + skip * row[NBYTES],
                run * row[NBYTES],
            )
            memcpy(
                &self.arena[0] + row[OFFSET],
                rows[number] + (skip + run) * row[NBYTES],
                (n - skip - run) * row[NBYTES],
            )
        for column in self.boxed:
            objects = <char*> cnp.PyArray_DATA(column.objects)
            values = rows[column.place] + skip * column.nbytes
            c_swap(objects + slot * column.nbytes, values, run * column.nbytes)
            c_swap(objects, values + run * column.nbytes, (n - skip - run) * column.nbytes)
        if self.chains:
            self.c_write_chains(rows, n)
        self.state[WRITTEN] = written + n
        return first

    cdef int c_prepare(self, char** rows, intp_t n) except -1:
        """Make room for what n rows will have kept aside, before anything is written."""
        cdef Chain chain
        cdef Rows given = self.c_describe(rows, n)
        for chain in self.chains:
            chain.c_reserve(&given)
        return 0

    cdef Rows c_describe(self, char** rows, intp_t n) noexcept:
        cdef Rows given
        given.values = rows
        given.n = n
        given.first = self.state[WRITTEN]
        given.oldest = given.first + n - self.capacity
        given.flags = self.c_flags(0)
        given.flag_stride = self.record_stride
        given.absent = ABSENT
        return given

    cdef void c_write_chains(self, char** rows, intp_t n) noexcept:
        cdef Chain chain
        cdef Rows given = self.c_describe(rows, n)
        for chain in self.chains:
            chain.c_write(&given)

    cdef object c_publish_ahead(self, char** rows, intp_t n, const uint8_t* present):
        """As ``c_publish``, for a ring whose rows wait; returns the slot of the first row that can
        be drawn now and could not before, or None.
        """
        cdef int64_t* waited = <int64_t*> malloc((1 + self.ahead * self.n_envs) * sizeof(int64_t))
        cdef int64_t row, first = -1, written = self.state[WRITTEN], oldest
        cdef intp_t k, count
        if waited == NULL:
            raise MemoryError("no memory left to add rows")
        count = self.c_waiting(waited)
        self.c_publish(rows, n, present)
        oldest = self.state[WRITTEN] - self.c_stored()
        for k in range(count):
            row = waited[k]
            if row >= oldest and (first < 0 or row < first):
                first = row if self.c_can_draw(<intp_t> (row % self.capacity)) else first
        free(waited)
        row = max(written, oldest)
        while first < 0 and row < self.state[WRITTEN]:
            first = row if self.c_can_draw(<intp_t> (row % self.capacity)) else first
            row += 1
        return None if first < 0 else first % self.capacity

    cdef void c_write_record(self, char** rows, intp_t slot) noexcept nogil:
        """As ``c_write_records`` for the commonest call: one step of one environment, none absent."""
        cdef intp_t number
        cdef const intp_t* row
        cdef char* base = <char*> &self.arena[0]
        cdef uint8_t* flags = self.c_flags(slot)
        for number in range(self.in_record):
            row = &self.table[number, 0]
            c_copy(base + row[OFFSET] + slot * row[STRIDE], rows[number], row[NBYTES])
        self.c_find_flags(rows, 0, 1, NULL, flags)
        self.state[EPISODE_LENS] = 0 if flags[0] & END else self.state[EPISODE_LENS] + 1

    cdef void c_write_records(
        self, char** rows, intp_t n, intp_t skip, intp_t slot, const uint8_t* present
    ) noexcept nogil:
        """Write the records of rows ``skip`` to ``n``, and count on the episodes over all n.

        Chunk by chunk, so that records stay in the first cache while their columns are written: with
        chunks of 128 rows instead of 32, 1024 steps took 6.8 us and not 6.0.
        """
        cdef uint8_t[WRITE_CHUNK] flags
        cdef intp_t number, count, start = 0, stored = self.c_stored()
        cdef const intp_t* row
        cdef char* base = <char*> &self.arena[0]
        cdef uint8_t any_flag
        while start < n:
            count = min(n - start, WRITE_CHUNK)
            count = min(count, self.capacity - slot if start >= skip else skip - start)
            any_flag = self.c_find_flags(rows, start, count, present, flags)
            if any_flag & (END | ABSENT) or self.n_envs > 1:
                self.c_count_steps(flags, start, count, any_flag)
            else:
                self.state[EPISODE_LENS] += count
            if start >= skip:
                if any_flag & ABSENT or self.state[ABSENT_ROWS]:
                    self.c_count_absent(flags, slot, count, stored)
                for number in range(self.in_record):
                    row = &self.table[number, 0]
                    c_scatter(
                        base + row[OFFSET] + slot * row[STRIDE], row[STRIDE], row[NBYTES],
                        rows[number] + start * row[NBYTES], count,
                    )
                c_scatter(<char*> self.c_flags(slot), self.record_stride, 1, <char*> flags, count)
                slot = slot + count if slot + count < self.capacity else 0
            start += count

    cdef void c_count_steps(
        self, const uint8_t* flags, intp_t start, intp_t n, uint8_t any_flag
    ) noexcept nogil:
        """Carry the lengths of the streams' episodes on over the rows of a chunk."""
        cdef intp_t row, stream
        if self.n_envs == 1 and not any_flag & ABSENT:
            row = n
            while not flags[row - 1] & END:
                row -= 1
            self.state[EPISODE_LENS] = n - row
            return
        stream = start % self.n_envs
        for row in range(n):
            if flags[row] & END:
                self.state[EPISODE_LENS + stream] = 0
            elif not flags[row] & ABSENT:
                self.state[EPISODE_LENS + stream] += 1
            stream = stream + 1 if stream + 1 < self.n_envs else 0

    cdef void c_count_absent(
        self, const uint8_t* flags, intp_t slot, intp_t n, intp_t stored
    ) noexcept nogil:
        """Count the absent rows that go from n slots, and those that come."""
        cdef intp_t row
        for row in range(n):
            if slot + row < stored and self.c_flags(slot + row)[0] & ABSENT:
                self.state[ABSENT_ROWS] -= 1
            if flags[row] & ABSENT:
                self.state[ABSENT_ROWS] += 1

    cdef uint8_t c_find_flags(
        self, char** rows, intp_t start, intp_t n, const uint8_t* present, uint8_t* flags
    ) noexcept nogil:
        """The flags of n rows from their end fields: any set bit but the sign of a zero counts.

        Rows that are not present are absent whatever these say. Returns the flags that some row may have.
        """
        cdef uint8_t bits, meaning, any_flag = 0
        cdef intp_t end, row, byte, nbytes
        cdef const uint8_t* value
        cdef const intp_t* spec
        memset(flags, 0, n)
        for end in range(self.ends.shape[0]):
            spec = &self.ends[end, 0]
            meaning = <uint8_t> spec[END_FLAGS]
            nbytes = self.table[spec[END_PLACE], NBYTES]
            value = <const uint8_t*> rows[spec[END_PLACE]] + start * nbytes
            if nbytes == 1:
                for row in range(n):
                    flags[row] |= meaning if value[row] else 0
                continue
            for row in range(n):
                bits = 0
                for byte in range(nbytes):
                    bits |= value[byte] & (0x7F if byte == spec[END_SIGN_BYTE] else 0xFF)
                flags[row] |= meaning if bits else 0
                value += nbytes
        for row in range(n):
            any_flag |= flags[row]
        if any_flag & DONE:
            any_flag |= END | TERMINATED
            for row in range(n):
                if flags[row] & DONE:
                    flags[row] ^= DONE
                    flags[row] |= END if flags[row] & TRUNCATED else END | TERMINATED
        if present != NULL:
            any_flag |= ABSENT
            for row in range(n):
                if not present[start + row]:
                    flags[row] = ABSENT
        return any_flag

    def end_episode(self, intp_t stream):
        """Mark the newest step of a stream as truncated, unless no episode is open."""
        if self.episode_len(stream) == 0:
            return
        cdef int64_t row = self.state[WRITTEN] - self.n_envs + stream
        while self.c_flags(<intp_t> (row % self.capacity))[0] & ABSENT:
            row -= self.n_envs
            if row < self.state[WRITTEN] - self.c_stored():
                break
        else:
            self.c_flags(<intp_t> (row % self.capacity))[0] |= END | TRUNCATED
        self.state[EPISODE_LENS + stream] = 0
        self.state[UPDATES] += 1

    def hide(self, cnp.ndarray slots not None, Moment moment not None):
        """Make the rows in the given slots, which are in use, absent; ends of episodes stay.

        Returns false, and changes nothing, if what was read at ``moment`` no longer holds.
        """
        self.c_check_slots(slots)
        if not self.c_holds(moment, slots):
            return False
        cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(slots)
        cdef intp_t k
        for k in range(cnp.PyArray_DIM(slots, 0)):
            if not self.c_is_absent(values[k]):
                self.c_flags(values[k])[0] |= ABSENT
                self.state[ABSENT_ROWS] += 1
        self.state[UPDATES] += 1
        return True

    def episode_len(self, intp_t stream):
        """Steps of a stream since its last episode end."""
        if not 0 <= stream < self.n_envs:
            raise IndexError(f"stream: expected 0 to {self.n_envs - 1}, got {stream}")
        return self.state[EPISODE_LENS + stream]

    def clear(self):
        """Forget all rows."""
        fresh = [np.empty_like(column.objects) for column in self.boxed]
        cdef cnp.ndarray old, new
        for column, new in zip(self.boxed, fresh):
            old = column.objects
            c_swap(
                <char*> cnp.PyArray_DATA(old),
                <char*> cnp.PyArray_DATA(new),
                cnp.PyArray_NBYTES(old),
            )
        self.state[REVISION] += 1
        cdef int64_t turns = (self.state[WRITTEN] + self.capacity - 1) // self.capacity
        self.state[TAG_BASE] += turns * self.capacity
        self.state[WRITTEN] = 0
        self.state[ABSENT_ROWS] = 0
        self.state[EPISODE_LENS:] = 0
        for chain in self.chains:
            (<Chain> chain).c_clear()

    # ------------------------------------------------------------------ moments

    def now(self):
        """The present moment, to be taken before rows are chosen: see ``holds``."""
        return self.c_now()

    cdef Moment c_now(self):
        cdef Moment moment = Moment.__new__(Moment)
        moment.written = self.state[WRITTEN]
        moment.clears = self.state[REVISION]
        moment.edits = self.state[UPDATES]
        return moment

    def is_now(self, Moment moment not None):
        """Whether nothing at all has changed since."""
        return self.c_is_now(moment)

    cdef bint c_is_now(self, Moment moment) noexcept:
        return self.state[WRITTEN] == moment.written and (
            self.state[REVISION] == moment.clears and self.state[UPDATES] == moment.edits
        )

    def holds(self, Moment moment not None, cnp.ndarray slots not None):
        """Whether what was chosen and read of these slots since is as it was at that moment.

        That is so if none of them has another row by now, the ring was not cleared, and nothing
        was edited: values replaced, rows hidden, episodes ended. Rows that follow those in the
        slots are younger, so they need not be asked for.
        """
        c_check_array(slots, "slots", cnp.NPY_INTP, -1)
        return self.c_holds(moment, slots)

    cdef bint c_holds(self, Moment moment, cnp.ndarray slots) noexcept:
        return (
            self.state[REVISION] == moment.clears
            and self.state[UPDATES] == moment.edits
            and not self.c_overwritten(slots, moment.written)
        )

    # ------------------------------------------------------------------ reading

    cdef bint c_overwritten(self, cnp.ndarray slots, int64_t written) noexcept:
        """Whether one of the slots got another row since ``written`` rows were written."""
        cdef int64_t since = self.state[WRITTEN] - written
        if since <= 0:
            return False
        cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(slots)
        cdef intp_t k, age, head = <intp_t> (written % self.capacity)
        for k in range(cnp.PyArray_DIM(slots, 0)):
            age = values[k] - head
            if (age if age >= 0 else age + self.capacity) < since:
                return True
        return False

    def flags(self):
        """Copy of the flags of the slots in use: 1 end, 2 terminated, 4 truncated, 8 absent."""
        last = self.record_offset + self.record_stride - 1
        return np.array(np.asarray(self.arena)[last :: self.record_stride][: self.c_stored()])

    def flags_at(self, cnp.ndarray slots):
        """The flags of the given slots, which are in use; see ``flags``."""
        self.c_check_slots(slots)
        return np.asarray(self.arena)[
            self.record_offset + (slots + 1) * self.record_stride - 1
        ]

    def absent_at(self, cnp.ndarray slots):
        """Whether the row in each of the given slots, which are in use, cannot be drawn."""
        self.c_check_slots(slots)
        cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(slots)
        cdef intp_t k, n = cnp.PyArray_DIM(slots, 0)
        cdef cnp.ndarray absent = np.empty(n, np.bool_)
        for k in range(n):
            (<uint8_t*> cnp.PyArray_DATA(absent))[k] = not self.c_can_draw(values[k])
        return absent

    def present_slots(self):
        """The slots of the rows that can be drawn, ascending."""
        slots = np.arange(self.c_stored(), dtype=np.intp)
        return slots if self.c_drawable() == len(slots) else slots[~self.absent_at(slots)]

    def newest_slots(self, intp_t n):
        """The slots of the n newest rows that can be drawn, oldest first; or of all there are."""
        cdef cnp.ndarray slots = np.empty(min(n, len(self)), np.intp)
        cdef intp_t* values = <intp_t*> cnp.PyArray_DATA(slots)
        cdef intp_t left = slots.size, back = 0, slot
        while left:
            back += 1
            slot = self.c_oldest_of(back)
            if self.c_can_draw(slot):
                left -= 1
                values[left] = slot
        return slots

    def row_ids(self, cnp.ndarray slots):
        """The row ids of the rows in the given slots, which are in use: int64."""
        last = self.state[WRITTEN] - 1
        return last - (last - slots.astype(np.int64, copy=False)) % self.capacity

    cdef Column c_column(self, str name):
        """The column of this name; there must be one."""
        cdef Column column
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    cdef int c_check_slots(self, slots) except -1:
        """Refuse what are no slots in use."""
        c_check_array(slots, "slots", cnp.NPY_INTP, -1)
        cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(slots)
        cdef intp_t k, stored = self.c_stored(), n = cnp.PyArray_DIM(slots, 0)
        cdef bint wrong = False
        for k in range(n):
            wrong |= <size_t> values[k] >= <size_t> stored
        if wrong:
            raise IndexError(
                f"slots: expected 0 to {stored - 1}, got {slots.min()} to {slots.max()}"
            )
        return 0
