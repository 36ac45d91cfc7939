"""Rows that other processes write: followed, and read as those of one ring.

The rows are shared; what is derived of them is not. A ring that follows has a header, flags and an
index of its own. ``Follower.sync`` moves these on, as if the new rows had been added in this process.
Between two calls nothing changes but bytes of rows, and ``Ring.holds`` says whether those that were
read were still there: a row may be read until the other process reserves its place for a newer one.
Nothing is written to the shared memory, and no call waits for the writer.

``Followers`` are several of them.

Compiled because every draw of a learner follows, reads and checks. Not here: where the memory is from
(``_shards``), what the writer does for its followers (``_core``), which rows are drawn
(``_together``), and further tries when rows were written over while they were read (``_learner``).
"""

cimport cython
cimport numpy as cnp

from cpprb_like._machine.aligned cimport c_aligned, c_numbers
from cpprb_like._c.arrays cimport c_check_array
from cpprb_like._c.copying cimport c_move
from cpprb_like._c.fences cimport c_read_fence
from cpprb_like._c.typedefs cimport int64_t, intp_t, uint8_t
from cpprb_like._core cimport (
    ABSENT, ABSENT_ROWS, CLEARS, EDITS, END, EPISODE_LENS, HANDLE_BASE, LEFT_OUT, RESERVED, WRITTEN,
    Ring,
)
from cpprb_like._rows.chained cimport Chain
from cpprb_like._rows.rings cimport Rings
from cpprb_like.buffers._entry cimport SampleOptions

cnp.import_array()

cdef enum:
    CHUNK = 32               # rows that are followed at once
    TRIES = 16               # to read words of a header that belong together
    HEADER_TRIES = 4096      # ... and all words of it


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
cdef class Followers(Rings):
    """The rings of several ``Follower`` objects, as one: see ``Rings``."""

    def __cinit__(self, intp_t width, Ring layout not None, intp_t capacity):
        self.members = [None] * width
        self.usable = [False] * width

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
        self.follows += 1
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


def attempt(
    Followers group not None, follow, look, choose, rng, SampleOptions options not None, intp_t n,
    tuple columns, take, list arrays, draws,
):
    """A batch of all rings as they are now; None if some of its rows were written over in between.

    Then ``group.late`` is the number of a ring that has lost a row; or -1, if a signal handler
    followed in between: slots that were drawn may have other rows since.

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
        has a column ``indexes`` with any sampler.
    columns : tuple of Column
        The columns to read.
    take : callable, optional
        ``take(rows, arrays, None, columns)`` reads the rows; by default ``Followers.take`` does.
    arrays : list of ndarray, optional
        Those of the caller, one for each column.
    draws : Draws, optional
        Whose state is put back if there is no batch; None if a draw changes none.
    """
    cdef dict batch = None
    cdef list busy
    if follow is None:
        busy = group.c_follow()
        if busy:
            look(busy)
    else:
        follow()
    noted = None if draws is None else draws.noted()
    cdef int64_t follows = group.follows
    group.late = -1
    try:
        rows, extra = choose(rng, options, n)
        if options.indexes and "indexes" not in extra:
            extra = {**extra, "indexes": group.handles(rows)}
        if take is None:
            batch = group.c_take(rows, arrays, columns)
        else:
            batch = take(rows, arrays, None, columns)
        group.late = group.c_overtaken(
            group.spans, <const intp_t*> cnp.PyArray_DATA(<cnp.ndarray> rows), cnp.PyArray_SIZE(rows)
        )
        if group.late >= 0 or group.follows != follows:
            batch = None
    except IndexError:
        if group.follows == follows:
            raise
        batch = None  # the slots were those of rows that are cleared
    finally:
        if batch is None and noted is not None:
            draws.put_back(noted)
    if batch is None:
        return None
    for name, values in extra.items():
        batch[name] = c_aligned(values)
    return batch
