"""``Ring``: the rows of a buffer in caller-owned memory, their streams, episodes and end flags.

A ring writes rows into memory of its caller. It knows the order of the rows of each stream, the
ends of episodes, and the rows that can be drawn. Compiled because copying a small row takes less
time than a Python statement. Not here: the memory (``_files.arenas``), the fields
(``_fields.schema``), reading rows (``_rows.gather``), which rows are drawn (``samplers``), and the
methods that users call (``buffers._entry``, ``buffers._replay``).
"""

cimport cython
cimport numpy as cnp
from libc.string cimport memcpy, memset

from cpprb_like._c.arrays cimport c_check_array
from cpprb_like._rows.chained cimport Chain, NewRows
from cpprb_like._rows.column cimport Column
from cpprb_like._c.copying cimport c_copy, c_move, c_swap
from cpprb_like._machine.clock cimport c_clock
from cpprb_like._c.fences cimport c_fence, c_read_fence
from cpprb_like._machine.aligned cimport Pool
from cpprb_like._c.stops cimport (
    NOWHERE, STOP_AMID, STOP_EDITING, STOP_RESERVED, STOP_REWINDING, STOP_WRITTEN, c_come_to, c_stop_at,
)
from cpprb_like._rows.slot_set cimport AbsentRuns, SlotSet, c_has
from cpprb_like._rows.edits cimport Tracker, Undo
from cpprb_like._rows.incomplete_rows cimport IncompleteRows
from cpprb_like._rows.walk cimport (
    ABSENT, END, TERMINATED, TRUNCATED, Cursor, Firsts, Walk, c_backward, c_cursor, c_forward, c_repeat,
    c_rows_after, c_rows_before,
)
from cpprb_like._c.typedefs cimport int64_t, intp_t, uint8_t

from cpprb_like._rows.item_ring import placed_items

from io import UnsupportedOperation

import numpy as np

cnp.import_array()

cdef enum:  # columns of Ring.ends
    END_PLACE = 0
    END_SIGN_BYTE = 1
    END_SETS = 2
    END_CLEARS = 3

cdef enum:
    WRITE_CHUNK = 32              # rows written at a time: their records stay in the first cache
    HIDDEN = 64                   # entries in the log of hidden rows
    LONGEST = 1 << 30             # most rows of a window on each side: sums of two do not overflow

# Numbers of ``_core.pxd`` for Python.
N_STATE_WORDS = EPISODE_LENS
WORD_WRITTEN = WRITTEN
WORD_ABSENT_ROWS = ABSENT_ROWS
WORD_CLEARED = CLEARED
WORD_CLEARS = CLEARS
WORD_EDITS = EDITS
WORD_HANDLE_BASE = HANDLE_BASE
WORD_RESERVED = RESERVED
WORD_EPISODES = EPISODES
FLAG_TERMINATED = END | TERMINATED
FLAG_TRUNCATED = END | TRUNCATED
FLAG_END = END
FLAG_ABSENT = ABSENT
STOPS = {
    "reserved": STOP_RESERVED,
    "amid": STOP_AMID,
    "written": STOP_WRITTEN,
    "editing": STOP_EDITING,
    "rewinding": STOP_REWINDING,
}


@cython.final
@cython.freelist(8)
cdef class Moment:
    """Version of a ring at one time: see ``Ring.now`` and ``Ring.holds``."""


