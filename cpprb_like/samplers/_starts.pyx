"""``Starts``: the rows at which sequences, n-step returns and frame stacks can start.

``choose_rows`` draws, for each row, another row of its episode, whose goal the row gets.

Random slots are tried while starts are common; otherwise starts are drawn from the set of all. The
method depends on the rows and the generator alone, so a restored buffer draws the same rows.
Compiled because each row that is tried has to be read. Not here: how sequences are read
(``views._gather_windows``), and starts by priority (``_prioritized``).
"""

cimport cython
cimport numpy as cnp
from libc.math cimport sqrt
from libc.stdint cimport int8_t

from cpprb_like._machine.aligned cimport c_numbers
from cpprb_like._c.copying cimport c_prefetch
from cpprb_like._core cimport (
    ABSENT, CLEARS, EDITS, END, LEFT_OUT, WRITTEN, Cursor, Ring, Walk, c_forward, c_is_current,
    c_mark_current, c_previous, c_walk_of,
)
from cpprb_like._rows.episode_index cimport Bounds, EpisodeIndex
from cpprb_like._c.random_integers cimport Bits, c_bit_generator, c_bits_of, c_bounded, c_bounded_each
from cpprb_like._rows.slot_set cimport SlotSet, c_has
from cpprb_like._c.typedefs cimport float64_t, int64_t, intp_t, uint8_t

import numpy as np

from cpprb_like.errors import NotEnoughDataError
from cpprb_like.samplers._uniform_draws import draw_uniform

cnp.import_array()

cdef enum:
    TRIES = 32               # most tries for each start, times the stride
    SPARE_TRIES = 256
    FETCHED = 32             # flags that are prefetched before the first is read
    ROUNDS = 4               # draws with replacement, before the rest is drawn from a list
    PICKS = 32               # absent rows drawn of an episode, before its rows are counted

cdef enum:  # strategies of ``choose_rows``
    C_FUTURE = 0
    C_FINAL = 1
    C_EPISODE = 2
    C_RANDOM = 3

cdef enum:  # states of a row
    NEVER = -1               # no sequence can ever start at the row
    WAITS = 0                # a sequence may start when more rows follow
    STARTS = 1


def choose(intp_t n, intp_t among, rng):
    """n numbers below ``among``, each with the same probability: an array of intp.

    The randomness comes from ``rng``, a ``numpy.random.Generator``.
    """
    if among < 1:
        raise ValueError(f"among: expected at least 1, got {among}")
    bit_generator = rng.bit_generator
    cdef cnp.ndarray numbers = c_numbers(1, &n, cnp.NPY_INTP)
    cdef Bits bits = c_bits_of(c_bit_generator(bit_generator))
    with bit_generator.lock:
        c_bounded_each(&bits, among, <intp_t*> cnp.PyArray_DATA(numbers), n)
    return numbers


