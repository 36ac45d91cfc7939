"""``Follower`` and ``Followers``: rings that follow the rows of other processes.

The rows are in shared memory; derived state is not. A ring that follows has its own header, flags and
index. ``Follower.sync`` updates these, as if the new rows had been added in this process. Between two
calls only bytes of rows change, and ``Ring.holds`` tests whether the rows of a read were overwritten: a
row is valid until the writer reserves its slot for a newer row. A follower writes nothing to the shared
memory and does not wait for the writer. ``Followers`` are several followers as one ring.

Compiled because every draw of a learner follows, reads and checks. Not here: the memory (``_shards``),
the calls of the writer for its followers (``_core``), and weights and starts over several rings
(``_draws``).
"""

cimport cython
cimport numpy as cnp
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdlib cimport calloc, free, malloc

from cpprb_like._machine.aligned cimport c_aligned, c_numbers
from cpprb_like._c.arrays cimport c_check_array
from cpprb_like._c.copying cimport c_move
from cpprb_like._c.fences cimport c_read_fence
from cpprb_like._c.random_integers cimport Bits, c_bit_generator, c_bits_of, c_bounded_each
from cpprb_like._c.typedefs cimport int64_t, intp_t, uint8_t
from cpprb_like._core cimport (
    ABSENT_ROWS, CLEARS, EDITS, EPISODES, EPISODE_LENS, HANDLE_BASE, RESERVED, WRITTEN, Ring, c_begin_edit,
    c_bound, c_end_edit, c_previous, c_reserved, c_stored,
)
from cpprb_like._rows.walk cimport ABSENT, END, LEFT_OUT
from cpprb_like._rows.chained cimport Chain
from cpprb_like._rows.rings cimport Rings, Share, c_name_rows
from cpprb_like.buffers._entry cimport SampleOptions
from cpprb_like.samplers._uniform_draws cimport Shuffle

from time import monotonic

import numpy as np

from cpprb_like._core import tell_followers
from cpprb_like._machine.waiting import PATIENCE
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.samplers._uniform_draws import draw_uniform as draw_of_ring
from cpprb_like.samplers._whole_rows import RowsChangedError

cnp.import_array()

cdef enum:
    CHUNK = 32               # rows that are followed at once
    TRIES = 16               # tries to read consistent words of a header; or of draws without enough rows
    HEADER_TRIES = 4096      # tries to read all words of a header consistently
    MOST_TRIES = 1000        # smallest number of tries to read rows before an error

TOO_FAST = (
    "rows were written over while they were read, again and again: capacity is too small for as "
    "many rows a second, or the process that edits them was stopped"
)