@cython.final
cdef class Ring:
    """Ring buffer over memory that the caller allocated; read-only for Python.

    ``columns`` are the fields in declared order; ``chains`` are the chained ones, ``items`` the memory of
    values of any length. ``arena`` is all
    memory of the buffer but Python objects, ``state`` the words of its header. ``record`` is offset
    and stride of the records, and the byte of the flags. ``ends`` is ``Schema.end_fields``. Row i
    belongs to stream ``i % n_envs``. ``lookahead`` is n - 1 for n-step returns: a row can be drawn
    when ``lookahead`` rows of its episode follow it, or the episode has ended. ``lookahead *
    n_envs`` slots of ``capacity`` are for incomplete rows; complete rows beyond the other slots are
    left out. ``undo`` is the log of an arena in a file, which restores the rows of a killed
    process. ``frozen`` is the reason why nothing may be written, or None. ``flags`` is memory for
    the flags of a follower: a ring over the rows of another process. A follower has ``state`` of
    its own too, so derived state does not change with the next write of that process.
    """

    def __cinit__(
        self, columns, cnp.ndarray arena, cnp.ndarray state, record, ends, *, capacity, n_envs,
        chains=(), items=(), lookahead=0, Undo undo=None, str frozen=None, cnp.ndarray flags=None,
    ):
        self.capacity = capacity
        self.n_envs = n_envs
        self.size = capacity - lookahead * n_envs
        if not 1 <= n_envs or self.size < 1 or lookahead < 0:
            raise ValueError(
                f"expected 1 <= n_envs, 0 <= lookahead and slots for more than lookahead * n_envs "
                f"rows, got {n_envs}, {lookahead} and {capacity} slots"
            )
        self.span = self.size if n_envs == 1 else capacity
        self.columns = tuple(columns)
        self.record_offset, self.record_stride, self.flag_byte = record
        self.arena = arena
        self.state = state
        self.undo = undo
        self.lens_before = NULL if undo is None else &undo.lens[0]
        self.announces = undo is not None or len(items) > 0
        self.frozen = frozen
        self.flag_stride = self.record_stride
        self.flag_data = self.c_record(0) + self.flag_byte
        if flags is None:
            flags = arena[self.record_offset + self.flag_byte :: self.record_stride][:capacity]
        else:
            c_check_array(flags, "flags", cnp.NPY_UINT8, capacity)
            self.has_own_flags, self.flag_stride = True, 1
            self.flag_data = <uint8_t*> cnp.PyArray_DATA(flags)
        self.all_flags = flags
        self.pool = Pool()
        self.chains = tuple(chains)
        self.items = tuple(items)
        self.lookahead = lookahead
        chained = {chain.name: chain for chain in self.chains}
        self.stored_columns = tuple(
            [column for column in self.columns if column.name not in chained]
        )
        self.object_columns = tuple([column for column in self.stored_columns if column.objects is not None])
        plain = [column for column in self.stored_columns if column.objects is None]
        # Columns of the record first, so that one loop prefetches and copies them chunk by chunk.
        stop = self.record_offset + self.record_stride
        plain.sort(key=lambda column: not self.record_offset <= column.offset < stop)
        derived = [column for column in self.columns if column.name in chained]
        for place, column in enumerate([*plain, *self.object_columns, *derived]):
            (<Column> column).place = place
            if column.name in chained:
                (<Chain> chained[column.name]).place = place
        self.ends = np.array(
            [((<Column> self.columns[number]).place, *meaning) for number, *meaning in ends],
            np.intp,
        ).reshape(len(ends), 4)
        self.in_record = sum([self.record_offset <= column.offset < stop for column in plain])
        self.table = np.array(
            [(column.offset, column.stride, column.nbytes) for column in plain], np.intp
        ).reshape(len(plain), 3)
        self.row_nbytes = sum(column.nbytes for column in self.columns)
        self.out = SlotSet(capacity)
        self.runs = AbsentRuns(capacity, n_envs)
        self.trackers = ()
        self.edited = None
        self.hidden = np.empty((HIDDEN, 3), np.int64)
        if lookahead:
            self.incomplete = IncompleteRows(lookahead, self.size, n_envs, self.out)
        self.c_rebuild()

    @property
    def written(self):
        """Rows written since the last clear."""
        return self.state[WRITTEN]

    @property
    def rows(self):
        """Rows ever written: see ``ReplayBuffer.rows``."""
        return self.state[CLEARED] + self.state[WRITTEN]

    @property
    def stored(self):
        """Slots in use, absent rows included."""
        return c_stored(self)

    @property
    def cleared(self):
        """Rows written before the last clear."""
        return self.state[CLEARED]

    @property
    def clears(self):
        """Number of times that the ring was cleared."""
        return self.state[CLEARS]

    @property
    def handle_base(self):
        """Base of the handles: see ``row_handles``."""
        return self.state[HANDLE_BASE]

    @property
    def absent(self):
        """Number of slots in use whose row is absent, incomplete or left out (``IncompleteRows``)."""
        return c_stored(self) - self.c_drawable()

    @property
    def first(self):
        """The id of the oldest row that is not left out."""
        return self.c_first()

    @property
    def stop(self):
        """The id behind the newest row that can be drawn; with several environments, the newest row."""
        return self.c_stop()

    @property
    def index_nbytes(self):
        """Bytes of the index of the rows that can be drawn: 0 while all rows can be drawn."""
        return self.out.nbytes + self.runs.nbytes

    def __len__(self):
        return self.c_drawable()

    cdef intp_t c_drawable(self) noexcept nogil:
        """Number of rows that can be drawn."""
        if self.lookahead == 0:
            return c_stored(self) - self.out.count
        c_sync_open(self)
        return self.incomplete.n_complete

    cdef int64_t c_first(self) noexcept nogil:
        if self.left_before:
            return self.c_first_left()
        if self.lookahead == 0:
            return self.state[WRITTEN] - c_stored(self)
        c_sync_open(self)
        return self.incomplete.kept_from

    cdef int64_t c_first_left(self) noexcept nogil:
        """``c_first`` where rows have left early.

        Absent rows behind those count as left, whatever made them absent. So ``left_before`` follows
        from the rows, and a copy of the buffer draws the same.
        """
        self.left_before = max(self.state[WRITTEN] - c_stored(self), self.left_before)
        while self.left_before < self.state[WRITTEN] and self.c_is_absent(
            <intp_t> (self.left_before % self.capacity)
        ):
            self.left_before += 1
        if self.lookahead == 0:
            return self.left_before
        c_sync_open(self)
        return max(self.incomplete.kept_from, self.left_before)

    cdef int64_t c_stop(self) noexcept nogil:
        if self.lookahead == 0 or self.n_envs > 1:
            return self.state[WRITTEN]
        c_sync_open(self)
        return self.incomplete.oldest_open

    cdef bint c_can_draw(self, intp_t slot) noexcept nogil:
        """Whether the row in a slot in use can be drawn."""
        if c_has(self.out, slot):
            return False
        if self.lookahead == 0:
            return True
        c_sync_open(self)
        return self.incomplete.c_is_complete(slot)

    cdef int64_t c_next(self, int64_t row, int64_t written) noexcept nogil:
        """The next row that holds a step in the stream, before row ``written``; -1 without one."""
        cdef Walk walk = c_walk_of(self)
        cdef Cursor at = Cursor(row, <intp_t> (row % self.capacity))
        walk.stop = written
        return at.row if c_forward(&walk, &at) else -1

    cdef intp_t c_slot_of_nth(self, intp_t place, int64_t base) noexcept nogil:
        """The slot of the ``place``-th row that can be drawn, counted from row ``base`` on, around
        the end of the ring.
        """
        cdef intp_t among = self.c_drawable(), n = self.capacity - self.out.count
        place += self.c_drawable_before(base)
        place = place if place < among else place - among
        place += c_count_open(self, self.state[WRITTEN], place)
        place += self.out.c_free_before(<intp_t> (self.c_first() % self.capacity))
        return self.out.c_free_at(place if place < n else place - n)

    cdef intp_t c_drawable_before(self, int64_t row) noexcept nogil:
        """Number of rows that can be drawn, and are older than this row."""
        cdef int64_t first = self.c_first()
        if row <= first:
            return 0
        return self.out.c_free_rows(first, row) - c_count_open(self, row, self.capacity)

    cdef int64_t c_row_at(self, intp_t slot) noexcept nogil:
        """The row id of the row in a slot in use; negative if a clear has emptied the slot."""
        cdef int64_t last = self.state[WRITTEN] - 1
        cdef int64_t back = last - slot
        if back < 0:
            back += self.capacity
        return last - back % self.capacity

    cdef bint c_is_absent(self, intp_t slot) noexcept nogil:
        return self.c_flags(slot)[0] & ABSENT

    cdef uint8_t* c_record(self, intp_t slot) noexcept nogil:
        return &self.arena[self.record_offset + slot * self.record_stride]

    cdef uint8_t* c_flags(self, intp_t slot) noexcept nogil:
        return self.flag_data + slot * self.flag_stride

    # ------------------------------------------------------------------ writing

    cdef intp_t c_publish(self, char** rows, intp_t n, const uint8_t* present) noexcept:
        """Write n rows and make them visible; no Python code runs. Returns the slot of the first.

        ``rows`` has the address of the dense values of each column. ``present`` is 0 for a row that
        holds no step; NULL: all rows hold one. Python objects are exchanged with those in the ring,
        so the old objects are deleted with the caller's array, after the rows are published.
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
        if self.announces:
            self.c_announce(written, n)
        else:
            self.state[RESERVED] = written + n
        c_fence()
        if n == 1 and self.n_envs == 1 and present == NULL and self.state[ABSENT_ROWS] == 0:
            self.c_write_record(rows, slot)
        else:
            self.c_write_records(rows, n, skip, slot, present)
        if self.lens_before != NULL:
            c_come_to(STOP_AMID)
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
        for column in self.object_columns:
            objects = <char*> cnp.PyArray_DATA(column.objects)
            values = rows[column.place] + skip * column.nbytes
            c_swap(objects + slot * column.nbytes, values, run * column.nbytes)
            c_swap(objects, values + run * column.nbytes, (n - skip - run) * column.nbytes)
        if self.chains:
            self.c_write_chains(rows, n)
        if self.lens_before != NULL:
            c_come_to(STOP_WRITTEN)
        c_fence()
        self.state[WRITTEN] = written + n
        if skip and self.lens_before != NULL:
            self.state[RESERVED] = written + n
            self.undo.c_end()
        return first

    cdef void c_announce(self, int64_t written, intp_t n) noexcept:
        """Announce rows in a file, or of values of any length, whose items are written next."""
        if self.lens_before != NULL:
            self.c_reserve_rows(written, n)
        else:
            self.state[RESERVED] = written + n
        if self.new_items is not None:
            c_fence()
            self.new_items.c_write(False)

    cdef void c_reserve_rows(self, int64_t written, intp_t n) noexcept nogil:
        """Announce rows in a file before they are written; the rows in their slots are dead now."""
        memcpy(self.lens_before, &self.state[EPISODE_LENS], self.n_envs * sizeof(int64_t))
        c_fence()
        self.state[RESERVED] = written + min(n, self.capacity)
        if n > self.capacity:  # WRITTEN and RESERVED change at the end
            self.c_save_state()
            self.undo.c_begin_change()
        if self.undo.added_at != NULL:
            self.undo.added_at[0] = c_clock()
            if self.undo.has_times:
                self.undo.c_note_times(written, n)
        c_come_to(STOP_RESERVED)

    cdef int c_prepare(self, char** rows, intp_t n) except -1:
        """Compare n rows with others, before anything is written; 1 if memory has to be prepared."""
        cdef Chain chain
        cdef NewRows given = self.c_describe(rows, n)
        cdef bint lacks = False
        for chain in self.chains:
            lacks |= chain.c_reserve(&given)
        return lacks

    cdef NewRows c_describe(self, char** rows, intp_t n) noexcept:
        cdef NewRows given
        given.values = rows
        given.n = n
        given.first = self.state[WRITTEN]
        given.oldest = given.first + n - self.capacity
        given.flags = self.c_flags(0)
        given.flag_stride = self.flag_stride
        given.base = self.state[HANDLE_BASE]
        return given

    cdef void c_write_chains(self, char** rows, intp_t n) noexcept:
        cdef Chain chain
        cdef NewRows given = self.c_describe(rows, n)
        for chain in self.chains:
            chain.c_write(&given)

    # ------------------------------------------------------------------ rows that cannot be drawn

    cdef int c_check_writable(self) except -1:
        if self.frozen is not None:
            raise UnsupportedOperation(self.frozen)
        return 0

    cdef void c_save_state(self) noexcept nogil:
        """Save the words of the header in the undo log."""
        cdef const uint8_t* state = <const uint8_t*> &self.state[0]
        self.undo.c_save(state - &self.arena[0], self.state.shape[0] * sizeof(int64_t))

    cdef int c_expect_absent(self) except -1:
        """Allocate the set and the run lengths of absent rows, before a row becomes absent."""
        self.out.c_make_memory()
        self.runs.c_make_memory()
        return 0

    cdef void c_join_run(self, int64_t row, bint is_newest) noexcept nogil:
        """Join an absent row to the runs of absent rows beside it in its stream."""
        cdef int64_t oldest = max(self.state[WRITTEN] - c_stored(self), row + 1 - self.capacity)
        cdef int64_t other = row - self.n_envs
        cdef intp_t slot, before = 0, after = 0
        if other >= oldest:
            slot = <intp_t> (other % self.capacity)
            if self.c_is_absent(slot):
                before = min(self.runs.back[slot], <intp_t> ((row - oldest) // self.n_envs))
        other = row + self.n_envs
        if not is_newest and other < self.state[WRITTEN]:
            slot = <intp_t> (other % self.capacity)
            after = self.runs.onward[slot] if self.c_is_absent(slot) else 0
        self.runs.c_join(row, before, after)

    cdef int c_rebuild(self) except -1:
        """Derive all state from the rows in memory, as if they had been added one by one."""
        cdef int64_t row, written = self.state[WRITTEN], oldest = written - c_stored(self)
        cdef intp_t slot
        if self.out.count:
            self.out.c_forget(self.out.c_allocate())
        self.c_note_rereads()
        if self.items and self.live == NULL:
            self.c_find_items()
        if self.lookahead:
            self.incomplete.written = -1
        if self.state[ABSENT_ROWS] == 0:
            return 0
        self.c_expect_absent()
        for row in range(oldest, written):
            slot = <intp_t> (row % self.capacity)
            if self.c_is_absent(slot):
                self.out.c_add(slot)
                self.c_join_run(row, True)
        return 0

    cdef int c_find_items(self) except -1:
        """Find where the items of the rows lie; raises ``ValueError`` if the memory was damaged."""
        cdef ItemRing items
        cdef cnp.ndarray rows = np.arange(self.state[WRITTEN] - c_stored(self), self.state[WRITTEN])
        rows = rows[self.all_flags[rows % self.capacity] & ABSENT == 0]
        self.left_before = 0
        for items in self.items:
            if items.is_next:
                continue
            items.c_find_head()
            placed, entries = rows, entries_of(self, items.entry)[rows % self.capacity]
            if items.following is not None:
                nexts = entries_of(self, items.following.entry)[rows % self.capacity]
                placed, entries = placed_items(rows, entries, nexts, self.n_envs)
            items.c_find_moved(placed, entries)
            if items.left:  # rows of an episode that left are as overwritten ones
                self.left_before = rows[0] if len(rows) else self.state[WRITTEN]
        return 0

    cdef void c_write_record(self, char** rows, intp_t slot) noexcept nogil:
        """``c_write_records`` for the commonest call: one step of one environment, none absent."""
        cdef intp_t number
        cdef const intp_t* row
        cdef char* base = <char*> &self.arena[0]
        cdef uint8_t* flags = self.c_flags(slot)
        for number in range(self.in_record):
            row = &self.table[number, 0]
            c_copy(base + row[OFFSET] + slot * row[STRIDE], rows[number], row[NBYTES])
        self.c_find_flags(rows, 0, 1, NULL, flags)
        self.state[EPISODE_LENS] = 0 if flags[0] & END else self.state[EPISODE_LENS] + 1
        self.state[EPISODES] += flags[0] & END

    cdef void c_write_records(
        self, char** rows, intp_t n, intp_t skip, intp_t slot, const uint8_t* present
    ) noexcept nogil:
        """Write the records of rows ``skip`` to ``n``, and update episode lengths for all n rows.

        This call would overwrite the rows before ``skip``. Rows are written in chunks, so that records
        stay in the first cache while their columns are written: with chunks of 128 rows instead of
        32, 1024 steps took 6.8 us and not 6.0. ``present`` is that of ``c_publish``.
        """
        cdef uint8_t[WRITE_CHUNK] flags
        cdef intp_t number, count, k, start = 0, stored = c_stored(self)
        cdef const intp_t* row
        cdef char* base = <char*> &self.arena[0]
        cdef uint8_t any_flag
        while start < n:
            count = min(n - start, WRITE_CHUNK)
            count = min(count, self.capacity - slot if start >= skip else skip - start)
            any_flag = self.c_find_flags(rows, start, count, present, flags)
            self.c_count_steps(flags, start, count, any_flag)
            if start >= skip:
                if any_flag & ABSENT or self.state[ABSENT_ROWS]:
                    self.c_count_absent(flags, slot, count, stored)
                for number in range(self.in_record):
                    row = &self.table[number, 0]
                    c_move(
                        base + row[OFFSET] + slot * row[STRIDE], row[STRIDE],
                        rows[number] + start * row[NBYTES], row[NBYTES], row[NBYTES], count,
                    )
                c_move(<char*> self.c_flags(slot), self.flag_stride, <char*> flags, 1, 1, count)
                for k in range(count if any_flag & ABSENT else 0):
                    if flags[k] & ABSENT:
                        self.c_join_run(self.state[WRITTEN] + start + k, True)
                slot = slot + count if slot + count < self.capacity else 0
            start += count

    cdef void c_count_steps(
        self, const uint8_t* flags, intp_t start, intp_t n, uint8_t any_flag
    ) noexcept nogil:
        """Update the length of each open episode for n rows from ``start`` on.

        ``any_flag`` has each flag that one of the rows has.
        """
        cdef intp_t row, stream
        cdef uint8_t ended = 0  # of a chunk; eight bits, so that one instruction adds many
        if self.n_envs == 1 and not any_flag & (END | ABSENT):
            self.state[EPISODE_LENS] += n
            return
        if self.n_envs == 1 and not any_flag & ABSENT:
            for row in range(n):
                ended += flags[row] & END
            self.state[EPISODES] += ended
            row = n
            while not flags[row - 1] & END:
                row -= 1
            self.state[EPISODE_LENS] = n - row
            return
        stream = start % self.n_envs
        for row in range(n):
            if flags[row] & END:
                self.state[EPISODE_LENS + stream] = 0
                self.state[EPISODES] += 1
            elif not flags[row] & ABSENT:
                self.state[EPISODE_LENS + stream] += 1
            stream = stream + 1 if stream + 1 < self.n_envs else 0

    cdef void c_count_absent(
        self, const uint8_t* flags, intp_t slot, intp_t n, intp_t stored
    ) noexcept nogil:
        """Update the count of absent rows for n slots that get new rows."""
        cdef intp_t row
        for row in range(n):
            if slot + row < stored and self.c_flags(slot + row)[0] & ABSENT:
                self.state[ABSENT_ROWS] -= 1
                self.out.c_remove(slot + row)
            if flags[row] & ABSENT:
                self.state[ABSENT_ROWS] += 1
                self.out.c_add(slot + row)

    cdef uint8_t c_find_flags(
        self, char** rows, intp_t start, intp_t n, const uint8_t* present, uint8_t* flags
    ) noexcept nogil:
        """Write the flags of n rows by their end fields: any set bit counts but the sign of a zero.

        Rows that are not ``present`` are ABSENT and nothing else. Returns all flags that may occur.
        """
        cdef uint8_t bits, sets, keeps, any_flag = 0
        cdef intp_t end, row, byte, nbytes
        cdef const uint8_t* value
        cdef const intp_t* spec
        memset(flags, 0, n)
        for end in range(self.ends.shape[0]):
            spec = &self.ends[end, 0]
            sets, keeps = <uint8_t> spec[END_SETS], <uint8_t> ~spec[END_CLEARS]
            nbytes = self.table[spec[END_PLACE], NBYTES]
            value = <const uint8_t*> rows[spec[END_PLACE]] + start * nbytes
            if nbytes == 1:
                for row in range(n):
                    flags[row] = (flags[row] & keeps) | sets if value[row] else flags[row]
                continue
            for row in range(n):
                bits = 0
                for byte in range(nbytes):
                    bits |= value[byte] & (0x7F if byte == spec[END_SIGN_BYTE] else 0xFF)
                flags[row] = (flags[row] & keeps) | sets if bits else flags[row]
                value += nbytes
        for row in range(n):
            any_flag |= flags[row]
        if present != NULL:
            any_flag |= ABSENT
            for row in range(n):
                if not present[start + row]:
                    flags[row] = ABSENT
        return any_flag

    cdef void c_log_hidden(self, int64_t first, int64_t last, intp_t step) noexcept nogil:
        """Note that each ``step``-th row from ``first`` to ``last`` may have become absent."""
        cdef int64_t* entry = &self.hidden[self.n_hidden & (HIDDEN - 1), 0]
        entry[0], entry[1], entry[2] = first, last, step
        self.n_hidden += 1

    cdef void c_note_rereads(self) noexcept nogil:
        """Have derived state read all rows: the log of hidden rows skips more entries than it holds."""
        self.n_hidden += self.hidden.shape[0] + 1
        self.rereads += 1

    def episode_len(self, intp_t stream):
        """Steps of a stream since its last episode end."""
        if not 0 <= stream < self.n_envs:
            raise IndexError(f"stream: expected 0 to {self.n_envs - 1}, got {stream}")
        return self.state[EPISODE_LENS + stream]

    # ------------------------------------------------------------------ moments

    def now(self):
        """The present ``Moment``: call this before rows are chosen, see ``holds``."""
        return self.c_now()

    cdef Moment c_now(self):
        cdef Moment moment = Moment.__new__(Moment)
        moment.written = self.state[WRITTEN]
        moment.clears = self.state[CLEARS]
        moment.edits = self.state[EDITS]
        return moment

    def is_now(self, Moment moment not None):
        """Whether no row was added, edited or cleared since that moment."""
        return self.c_is_now(moment)

    cdef bint c_is_now(self, Moment moment) noexcept:
        return (
            self.state[WRITTEN] == moment.written
            and self.state[CLEARS] == moment.clears
            and self.state[EDITS] == moment.edits
            and (self.live == NULL or c_is_followed(self))
        )

    def holds(self, Moment moment not None, cnp.ndarray slots not None):
        """Whether everything read of these slots since a moment is valid for that moment.

        True if no slot has a new row, none of the rows left early, the ring was not cleared, and no row
        was edited: values replaced, row hidden, episode ended. Rows that follow those in the slots are
        younger, so they need no check.
        """
        c_check_array(slots, "slots", cnp.NPY_INTP, -1)
        return self.c_holds(moment, slots)

    cdef bint c_holds(self, Moment moment, cnp.ndarray slots) noexcept:
        return (
            self.state[CLEARS] == moment.clears
            and self.state[EDITS] == moment.edits
            and not self.c_overwritten(slots, moment.written)
            and not (self.left_before and self.c_any_left(slots))
            and (self.live == NULL or c_still_lives(self, slots))
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

    cdef bint c_any_left(self, cnp.ndarray slots) noexcept:
        """Whether the row in one of the slots left early."""
        cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(slots)
        cdef intp_t k
        for k in range(cnp.PyArray_DIM(slots, 0)):
            if self.c_row_at(values[k]) < self.left_before:
                return True
        return False

    def windows(
        self, cnp.ndarray slots not None, intp_t before, intp_t after, *, str starts=None,
        bint repeat=True,
    ):
        """The window of each given row: the rows around it in its episode.

        A window ends where the episode does, at the oldest stored row, and at the write head. Absent
        rows are skipped.

        Parameters
        ----------
        slots : ndarray of intp, shape (n,)
            Slots in use.
        before, after : int
            The most rows before and after the given row.
        starts : str, optional
            A field of one byte that is not 0 in the first row of an episode. It is for callers that
            see the end of an episode only in the next row. By default the end fields and
            ``on_episode_end`` end episodes.
        repeat : bool
            Whether places outside of the window repeat its first or last row; otherwise they are -1.

        Returns
        -------
        rows : ndarray of intp, shape (n, before + 1 + after)
            Slots, oldest first; ``rows[:, before]`` are the given ones.
        counts : ndarray of intp, shape (n, 2)
            Numbers of rows before and after the given row in each window.
        flags : ndarray of uint8, shape (n,)
            Flags of the last row of each window: 1 end of the episode, 2 terminated, 4 truncated, 8
            absent.

        Notes
        -----
        Cost: proportional to the number of rows in the windows. With ``repeat``, the result is valid
        as long as ``holds`` is true for ``rows[:, 0]``, the oldest row of each window.

        Raises ``TypeError`` if the slots are not a dense 1-d array of intp or the field is unknown,
        ``IndexError`` if a slot is not in use, and ``ValueError`` if ``before`` or ``after`` is out of
        range or the field has more than one byte.
        """
        self.c_check_slots(slots)
        if not (0 <= before < LONGEST and 0 <= after < LONGEST):
            raise ValueError(f"before, after: expected 0 to {LONGEST - 1}, got {before}, {after}")
        cdef Firsts firsts = Firsts(NULL, 0)
        cdef Column column
        if starts is not None:
            column = self._start_column(starts)
            firsts = Firsts(&self.arena[column.offset], column.stride)
        cdef Walk walk = c_walk_of(self)
        cdef intp_t[2] dims
        cdef intp_t k, n = cnp.PyArray_DIM(slots, 0)
        dims[0], dims[1] = n, before + 1 + after
        cdef cnp.ndarray rows = cnp.PyArray_SimpleNew(2, dims, cnp.NPY_INTP)
        dims[1] = 2
        cdef cnp.ndarray counts = cnp.PyArray_SimpleNew(2, dims, cnp.NPY_INTP)
        cdef cnp.ndarray flags = cnp.PyArray_SimpleNew(1, dims, cnp.NPY_UINT8)
        cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(slots)
        cdef intp_t* out = <intp_t*> cnp.PyArray_DATA(rows)
        cdef intp_t* found = <intp_t*> cnp.PyArray_DATA(counts)
        cdef Cursor at
        for k in range(n):
            at = c_cursor(&walk, values[k])
            out += before
            out[0] = values[k]
            found[0] = c_rows_before(&walk, at, before, firsts, out, 0, 0)
            found[1] = c_rows_after(&walk, at, after, firsts, out)
            (<uint8_t*> cnp.PyArray_DATA(flags))[k] = self.c_flags(out[found[1]])[0]
            c_repeat(out, -before, -found[0], out[-found[0]] if repeat else -1)
            c_repeat(out, found[1] + 1, after + 1, out[found[1]] if repeat else -1)
            found += 2
            out += after + 1
        return rows, counts, flags

    def flags(self):
        """Copy of the flags of the slots in use: 1 end, 2 terminated, 4 truncated, 8 absent."""
        return self.all_flags[: c_stored(self)].copy()

    def flags_at(self, cnp.ndarray slots):
        """The flags of the given slots, which are in use; see ``flags``."""
        self.c_check_slots(slots)
        return self.all_flags[slots]

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
        """The slots of the rows that can be drawn, ascending.

        Cost: in proportion to these, and to the slots divided by 64.
        """
        cdef intp_t k, count = 0, n = c_stored(self) - self.out.count
        cdef cnp.ndarray slots = (
            self.out.c_list(n, True) if self.out.count else np.arange(n, dtype=np.intp)
        )
        cdef intp_t* values = <intp_t*> cnp.PyArray_DATA(slots)
        if self.lookahead == 0:
            return slots
        for k in range(n):
            values[count] = values[k]
            count += self.c_can_draw(values[k])
        return slots[:count].copy()

    def newest_slots(self, intp_t n):
        """The slots of the n newest rows that can be drawn, oldest first; or of all there are."""
        cdef intp_t k, among = self.c_drawable(), count = min(n, among)
        cdef cnp.ndarray slots = np.empty(max(count, 0), np.intp)
        cdef intp_t* values = <intp_t*> cnp.PyArray_DATA(slots)
        for k in range(count):
            values[k] = self.c_slot_of_nth(among - count + k, self.c_first())
        return slots

    def row_ids(self, cnp.ndarray slots):
        """The row ids of the rows in the given slots, which are in use: int64."""
        last = self.state[WRITTEN] - 1
        return last - (last - slots.astype(np.int64, copy=False)) % self.capacity

    cdef Column c_column(self, str name):
        """The column of this name, which must exist."""
        cdef Column column
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    cdef ItemRing c_axis(self, str name):
        """The memory of the axis of this name, which must exist."""
        cdef ItemRing items
        for items in self.items:
            if items.axis == name:
                return items
        raise KeyError(name)

    def _start_column(self, str name):
        """The column of a field that begins episodes."""
        for column in self.stored_columns:
            if column.name == name and column.objects is None:
                if column.nbytes != 1:
                    raise ValueError(f"starts: expected a field of one byte, got {column.nbytes} of {name!r}")
                return column
        raise TypeError(f"starts: expected a field that is stored as it is, got {name!r}")

    cdef int c_check_slots(self, slots) except -1:
        """Raise unless these are slots in use."""
        c_check_array(slots, "slots", cnp.NPY_INTP, -1)
        cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(slots)
        cdef intp_t k, stored = c_stored(self), n = cnp.PyArray_DIM(slots, 0)
        cdef bint wrong = False
        for k in range(n):
            wrong |= <size_t> values[k] >= <size_t> stored
        if wrong:
            raise IndexError(
                f"slots: expected 0 to {stored - 1}, got {slots.min()} to {slots.max()}"
            )
        return 0


cdef class DerivedState:
    """Base class of state that is derived from the rows of a ring, and updated lazily.

    An added row costs nothing. The next call that needs the state compares three numbers with the ring
    (``c_is_current``), updates the state, and stores the numbers (``c_mark_current``).
    """


cdef class Beside:
    """Values that a call of ``add`` has for its rows beside its fields, such as priorities.

    A compiled subclass overrides ``c_publish_beside``, and needs no ``publish``. Otherwise
    ``publish(first, clears)`` is called when n rows have been written, from row id ``first`` on. It
    must not fail, and is called once more if a signal handler raises in it.
    """

    def __init__(self, intp_t n, publish):
        self.n = n
        self.publish = publish

    cdef int c_publish_beside(self, int64_t first, int64_t clears, const uint8_t* present) except -1:
        """Take over the values of rows that were just written.

        ``clears`` is the ring's number of clears. ``present`` is NULL if all rows hold a step.
        """
        try:
            self.publish(first, clears)
        except BaseException:
            self.publish(first, clears)
            raise
        return 0


def entries_of(Ring ring not None, Column entry not None):
    """The entries of an axis in all slots, shape ``(capacity, 2)``, without a copy."""
    strides = entry.stride, entry.dtype.itemsize
    return np.ndarray(
        (ring.capacity, 2), entry.dtype, np.asarray(ring.arena), entry.offset, strides
    )


def rebuild(Ring ring not None):
    """Derive the state of a fresh ring from rows that were loaded into its memory.

    A function and not a method: users have ``rb.ring``, whose methods change nothing. A caller that
    changes rows must hold the lock of the buffer.
    """
    ring.state[RESERVED] = ring.state[WRITTEN]
    ring.c_rebuild()


def tell_followers(Ring ring not None, cnp.ndarray changes not None, cnp.ndarray gone not None):
    """Register the words of a ring for its followers; see ``processes._followers``.

    ``changes`` is +2 when rows are hidden. The word lies in the memory of the rows, which the ring keeps
    alive. ``gone`` has the row before which all left early. Rows that leave change only this word, so
    reads of younger rows stay valid, and followers need not read all flags again.
    """
    c_check_array(changes, "changes", cnp.NPY_INT64, 1)
    c_check_array(gone, "gone", cnp.NPY_INT64, 1)
    ring.changes = <const volatile int64_t*> cnp.PyArray_DATA(changes)
    if ring.items:
        ring.gone_memory, ring.gone = gone, <volatile int64_t*> cnp.PyArray_DATA(gone)


def keep_to_header(Ring ring not None, cnp.ndarray header not None):
    """Keep to the rows of a moment: ``header`` is a copy of the header of then.

    Another process writes to the memory of the rows from then on, and derived state is this one's own.
    So no read holds after the next write of that process.
    """
    cdef Chain chain
    c_check_array(header, "header", cnp.NPY_INT64, ring.state.shape[0])
    if ring.live != NULL:  # a child of such a child, a closed writer in a child
        return
    ring.live_state = np.asarray(ring.state)
    ring.live = <const volatile int64_t*> cnp.PyArray_DATA(ring.live_state)
    ring.state = header
    ring.live_edits = ring.state[EDITS]
    ring.changes, ring.seen = ring.live + <int> RESERVED, ring.state[RESERVED]
    for chain in ring.chains:
        chain.c_find_promises(ring.state[HANDLE_BASE] + ring.state[WRITTEN])


def stop_at(place, int signal, int visits=1):
    """Make this process send itself a signal at a later visit to a place, by default the next; for tests.

    ``place`` is a key of ``STOPS``, or None for nowhere. The first three are passed by rows that
    are added to a file or to shared memory, ``"editing"`` by edits of stored rows, and
    ``"rewinding"`` by each store of a rewind.
    """
    c_stop_at(NOWHERE if place is None else STOPS[place], signal, visits)


def track(Ring ring not None, tuple trackers not None):
    """Set the trackers that record which rows are edited; earlier ones record no more.

    Raises ``ValueError`` if one is for another number of slots.
    """
    cdef Tracker tracker
    for tracker in trackers:
        if tracker is None or tracker.capacity != ring.capacity:
            raise ValueError(f"trackers: expected those of {ring.capacity} slots")
    ring.trackers = trackers


cdef int64_t c_previous(Ring ring, int64_t row) noexcept nogil:
    """The previous row of the stream that holds a step; -1 if the ring has none."""
    cdef Walk walk = c_walk_of(ring)
    cdef Cursor at = Cursor(row, <intp_t> (row % ring.capacity))
    return at.row if c_backward(&walk, &at) else -1


cdef void c_begin_edit(Ring ring) noexcept nogil:
    """Announce an edit of stored rows."""
    ring.state[EDITS] += 1
    c_fence()
    c_come_to(STOP_EDITING)


cdef void c_note_store() noexcept nogil:
    """Come to a stop between two stores of a rewind. A place is of one compiled module."""
    c_come_to(STOP_REWINDING)


cdef void c_end_edit(Ring ring) noexcept nogil:
    c_fence()
    ring.state[EDITS] += 1


cdef int64_t c_bound(Ring ring) noexcept nogil:
    """The oldest row whose bytes and items the writing process has not begun to overwrite."""
    cdef int64_t bound = c_reserved(ring) - ring.capacity
    if ring.gone != NULL:
        bound = max(bound, ring.gone[0])
        c_read_fence()  # a clear changes CLEARS before it sets this word back
    return bound


cdef int64_t c_reserved(Ring ring) noexcept nogil:
    """Rows of the writing process whose bytes may have been written."""
    c_read_fence()
    cdef int64_t reserved = ring.live[RESERVED], written = ring.live[WRITTEN]
    return max(reserved, written)


cdef bint c_is_followed(Ring ring) noexcept:
    """Whether the writing process has edited, hidden or removed no row since the last update."""
    return (
        ring.live[EDITS] == ring.live_edits
        and ring.live[CLEARS] == ring.state[CLEARS]
        and ring.changes[0] == ring.seen
    )


cdef bint c_still_lives(Ring ring, cnp.ndarray slots) noexcept:
    """Whether values that a follower read of these slots are those of its last update."""
    cdef int64_t bound = c_bound(ring)
    cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(slots)
    cdef Chain chain
    cdef intp_t k
    if not c_is_followed(ring):
        return False
    for chain in ring.chains:
        if chain.is_promise_lost:
            return False
    if bound <= ring.state[WRITTEN] - c_stored(ring):
        return True
    for k in range(cnp.PyArray_DIM(slots, 0)):
        if ring.c_row_at(values[k]) < bound:
            return False
    return True


cdef intp_t c_count_open(Ring ring, int64_t row, intp_t place) noexcept nogil:
    """Number of incomplete rows older than a row, and than the ``place``-th that can be drawn."""
    cdef Walk walk
    if ring.lookahead == 0:
        return 0
    walk = c_walk_of(ring)
    return ring.incomplete.c_count_open(&walk, row, place)


cdef void c_find_open(Ring ring) noexcept nogil:
    """Find which rows are incomplete, and which are left out."""
    cdef Walk walk = c_walk_of(ring)
    ring.incomplete.c_find_open(
        &walk, &ring.state[EPISODE_LENS], ring.state[CLEARS], ring.state[EDITS]
    )
