"""Rows that other processes write: followed, and read as those of one ring.

The rows are shared; what is derived of them is not. A ring that follows has a header, flags and an
index of its own. ``Follower.sync`` moves these on, as if the new rows had been added in this process.
Between two calls nothing changes but bytes of rows, and ``Ring.holds`` says whether those that were
read were still there: a row may be read until the other process reserves its place for a newer one.
Nothing is written to the shared memory, and no call waits for the writer.

``Followers`` are several of them.

Compiled because every draw of a learner follows, reads and checks. Not here: where the memory is from
(``_shards``), what the writer does for its followers (``_core``), and weights and starts over several
rings (``_draws``).
"""

cimport cython
cimport numpy as cnp
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdlib cimport calloc, free, malloc

from cpprb_like._machine.aligned cimport c_aligned, c_numbers
from cpprb_like._c.arrays cimport c_check_array
from cpprb_like._c.copying cimport c_move
from cpprb_like._c.fences cimport c_read_fence
from cpprb_like._c.random_integers cimport Bits, c_bits_of, c_bounded_each
from cpprb_like._c.typedefs cimport int64_t, intp_t, uint8_t
from cpprb_like._core cimport (
    ABSENT, ABSENT_ROWS, CLEARS, EDITS, END, EPISODE_LENS, HANDLE_BASE, LEFT_OUT, RESERVED, WRITTEN,
    Ring,
)
from cpprb_like._rows.chained cimport Chain
from cpprb_like._rows.rings cimport Rings
from cpprb_like._segment_tree cimport c_bit_generator
from cpprb_like.buffers._entry cimport SampleOptions
from cpprb_like.samplers._uniform_draws cimport Shuffle

from time import monotonic

import numpy as np

from cpprb_like._machine.waiting import PATIENCE
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.samplers._uniform_draws import draw_uniform as draw_of_ring

cnp.import_array()

cdef enum:
    CHUNK = 32               # rows that are followed at once
    TRIES = 16               # to read words of a header that belong together
    HEADER_TRIES = 4096      # ... and all words of it
    MOST_TRIES = 1000        # at least, to read rows that are written over in between