@cython.final
cdef class Starts:
    """The rows of a ring at which a sequence can start.

    A sequence is a row and up to ``rows - 1`` rows that follow it in its stream, without absent rows.
    From a start on, its episode must have ``least`` rows if it has ended, else ``rows``; with
    ``across``, ``rows`` rows of any episodes. Starts are the first rows of episodes, and rows whose
    number in their stream is a multiple of ``stride``. The ring must have ``before`` rows of the episode
    before a start, or the first row of the episode. Any threads may call the methods.
    """

    def __cinit__(
        self, EpisodeIndex index not None, *, intp_t rows, intp_t least, bint across, intp_t stride,
        intp_t before=0,
    ):
        if not (1 <= least <= rows and stride >= 1 and before >= 0):
            raise ValueError(
                "expected 1 <= least <= rows, 1 <= stride and 0 <= before, "
                f"got {least}, {rows}, {stride} and {before}"
            )
        self.index = index
        self.ring = index.ring
        self.rows = rows
        self.least = least
        self.across = across
        self.stride = stride
        self.before = before
        self.starts = SlotSet(self.ring.capacity)

    @property
    def nbytes(self):
        """Bytes of memory: none until starts are rare, then a quarter of a byte a slot."""
        return self.starts.nbytes

    cdef int c_prepare(self) except -1:
        """Bring the index of episodes up to date, before the methods below read it."""
        if self.ring.c_absent() and (self.across or self.stride > 1 or self.before):
            self.index.c_sync_rows()
        return 0

    # ------------------------------------------------------------------ one row

    cdef bint c_is_first(self, int64_t row) noexcept nogil:
        """Whether an episode begins at a row; false if the row before it was overwritten."""
        cdef Bounds bounds
        cdef uint8_t flags
        if row - self.ring.n_envs < self.ring.c_first():
            return row < self.ring.n_envs
        flags = self.ring.c_flags(<intp_t> ((row - self.ring.n_envs) % self.ring.capacity))[0]
        if not flags & ABSENT or flags & END:
            return flags & END
        if flags & LEFT_OUT:
            return False
        return self.index.c_find_row(row, &bounds) and bounds.first == row and bounds.is_known

    cdef bint c_is_on_stride(self, int64_t row) noexcept nogil:
        """Whether ``stride`` allows a start at a row."""
        if self.stride == 1 or row // self.ring.n_envs % self.stride == 0:
            return True
        return self.c_is_first(row)

    cdef bint c_has_before(self, int64_t row) noexcept nogil:
        """Whether the ring has the rows of the episode that ``before`` requires."""
        cdef intp_t _
        if not self.ring.c_absent() and row - self.before * self.ring.n_envs >= self.ring.c_first():
            return True  # ``before`` rows precede, of any episodes
        for _ in range(self.before):
            if self.c_is_first(row):
                return True
            row = c_previous(self.ring, row)
            if row < self.ring.c_first():
                return False
        return True

    cdef bint c_is_complete(self, intp_t slot) noexcept nogil:
        """Whether the n-step window of the buffer's own ``Nstep`` is complete; true without one."""
        return self.ring.lookahead == 0 or self.ring.c_can_draw(slot)

    cdef intp_t c_looked_at(self, int64_t row) noexcept nogil:
        """Number of rows to read, from a row on, to decide whether it is a start."""
        cdef int64_t last = row + (self.rows - 1) * self.ring.n_envs
        if self.ring.c_absent() or last >= self.ring.state[WRITTEN]:
            return self.rows
        # The ring has all rows of the sequence, so only an early end can prevent a start.
        return 1 if self.across else self.least

    cdef int c_state(self, intp_t slot) noexcept nogil:
        """State of the row in a slot in use: NEVER, WAITS or STARTS."""
        cdef int64_t row = self.ring.c_row_at(slot)
        cdef intp_t count = 1, most = self.c_looked_at(row)
        cdef Walk walk
        cdef Cursor at
        if row < self.ring.c_first() or self.ring.c_absent() and self.ring.c_is_absent(slot):
            return NEVER
        if not self.c_is_on_stride(row) or self.before and not self.c_has_before(row):
            return NEVER
        if not self.c_is_complete(slot):
            return WAITS
        if count >= most:
            return STARTS
        walk, at = c_walk_of(self.ring), Cursor(row, slot)
        while count < most:
            if not self.across and walk.flags[at.slot * walk.stride] & END:
                return STARTS if count >= self.least else NEVER
            if not c_forward(&walk, &at):
                return WAITS
            count += 1
        return STARTS

    # ------------------------------------------------------------------ many

    def tell(self, cnp.ndarray slots):
        """State of each of the slots, which are in use: int8.

        1 if a sequence can start there, 0 if rows have to follow first, -1 if no sequence ever can.
        """
        self.c_prepare()
        self.ring.c_check_slots(slots)
        cdef intp_t n = cnp.PyArray_DIM(slots, 0)
        cdef cnp.ndarray states = c_numbers(1, &n, cnp.NPY_INT8)
        self.c_tell(
            <const intp_t*> cnp.PyArray_DATA(slots), n, <int8_t*> cnp.PyArray_DATA(states)
        )
        return states

    cdef void c_tell(self, const intp_t* slots, intp_t n, int8_t* states) noexcept nogil:
        cdef bint looks = self.stride > 1 or self.least > 1 or self.ring.c_absent()
        cdef intp_t k, start = 0, end
        while start < n:
            end = min(n, start + FETCHED)
            if looks:
                for k in range(start, end):
                    c_prefetch(self.ring.c_flags(max(slots[k] - self.ring.n_envs, 0)))
            for k in range(start, end):
                states[k] = <int8_t> self.c_state(slots[k])
            start = end

    @property
    def count(self):
        """Number of slots at which a sequence can start.

        Cost: some 20 ns for each row; a later call reads only rows that were added since.
        """
        self.c_follow()
        return self.starts.count

    def slots(self):
        """All slots at which a sequence can start, ascending. Cost: that of ``count``, and a copy."""
        self.c_follow()
        return self.starts.c_list(self.starts.count, False)

    def draw(self, intp_t n, rng):
        """Draw n slots at which a sequence can start, each with the same probability: intp.

        Up to some dozens of slots are tried for each. The rest is drawn from the set of all starts. Raises
        ``NotEnoughDataError`` if there are none.
        """
        bit_generator = rng.bit_generator
        cdef cnp.ndarray drawn = c_numbers(1, &n, cnp.NPY_INTP)
        cdef Bits bits = c_bits_of(c_bit_generator(bit_generator))
        cdef intp_t* out = <intp_t*> cnp.PyArray_DATA(drawn)
        cdef intp_t k = 0
        lock = bit_generator.lock
        self.c_prepare()
        # While the lock is held nothing is allocated and nothing raised: see ``draw_uniform``.
        lock.acquire()
        k = self.c_try(out, n, &bits)
        lock.release()
        if k < n:
            self.c_follow()
            lock.acquire()
            k = self.c_choose(out, k, n, &bits)
            lock.release()
            if k < n:
                self.refuse()
        return drawn

    def draw_distinct(self, intp_t n, rng):
        """Draw n distinct slots, otherwise as ``draw``.

        Raises ``NotEnoughDataError`` if a sequence can start at fewer.
        """
        return distinct_of(self, n, rng)

    cdef intp_t c_try(self, intp_t* out, intp_t n, Bits* bits) noexcept:
        """Try slots until n starts are found, or starts are too rare; return the number found."""
        cdef intp_t k = 0, stored = self.ring.c_stored()
        cdef intp_t pay = TRIES * max(1, min(stored, self.stride)), left = SPARE_TRIES + pay
        cdef intp_t[FETCHED] tried
        cdef int8_t[FETCHED] states
        cdef intp_t i, count
        while k < n and left and stored:
            # The expected number of tries if one row in a stride is a start.
            count = min(FETCHED, left, (n - k) * min(self.stride, FETCHED))
            for i in range(count):
                tried[i] = <intp_t> c_bounded(bits, stored)
            self.c_tell(tried, count, states)
            left -= count
            for i in range(count):
                if k < n and states[i] == STARTS:
                    out[k] = tried[i]
                    k += 1
                    left += pay
        return k

    cdef intp_t c_choose(self, intp_t* out, intp_t k, intp_t n, Bits* bits) noexcept:
        """Draw the k-th to the n-th start from the set of all; return the number drawn in all."""
        cdef intp_t slot
        while k < n and self.starts.count:
            slot = self.starts.c_at(<intp_t> c_bounded(bits, self.starts.count))
            if self.c_check(slot):
                out[k] = slot
                k += 1
        return k

    # ------------------------------------------------------------------ the set of all starts

    cdef int c_follow(self) except -1:
        """Update the set of all starts.

        The first call reads all rows, later calls read the rows from the oldest waiting one on.
        """
        cdef Ring ring = self.ring
        cdef int64_t row, waits, first
        cdef cnp.ndarray memory
        self.c_prepare()
        if self.c_is_over():
            memory = self.starts.c_allocate()
            self.c_prepare()  # last: other threads may add rows during the allocation
            self.starts.c_forget(memory)
            self.waits = self.oldest = 0
        elif c_is_current(self):
            return 0
        first, waits = ring.c_first(), ring.state[WRITTEN]
        for row in range(max(self.oldest, waits - ring.capacity), first):
            self.c_discard(<intp_t> (row % ring.capacity))  # the ring leaves these rows out
        for row in range(max(self.waits, first), ring.state[WRITTEN]):
            if self.c_look(<intp_t> (row % ring.capacity)) == WAITS:
                waits = min(waits, row)
        self.waits = waits
        if self.oldest != first and (self.before or self.stride > 1):
            self.c_check_oldest()
        c_mark_current(self)
        return 0

    cdef bint c_is_over(self) noexcept:
        """Whether all rows must be read: by the first call, and after a deletion or a clear."""
        return (
            self.starts.memory is None or self.clears != self.ring.state[CLEARS]
            or self.ring.c_first() < self.oldest
            or self.ring.c_absent() and self.edits != self.ring.state[EDITS]
        )

    cdef int c_look(self, intp_t slot) noexcept:
        """Add the row in a slot to the set, or remove it; returns its state."""
        cdef int state = self.c_state(slot)
        if state != STARTS:
            self.c_discard(slot)
        elif not c_has(self.starts, slot):
            self.starts.c_add(slot)
        return state

    cdef void c_discard(self, intp_t slot) noexcept:
        """Remove a slot from the set, if the set has it."""
        if c_has(self.starts, slot):
            self.starts.c_remove(slot)

    cdef bint c_check(self, intp_t slot) noexcept:
        """Whether a slot of the set is still a start; if not, the slot is removed."""
        if slot < self.ring.c_stored() and self.c_state(slot) == STARTS:
            return True
        self.c_discard(slot)  # another thread cleared the ring, or deleted rows
        return False

    cdef void c_check_oldest(self) noexcept:
        """Check the oldest rows of each stream, as preceding rows were overwritten."""
        cdef Ring ring = self.ring
        cdef int64_t row
        cdef intp_t stream, _
        for stream in range(ring.n_envs):
            row = ring.c_first() + stream  # ``n_envs`` consecutive rows are one of each stream
            if row < ring.state[WRITTEN] and ring.c_is_absent(<intp_t> (row % ring.capacity)):
                row = ring.c_next(row, ring.state[WRITTEN])
            for _ in range(self.before + 1):
                if not 0 <= row < ring.state[WRITTEN]:
                    break
                if c_has(self.starts, <intp_t> (row % ring.capacity)):
                    self.c_check(<intp_t> (row % ring.capacity))
                row = ring.c_next(row, ring.state[WRITTEN])

    def refuse(self, distinct=None):
        """Raise ``NotEnoughDataError``: a sequence can start nowhere, or at too few slots."""
        # The message fits rows and sequences, as views of n-step returns have starts too.
        needs = []
        if self.across:
            needs.append(f"begin {self.rows} rows of an environment")
        elif self.rows > 1:
            needs.append(f"begin {self.rows} rows of an episode, or at least {self.least} up to its end")
        if self.before:
            needs.append(f"have the {self.before} before them, as far as there were any")
        need = ", and ".join(needs) if needs else "can be drawn"
        if distinct is not None:
            raise NotEnoughDataError(
                f"cannot sample {distinct} distinct rows: the buffer holds {len(self.ring)}, "
                f"of which {len(self.slots())} {need}"
            )
        raise NotEnoughDataError(
            f"cannot sample: the buffer holds {len(self.ring)} rows, of which none {need}"
        )