def read_header(cnp.ndarray state not None):
    """A consistent copy of the header words that another process writes.

    None if the words changed during every read.
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
    """Makes a ring follow the ring of a writer in another process, over the same memory.

    Parameters
    ----------
    ring : Ring
        An empty ring, made with its own ``flags`` and ``state``.
    state : ndarray of int64
        The header of the writer's ring, in shared memory.
    flags : ndarray of uint8, shape (capacity,)
        The flags of the writer's ring: a view of its records.
    changes : ndarray of int64, shape (1,)
        Change counter of the writer: +2 after an edit that cannot be followed row by row, which hid
        rows or repaired a shard. Odd during the edit.
    gone : ndarray of int64, shape (1,)
        The row before which rows of the writer left early: see ``tell_followers``.
    """

    def __cinit__(
        self, Ring ring not None, cnp.ndarray state not None, cnp.ndarray flags not None,
        cnp.ndarray changes not None, cnp.ndarray gone not None,
    ):
        c_check_array(state, "state", cnp.NPY_INT64, EPISODE_LENS + ring.n_envs)
        c_check_array(changes, "changes", cnp.NPY_INT64, 1)
        if not ring.has_own_flags or ring.live != NULL or ring.state[WRITTEN]:
            raise ValueError("ring: expected an empty one with flags of its own")
        if cnp.PyArray_TYPE(flags) != cnp.NPY_UINT8 or flags.shape[0] != ring.capacity:
            raise ValueError(f"flags: expected {ring.capacity} bytes")
        self.ring = ring
        self.memory = flags
        self.live = <const volatile int64_t*> cnp.PyArray_DATA(state)
        self.live_flags = <const uint8_t*> cnp.PyArray_DATA(flags)
        self.live_stride = cnp.PyArray_STRIDE(flags, 0)
        self.changes_memory = changes
        tell_followers(ring, changes, gone)
        ring.seen = -1
        ring.live, ring.live_state = self.live, state
        ring.live_edits = -1

    cdef bint c_is_behind(self) noexcept nogil:
        """Whether the writer has changed anything since the last ``sync``."""
        return (
            self.live[WRITTEN] != self.ring.state[WRITTEN]
            or self.live[EDITS] != self.ring.live_edits
            or self.ring.changes[0] != self.ring.seen
            or (self.ring.gone != NULL and self.ring.gone[0] > self.ring.left_before)
        )

    def sync(self):
        """Follow the writer: see ``c_sync``."""
        return self.c_sync()

    @property
    def bound(self):
        """The oldest row that the writer does not overwrite."""
        return c_bound(self.ring)

    @property
    def first(self):
        """The oldest row that is not left out."""
        return max(self.ring.c_first(), self.left_out)

    @property
    def is_behind(self):
        """Whether the writer has changed anything since the last ``sync``."""
        return self.c_is_behind()

    @property
    def is_busy(self):
        """Whether the writer is editing rows, or died during an edit."""
        return (self.live[EDITS] | self.ring.changes[0]) & 1 != 0

    cdef int c_sync(self) except -1:
        """Follow all changes of the writer since the last call.

        Returns 0; or ``BUSY`` while rows are being edited, and then older rows stay. Cost: proportional
        to the new rows, or to all rows after an edit that cannot be followed row by row.
        """
        cdef intp_t _
        cdef int found = BUSY
        if self.is_inside:  # another thread reads all rows
            return BUSY
        if not self.c_is_behind():
            return 0
        self.is_inside = True
        try:
            for _ in range(TRIES):
                found = self.c_sync_once()
                if found != BUSY:
                    break
        finally:
            self.is_inside = False
        return found

    cdef int c_sync_once(self) except -1:
        """One try of ``c_sync``."""
        cdef Ring ring = self.ring
        cdef Chain chain
        cdef int64_t changes = ring.changes[0], edits, written, clears, base
        cdef int64_t gone = 0
        c_read_fence()
        edits = self.live[EDITS]
        c_read_fence()
        if ring.gone != NULL:
            gone = ring.gone[0]
            c_read_fence()  # no row before ``gone`` is newer than those before ``written``
        written, clears, base = self.live[WRITTEN], self.live[CLEARS], self.live[HANDLE_BASE]
        c_read_fence()
        if (edits | changes) & 1 or self.live[EDITS] != edits or ring.changes[0] != changes:
            return BUSY
        for chain in ring.chains:  # at once, as the writer soon overwrites the newest values
            chain.c_hold_promises(base + written)
        cdef bint rereads = changes != ring.seen
        if clears != ring.state[CLEARS] or base != ring.state[HANDLE_BASE] or written < ring.state[WRITTEN]:
            self.c_forget_rows(clears, base)
        elif edits != ring.live_edits and not rereads:
            self.c_follow_ends()
        ring.live_edits = edits
        cdef bint lapped = written - ring.state[WRITTEN] >= ring.capacity
        if rereads or lapped:
            self.c_reread(written)
        else:
            self.c_follow_rows(written)
        if gone > ring.left_before:
            self.c_leave_out(gone, 0)
            ring.left_before = gone
        ring.seen = -1  # after an error the next try reads all rows and values again
        for chain in ring.chains:
            chain.c_follow(base, written, c_reserved(ring) - ring.capacity, rereads)
        ring.seen = changes
        return 0

    cdef int c_forget_rows(self, int64_t clears, int64_t base) except -1:
        """Forget all rows, as the writer has cleared its ring, or this is the first call."""
        cdef Ring ring = self.ring
        self.left_out = ring.left_before = 0
        if ring.out.count:
            ring.out.c_forget(ring.out.c_allocate())
        ring.state[CLEARS], ring.state[HANDLE_BASE] = clears, base
        ring.state[WRITTEN] = ring.state[RESERVED] = ring.state[ABSENT_ROWS] = 0
        ring.state[EPISODES:] = 0
        return 0

    cdef void c_follow_ends(self) noexcept:
        """Follow ends of episodes in the newest known row of each stream.

        Any other change of flags changes the counter ``changes``.
        """
        cdef Ring ring = self.ring
        cdef intp_t stream, slot
        cdef int64_t row
        cdef uint8_t flags
        c_begin_edit(ring)
        for stream in range(ring.n_envs):
            row = c_previous(ring, ring.state[WRITTEN] + stream)
            if row < 0:
                continue
            slot = <intp_t> (row % ring.capacity)
            flags = self.live_flags[slot * self.live_stride]
            if row < c_bound(ring) or flags == ring.c_flags(slot)[0]:
                continue
            ring.c_flags(slot)[0] = flags
            if flags & END:
                ring.state[EPISODE_LENS + stream] = 0
                ring.state[EPISODES] += 1
        c_end_edit(ring)

    cdef int c_follow_rows(self, int64_t written) except -1:
        """Follow the rows before ``written``, as ``Ring.c_write_records`` does for rows it writes."""
        cdef Ring ring = self.ring
        cdef uint8_t[CHUNK] flags
        cdef uint8_t any_flag
        cdef int64_t first = ring.state[WRITTEN]
        cdef intp_t slot = <intp_t> (first % ring.capacity), n = <intp_t> (written - first)
        cdef intp_t start = 0, count, k, stored = c_stored(ring)
        while start < n:
            count = min(min(n - start, CHUNK), ring.capacity - slot)
            any_flag = 0
            for k in range(count):
                flags[k] = self.live_flags[(slot + k) * self.live_stride]
                any_flag |= flags[k]
            if any_flag & ABSENT:
                ring.c_expect_absent()
            ring.c_count_steps(flags, start, count, any_flag)
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
        """Derive everything from all rows, as when a buffer is opened."""
        cdef Ring ring = self.ring
        cdef intp_t slot
        c_begin_edit(ring)
        ring.state[WRITTEN] = ring.state[RESERVED] = written
        ring.all_flags[...] = self.memory
        self.left_out = ring.left_before = 0
        ring.state[ABSENT_ROWS] = 0
        for slot in range(c_stored(ring)):
            ring.state[ABSENT_ROWS] += (ring.c_flags(slot)[0] & ABSENT) != 0
        ring.state[EPISODES] = self.live[EPISODES]
        for slot in range(ring.n_envs):
            ring.state[EPISODE_LENS + slot] = self.c_open_steps(slot)
        ring.c_rebuild()
        c_end_edit(ring)
        return 0

    cdef int64_t c_open_steps(self, intp_t stream) noexcept:
        """Steps of a stream's open episode, from the flags: the writer's number may be of rows to come."""
        cdef Ring ring = self.ring
        cdef int64_t row = c_previous(ring, ring.state[WRITTEN] + stream), steps = 0
        cdef int64_t oldest = max(c_reserved(ring) - ring.capacity, 0)
        cdef uint8_t flags
        while row >= oldest:
            flags = ring.c_flags(<intp_t> (row % ring.capacity))[0]
            if flags & END:
                return steps
            steps += (flags & ABSENT) == 0
            row -= ring.n_envs
        return steps if row < 0 else max(steps, self.live[EPISODE_LENS + stream])

    def leave_out(self, int64_t row):
        """Leave out the rows before this row, as if they were absent.

        For rows that the writer overwrites soon, after a read of them came too late.
        """
        # Other bits may be of a newer row, whose writing into this slot has begun.
        self.c_leave_out(row, ABSENT | LEFT_OUT)

    cdef int c_leave_out(self, int64_t row, uint8_t flags) except -1:
        """Make the rows before this row absent, with these flags; 0: they left, and keep their own."""
        cdef Ring ring = self.ring
        cdef int64_t first = max(ring.state[WRITTEN] - c_stored(ring), self.left_out), other
        cdef intp_t slot
        row = min(row, ring.state[WRITTEN])
        ring.c_expect_absent()
        c_begin_edit(ring)
        for other in range(first, row):
            slot = <intp_t> (other % ring.capacity)
            if not ring.c_is_absent(slot):
                ring.c_join_run(other, False)
                ring.c_flags(slot)[0] = flags if flags else ring.c_flags(slot)[0] | ABSENT
                ring.state[ABSENT_ROWS] += 1
                ring.out.c_add(slot)
        if flags:
            ring.c_log_hidden(first, row - 1, 1)
        self.left_out = max(self.left_out, row)
        c_end_edit(ring)
        return 0


@cython.final
cdef class Followers(Rings):
    """The rings of several ``Follower`` objects, as one: see ``Rings``.

    Attributes
    ----------
    first_counts : ndarray or None
        For each ring the number of first priorities published with its rows, in shared memory.
    priorities_read : bytes or None
        For each ring the number of first priorities that were read; None without priorities.
    is_settled : bool
        Whether ``FollowedShards.settle`` need not be called as long as no ring is edited.
    is_uniform : bool
        Whether the sampler draws by ``draw_uniform``.
    limits : dict or None
        For each ring that just lost rows, the oldest row that ``FollowedShards.choose`` may return.
    usable_rings : tuple
        The rings whose rows may be drawn, each with its number before it.
    drawn : ndarray or None
        The rows of the last call of ``FollowedShards.choose``.
    """

    def __cinit__(self, intp_t width, Ring layout not None, intp_t capacity):
        self.members = [None] * width
        self.usable = [False] * width
        self.usable_rings = ()

    cdef bint c_is_usable(self, intp_t number) noexcept:
        """Whether rows of a ring may be drawn: the ring exists and is not being edited."""
        return <bint> self.usable[number]

    def put(self, intp_t number, Follower follower not None):
        """Add the ring with this number."""
        self.members[number] = follower
        self.rings[number] = follower.ring

    cpdef list follow(self):
        """Follow all rings.

        Returns the numbers of the rings that are being edited. These rings count as empty until the
        next call.
        """
        cdef intp_t number
        cdef bint is_busy, changed = False
        cdef list busy = []
        self.follows += 1
        for number in range(self.width):
            if self.members[number] is None:
                continue
            is_busy = (<Follower> self.members[number]).c_sync() == BUSY
            changed |= is_busy == self.c_is_usable(number)
            self.usable[number] = not is_busy
            if is_busy:
                busy.append(number)
        if changed:
            self.usable_rings = tuple([
                (number, ring) for number, ring in enumerate(self.rings) if self.usable[number]
            ])
        return busy

    cpdef follow_all(self, shards):
        """See ``FollowedShards.follow``."""
        # Counted before the rows are followed, so that the row of each first priority is known.
        cdef bytes counts = None
        if self.priorities_read is not None:
            counts = PyBytes_FromStringAndSize(cnp.PyArray_BYTES(self.first_counts), 8 * self.width)
        busy = self.follow()
        if busy or not self.is_settled or counts != self.priorities_read:
            shards.settle(busy, counts)

    def __len__(self):
        cdef intp_t number, count = 0
        for number in range(self.width):
            if self.c_is_usable(number):
                count += self.c_ring(number).c_drawable()
        return count

    def present_slots(self):
        """The numbers of all rows that can be drawn."""
        rows = [self.name(number, ring.present_slots()) for number, ring in self.usable_rings]
        return np.concatenate([np.empty(0, np.intp), *rows])

    @property
    def stored(self):
        """Number of slots in use, of all usable rings."""
        cdef intp_t number, count = 0
        for number in range(self.width):
            if self.c_is_usable(number):
                count += c_stored(self.c_ring(number))
        return count

    def counts(self):
        """Rows that can be drawn, rows written, and ended episodes, of all rings."""
        cdef int64_t adds = 0, episodes = 0
        cdef Ring ring
        for ring in self.rings:
            if ring is not None:
                adds += ring.state[WRITTEN]
                episodes += ring.state[EPISODES]
        return {"rows": len(self), "adds": adds, "episodes": episodes}

    # ------------------------------------------------------------------ drawing

    cpdef draw_uniform(self, intp_t n, rng, bint replace):
        """Draw the numbers of n rows of all rings with equal probability.

        Without ``replace`` the rows are distinct and in random order. Raises ``NotEnoughDataError`` for
        too few rows.
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
                    shuffle.c_take_numbers(&bits, values, n)
                lock.release()
                c_name_rows(shares, count, self.bits, values, n)
                return rows
        finally:
            free(shares)
        return self.draw_passing_over(n, rng, replace)

    def draw_passing_over(self, intp_t n, rng, bint replace):
        """As ``draw_uniform``, for rings with rows that cannot be drawn."""
        counts = [0] * self.width
        for number, ring in self.usable_rings:
            counts[number] = len(ring)
        return self.draw_each(
            counts, lambda number, k: draw_of_ring(self.rings[number], k, rng, replace), n, rng, replace
        )

    def draw_each(self, list counts, draw, intp_t n, rng, bint replace=True):
        """Draw n rows with equal probability, of rings with ``counts`` rows.

        ``draw(number, k)`` draws k slots of one ring, distinct ones without ``replace``.
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
            if total == 0:  # a signal handler may have followed a clear since the first count
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

    cdef tuple c_read_once(self, shards, tuple wanted):
        """Draw and read a batch once: see ``consistently``."""
        cdef intp_t n = wanted[0]
        cdef SampleOptions options = wanted[1]
        cdef dict batch, extra = {}
        if wanted[5] is None and self.is_uniform and self.limits is None and not options.indexes:
            rows = self.draw_uniform(n, shards.rng, options.replace)
        else:
            rows, extra = shards.choose(wanted[5], n, options)
        if wanted[4] is None:
            batch = self.c_take_columns(rows, wanted[3], wanted[2])
        else:
            batch = wanted[4](rows, wanted[3], None, wanted[2])
        for name, values in extra.items():
            batch[name] = c_aligned(values)
        return rows, batch

    # ------------------------------------------------------------------ handles

    def without_row(self, const int64_t[::1] handles):
        """The positions of invalid handles, which never named a row: an array of intp."""
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


def consistently(Followers group not None, shards, attempt):
    """The result of an attempt during which its rows did not change: see ``Learner.consistently``.

    Returns the tuple of the attempt: the rows that were read, and the values made of them. Raises
    ``RuntimeError`` after 1,000 tries and ten seconds.

    Parameters
    ----------
    shards : FollowedShards
        The shards, whose lock is held.
    attempt : callable or tuple
        A function without arguments that returns such a tuple or None; or a tuple for a batch: n, the
        options of ``sample``, columns, arrays for them or None, a function
        ``take(rows, arrays, None, columns)`` or None, and ``StartsTogether`` or None for all rows.
    """
    cdef dict margins = {}
    cdef tuple found, wanted = attempt if type(attempt) is tuple else None
    cdef int64_t follows, tried = 0
    cdef bint passes, holds, is_overtaken
    cdef bytes moment = None
    until = 0.0
    limits, drawn = group.limits, group.drawn  # of an outer call in this thread
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
                    found = group.c_read_once(shards, wanted)
                    holds = group.follows == follows and group.c_hold_now(found[0])
                if holds:
                    return found
            except NotEnoughDataError:
                is_overtaken = tried < TRIES and shards.are_overtaken()
                if not margins and group.follows == follows and not is_overtaken:
                    raise
                margins, passes = {}, False  # all rows beyond the margins were overwritten, or left out by rules
                shards.leave_out_lost()
            except RowsChangedError:
                pass  # the attempt is repeated
            except (ValueError, IndexError):
                # The error may come from rows that were overwritten; then the attempt is repeated.
                if (
                    group.follows == follows if group.drawn is None or moment is None
                    else group.holds(moment, group.drawn)
                ):
                    raise
            finally:
                if noted and not holds:
                    vars(shards.sampler).update(noted)  # not a draw; the generator is not set back
            tried += 1
            if tried == 1:
                until = monotonic() + PATIENCE
            elif tried >= MOST_TRIES and monotonic() > until:
                raise RuntimeError(TOO_FAST)
            if passes:
                shards.widen(margins)
                if wanted is None:
                    shards.leave_out_lost()  # a function may choose rows without ``limits``
    finally:
        group.limits, group.drawn = limits, drawn