TOO_FAST = (
    "rows were written over while they were read, again and again: capacity is too small for as "
    "many rows a second, or the process that edits them was stopped"
)


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
        cdef bint rereads = changes != ring.seen
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
            chain.c_follow(base, written, ring.c_bound())
        return 0

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
    """The rings of several ``Follower`` objects, as one: see ``Rings``.

    Attributes
    ----------
    first_counts : ndarray or None
        Of each ring, how many first priorities were published with its rows, in shared memory.
    heard : bytes or None
        The same counts of those that were read; None without priorities.
    is_settled : bool
        Whether ``FollowedShards.settle`` has nothing to do as long as no ring is edited.
    is_uniform : bool
        Whether ``draw_uniform`` is the draw of the sampler.
    limits : dict or None
        Of rings that have just lost rows: the oldest row that ``FollowedShards.choose`` may give.
    drawn : ndarray or None
        The rows that ``FollowedShards.choose`` gave last.
    """

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

    cpdef list follow(self):
        """Take in the rows that were published in all rings since the last call.

        Returns the numbers of the rings that are being edited. They count as empty until the next
        call.
        """
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

    cpdef follow_all(self, shards):
        """See ``FollowedShards.follow``."""
        # Before the rows: each first priority is of a row that is published.
        cdef bytes counts = None
        if self.heard is not None:
            counts = PyBytes_FromStringAndSize(cnp.PyArray_BYTES(self.first_counts), 8 * self.width)
        busy = self.follow()
        if busy or not self.is_settled or counts != self.heard:
            shards.settle(busy, counts)

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

    # ------------------------------------------------------------------ drawing

    cpdef draw_uniform(self, intp_t n, rng, bint replace):
        """Draw n rows of all rings, each with the same probability: their numbers.

        Without ``replace`` they differ and come in random order. Raises ``NotEnoughDataError`` if there
        are too few.
        """
        cdef cnp.ndarray rows = c_numbers(1, &n, cnp.NPY_INTP)
        cdef intp_t* values = <intp_t*> cnp.PyArray_DATA(rows)
        bit_generator = rng.bit_generator
        cdef Bits bits = c_bits_of(c_bit_generator(bit_generator))
        cdef Shuffle shuffle = None
        cdef intp_t total = 0, number, count = 0
        cdef bint is_plain = True
        cdef Ring ring
        cdef Share* shares = <Share*> malloc(self.width * sizeof(Share))
        if shares == NULL:
            raise MemoryError("no memory left to draw rows")
        try:
            for number in range(self.width):
                ring = self.c_ring(number) if self.c_is_usable(number) else None
                if ring is None or ring.c_drawable() == 0:
                    continue
                is_plain &= ring.c_drawable() == <intp_t> (ring.c_stop() - ring.c_first())
                shares[count].number, shares[count].capacity = number, ring.capacity
                shares[count].first = <intp_t> (ring.c_first() % ring.capacity) - total
                shares[count].start = total
                total += ring.c_drawable()
                shares[count].stop = total
                count += 1
            if total == 0:
                raise NotEnoughDataError("cannot sample: there is no row that can be drawn")
            if not replace and n > total:
                raise NotEnoughDataError(f"cannot sample {n} distinct rows: there are {total}")
            if is_plain:
                if not replace:
                    shuffle = Shuffle(total, n)
                lock = bit_generator.lock
                lock.acquire()  # nothing is allocated or raised until the release: see ``draw_uniform``
                if replace:
                    c_bounded_each(&bits, total, values, n)
                else:
                    shuffle.c_take(&bits, values, n)
                lock.release()
                c_find_rows(shares, count, self.bits, values, n)
                return rows
        finally:
            free(shares)
        return self.draw_passing_over(n, rng, replace)

    def draw_passing_over(self, intp_t n, rng, bint replace):
        """As ``draw_uniform``, if rings hold rows that cannot be drawn."""
        counts = [0] * self.width
        for number, ring in self.usable_rings:
            counts[number] = len(ring)
        return self.draw_each(
            counts, lambda number, k: draw_of_ring(self.rings[number], k, rng, replace), n, rng, replace
        )

    def draw_each(self, list counts, draw, intp_t n, rng, bint replace=True):
        """Draw n of the rows that ``counts`` says there are in each ring, with equal probability.

        ``draw(number, k)`` draws k slots of one ring, different ones without ``replace``. They go to the
        places of the ring among the n rows.
        """
        cdef intp_t k, number, total = 0, width = self.width
        cdef cnp.ndarray numbers
        cdef intp_t* rows
        cdef list drawn = [None] * width
        bit_generator = rng.bit_generator
        cdef Bits bits = c_bits_of(c_bit_generator(bit_generator))
        cdef intp_t* stops = <intp_t*> calloc(3 * width, sizeof(intp_t))
        cdef intp_t* taken = stops + width
        cdef const intp_t** slots = <const intp_t**> (taken + width)
        if stops == NULL:
            raise MemoryError("no memory left to draw rows")
        try:
            for number in range(width):
                total += <intp_t> counts[number]
                stops[number] = total
            if total == 0:  # a signal handler may have followed a clear since rows were counted first
                raise NotEnoughDataError("cannot sample: there is no row that can be drawn")
            if replace:
                numbers = c_numbers(1, &n, cnp.NPY_INTP)
                rows = <intp_t*> cnp.PyArray_DATA(numbers)
                lock = bit_generator.lock
                lock.acquire()  # nothing is allocated or raised until the release
                c_bounded_each(&bits, total, rows, n)
                lock.release()
                for k in range(n):
                    number = 0
                    while rows[k] >= stops[number]:
                        number += 1
                    rows[k] = number
            else:
                taken_each = rng.multivariate_hypergeometric(counts, n)
                numbers = rng.permutation(np.repeat(np.arange(width), taken_each))
                rows = <intp_t*> cnp.PyArray_DATA(numbers)
            for k in range(n):
                taken[rows[k]] += 1
            for number in range(width):
                if taken[number]:
                    drawn[number] = draw(number, taken[number])
                    slots[number] = <const intp_t*> cnp.PyArray_DATA(<cnp.ndarray?> drawn[number])
            for k in range(n):
                number = rows[k]
                rows[k] = slots[number][0] << self.bits | number
                slots[number] += 1
        finally:
            free(stops)
        return numbers

    cdef tuple c_read(self, shards, tuple wanted):
        """Draw and read a batch once, as ``consistently`` says."""
        cdef intp_t n = wanted[0]
        cdef SampleOptions options = wanted[1]
        cdef dict batch, extra = {}
        if self.is_uniform and self.limits is None and not options.indexes:
            rows = self.draw_uniform(n, shards.rng, options.replace)
        else:
            rows, extra = shards.choose(None, n, options)
        if wanted[4] is None:
            batch = self.c_take(rows, wanted[3], wanted[2])
        else:
            batch = wanted[4](rows, wanted[3], None, wanted[2])
        for name, values in extra.items():
            batch[name] = c_aligned(values)
        return rows, batch

    # ------------------------------------------------------------------ handles

    def without_row(self, const int64_t[::1] handles):
        """The positions of the handles that name no row and never did: an array of intp."""
        cdef intp_t k, number
        cdef int64_t own
        cdef Ring ring
        cdef list wrong = []
        for k in range(handles.shape[0]):
            number, own = <intp_t> (handles[k] & self.mask), handles[k] >> self.bits
            if handles[k] >= 0 and number < self.width and self.rings[number] is not None:
                ring = self.c_ring(number)
                if 0 <= own - ring.span < ring.state[HANDLE_BASE] + ring.state[WRITTEN]:
                    continue
            wrong.append(k)
        return np.array(wrong, np.intp)