def distinct_of(starts, intp_t n, rng):
    """Draw n distinct slots of ``starts``, each with the same probability.

    ``starts`` is a ``Starts``, or an object with its other methods. Raises ``NotEnoughDataError`` for
    fewer slots.
    """
    drawn = np.empty(0, np.intp)
    if n > len(starts.ring):
        starts.refuse(n)
    for _ in range(ROUNDS):
        if len(drawn) == n:
            return drawn
        # A repeated slot is dropped, so each of the others is equally likely.
        drawn = np.concatenate([drawn, starts.draw(n - len(drawn), rng)])
        drawn = drawn[np.sort(np.unique(drawn, return_index=True)[1])]
    others = np.setdiff1d(starts.slots(), drawn)
    if len(drawn) + len(others) < n:
        starts.refuse(n)
    return np.concatenate([drawn, rng.permutation(others)[: n - len(drawn)]])


# ---------------------------------------------------------------------- rows of the same episode

FUTURE = C_FUTURE
FINAL = C_FINAL
EPISODE = C_EPISODE
RANDOM = C_RANDOM


def choose_rows(EpisodeIndex index not None, cnp.ndarray slots not None, rng, int strategy):
    """Draw, for each row that holds a step, a row of its episode; both by slot.

    ``FUTURE`` draws from the row itself to the last row of its episode, ``EPISODE`` from all rows of
    the episode, ``RANDOM`` from all rows of the ring. ``FINAL`` takes the last row of the episode. Any
    threads may call the function.
    """
    index.ring.c_check_slots(slots)
    if strategy == C_RANDOM:
        return draw_uniform(index.ring, cnp.PyArray_DIM(slots, 0), rng)
    index.c_sync_rows()
    bit_generator = rng.bit_generator
    cdef Bits bits = c_bits_of(c_bit_generator(bit_generator))
    cdef intp_t n = cnp.PyArray_DIM(slots, 0)
    cdef cnp.ndarray chosen = c_numbers(1, &n, cnp.NPY_INTP)
    cdef bint there
    # While the lock is held nothing is allocated and nothing raised: see ``draw_uniform``.
    lock = bit_generator.lock
    lock.acquire()
    there = c_choose_rows(
        index, <const intp_t*> cnp.PyArray_DATA(slots), <intp_t*> cnp.PyArray_DATA(chosen), n,
        &bits, strategy,
    )
    lock.release()
    if not there:
        raise IndexError("slots: rows went away while their goals were chosen")
    return chosen


cdef bint c_choose_rows(
    EpisodeIndex index, const intp_t* given, intp_t* chosen, intp_t n, Bits* bits, int strategy
) noexcept:
    """``choose_rows`` with the lock of the generator; false if a slot is no longer in use.

    Rows that were added while the caller waited for the lock are not considered. A row that was
    overwritten in that time is returned as its own choice.
    """
    cdef Ring ring = index.ring
    cdef Bounds bounds
    cdef int64_t row
    cdef intp_t k, stored = ring.c_stored()
    for k in range(n):
        if given[k] >= stored:
            return False
    index.c_fetch_rows(given, n)
    for k in range(n):
        row = ring.c_row_at(given[k])
        if index.clears == ring.state[CLEARS] and index.c_find_row(row, &bounds):
            if strategy == C_FINAL:
                row = bounds.last
            else:
                row = c_pick(ring, bits, row if strategy == C_FUTURE else bounds.first, bounds.last)
        chosen[k] = <intp_t> (row % ring.capacity)
    return True


cdef int64_t c_pick(Ring ring, Bits* bits, int64_t first, int64_t last) noexcept:
    """A random row that holds a step, of a stream from ``first`` to ``last``, which hold one.

    Rows are tried first. If too many are absent, the rows that hold a step are counted.
    """
    cdef int64_t n = (last - first) // ring.n_envs + 1, row = last, present = 0, number
    cdef intp_t _, tries = 1
    if ring.c_absent():
        tries = PICKS + <intp_t> sqrt(<float64_t> n)
    for _ in range(tries):
        row = first + ring.n_envs * <int64_t> c_bounded(bits, n)
        if not ring.c_absent() or not ring.c_is_absent(<intp_t> (row % ring.capacity)):
            return row
    row = first
    while row >= 0:
        present += 1
        row = ring.c_next(row, last + 1)
    number = <int64_t> c_bounded(bits, present)
    row = first
    for _ in range(number):
        row = ring.c_next(row, last + 1)
    return row