cdef void c_find_rows(
    const Share* shares, intp_t count, int spread, intp_t* rows, intp_t n
) noexcept nogil:
    """Places among the rows of all shares become numbers of rows."""
    cdef intp_t k, place, slot, scale = (count << 32) // shares[count - 1].stop
    cdef const Share* share
    for k in range(n):
        place = rows[k]
        share = shares + (place * scale >> 32)  # if all have as many rows
        while place < share.start:
            share -= 1
        while place >= share.stop:
            share += 1
        slot = share.first + place
        slot = slot if slot < share.capacity else slot - share.capacity
        rows[k] = slot << spread | share.number


def consistently(Followers group not None, shards, attempt):
    """What ``attempt`` makes of rows that are there until it returns: see ``Learner.consistently``.

    Returns the tuple of an attempt: the rows that it read, and what it made of them. Raises
    ``RuntimeError`` after 1,000 tries and ten seconds.

    Parameters
    ----------
    shards : FollowedShards
        Its lock is held.
    attempt : callable or tuple
        A function of the caller; or the arguments of a batch: n, the options of ``sample``, columns, the
        caller's arrays for them or None, and a function ``take(rows, arrays, None, columns)`` or None.
    """
    cdef dict margins = {}
    cdef tuple found, wanted = attempt if type(attempt) is tuple else None
    cdef int64_t follows, tried = 0
    cdef bint passes, holds
    cdef bytes moment = None
    until = 0.0
    limits, drawn = group.limits, group.drawn  # of a call from within which this one is made
    try:
        while True:
            group.follow_all(shards)
            group.limits, group.drawn = shards.limits_of(margins) if margins else None, None
            noted = None if group.is_uniform else shards.sampler.draw_state()
            if wanted is None:
                moment = group.now()
            follows, found, passes, holds = group.follows, None, True, False
            try:
                if wanted is None:
                    found = attempt()
                    holds = found is not None and group.holds(moment, found[0])
                else:
                    found = group.c_read(shards, wanted)
                    holds = group.follows == follows and group.c_hold_now(found[0])
                if holds:
                    return found
            except NotEnoughDataError:
                if not margins and group.follows == follows:
                    raise
                margins, passes = {}, False  # all known rows were written over: newer ones are there
            except (ValueError, IndexError):
                # The error is that of the rows that were drawn, unless these are gone.
                if (
                    group.follows == follows if group.drawn is None or moment is None
                    else group.holds(moment, group.drawn)
                ):
                    raise
            finally:
                if noted and not holds:
                    vars(shards.sampler).update(noted)  # no draw, but its random numbers are used
            tried += 1
            if tried == 1:
                until = monotonic() + PATIENCE
            elif tried >= MOST_TRIES and monotonic() > until:
                raise RuntimeError(TOO_FAST)
            if passes:
                shards.widen(margins)
                if wanted is None:
                    shards.leave_out_lost()  # a function may choose its rows by their place
    finally:
        group.limits, group.drawn = limits, drawn
