"""``Starts``: the rows at which sequences, n-step returns and frame stacks can start.

``choose_rows`` draws, for each row, another row of its episode, whose goal the row gets.

Random slots are tried while starts are common; otherwise starts are drawn from the set of all. The
method depends on the rows and the generator alone, so a restored buffer draws the same rows.
Compiled because each row that is tried has to be read. Not here: how sequences are read
(``views._gather_windows``), and starts by priority (``_prioritized``).
"""

cimport cython
cimport numpy as cnp
from cpython.object cimport PyObject
from libc.math cimport sqrt
from libc.stdint cimport int8_t
from libc.stdlib cimport calloc, free

from cpprb_like._machine.aligned cimport c_numbers
from cpprb_like._c.copying cimport FETCHED_FLAGS, c_prefetch
from cpprb_like._core cimport (
    CLEARS, WRITTEN, Ring, c_absent, c_is_current, c_mark_current, c_previous, c_stored,
    c_walk_of,
)
from cpprb_like._rows.walk cimport ABSENT, END, LEFT_OUT, Cursor, Walk, c_forward
from cpprb_like._rows.episode_index cimport Bounds, EpisodeIndex
from cpprb_like._c.random_integers cimport Bits, c_bit_generator, c_bits_of, c_bounded, c_bounded_each
from cpprb_like._rows.rings cimport Share, c_name_rows
from cpprb_like._rows.slot_set cimport SlotSet, c_has
from cpprb_like._c.typedefs cimport float64_t, int64_t, intp_t, uint8_t, uint64_t
from cpprb_like._segment_tree cimport SumTree

import numpy as np

from cpprb_like.errors import NotEnoughDataError
from cpprb_like.samplers._uniform_draws import draw_uniform

cnp.import_array()

cdef enum:
    TRIES = 32               # most tries for each start, times the stride
    SPARE_TRIES = 256
    ROUNDS = 4               # draws with replacement, before the rest is drawn from a list
    LARGE_PART = 16          # part of the ring from which on distinct draws come from the list
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

    cdef int c_sync_index(self) except -1:
        """Bring the index of episodes up to date, before the methods below read it."""
        if c_absent(self.ring) and (self.across or self.stride > 1 or self.before):
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
        if not c_absent(self.ring) and row - self.before * self.ring.n_envs >= self.ring.c_first():
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
        if c_absent(self.ring) or last >= self.ring.state[WRITTEN]:
            return self.rows
        # The ring has all rows of the sequence, so only an early end can prevent a start.
        return 1 if self.across else self.least

    cdef bint c_reads_before(self) noexcept nogil:
        """Whether ``c_state`` may read the row before the row in a slot."""
        return self.stride > 1 or self.least > 1 or c_absent(self.ring)

    cdef const uint8_t* c_flags_before(self, intp_t slot) noexcept nogil:
        """Flags of the row before the row in a slot, or near them."""
        return self.ring.c_flags(max(slot - self.ring.n_envs, 0))

    cdef int c_state(self, intp_t slot) noexcept nogil:
        """State of the row in a slot in use: NEVER, WAITS or STARTS."""
        cdef int64_t row = self.ring.c_row_at(slot)
        cdef intp_t count = 1, most = self.c_looked_at(row)
        cdef Walk walk
        cdef Cursor at
        if row < self.ring.c_first() or c_absent(self.ring) and self.ring.c_is_absent(slot):
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

    cdef void c_note_certain(self) noexcept:
        """Note which rows are starts by their age alone, for ``c_state_of``.

        Their sequences are neither near the newest row nor near the oldest one. That is enough where
        no row is absent, and where neither ``stride`` nor ``least`` depends on episodes.
        """
        cdef Ring ring = self.ring
        cdef intp_t newest = max(self.rows - 1, ring.lookahead) * ring.n_envs
        cdef int64_t oldest = ring.state[WRITTEN] - ring.c_first() - self.before * ring.n_envs
        self.last = <intp_t> (ring.state[WRITTEN] % ring.capacity) - 1
        self.newest = newest
        self.certain = 0
        if not c_absent(ring) and self.stride == 1 and (self.least == 1 or self.across):
            self.certain = <intp_t> max(oldest - newest, 0)

    # ------------------------------------------------------------------ many

    def tell(self, cnp.ndarray slots):
        """State of each of the slots, which are in use: int8.

        1 if a sequence can start there, 0 if rows have to follow first, -1 if no sequence ever can.
        """
        self.c_sync_index()
        self.ring.c_check_slots(slots)
        cdef intp_t n = cnp.PyArray_DIM(slots, 0)
        cdef cnp.ndarray states = c_numbers(1, &n, cnp.NPY_INT8)
        cdef PyObject* starts = <PyObject*> self
        self.c_note_certain()
        c_tell(
            &starts, 0, self.c_reads_before(), <const intp_t*> cnp.PyArray_DATA(slots), n,
            <int8_t*> cnp.PyArray_DATA(states),
        )
        return states

    @property
    def count(self):
        """Number of slots at which a sequence can start.

        Cost: some 20 ns for each row; a later call reads only rows that were added or deleted since.
        """
        self.c_sync_starts()
        return self.starts.count

    def slots(self):
        """All slots at which a sequence can start, ascending. Cost: that of ``count``, and a copy."""
        self.c_sync_starts()
        return self.starts.c_list(self.starts.count, False)

    def over(self, rows):
        """See ``Rows.over``."""
        return rows

    def parts(self, rows, intp_t n, rng):
        """See ``Rows.parts``."""
        return [(self, rows, n, 1.0)]

    def draw_parts(self, rows, intp_t n, rng, bint stratified):
        """See ``Rows.draw_parts``."""
        return None

    def is_exact(self, rows):
        """See ``Rows.is_exact``."""
        return False

    @property
    def cuts_only(self):
        """See ``Rows.cuts_only``."""
        return True

    def corrected(self, rows, slots, weights):
        """See ``Rows.corrected``."""
        return weights

    def weigh(self, rows not None):
        """The sum of the weights of all slots at which a sequence can start; ``rows`` are ``RowWeights``.

        Cost: that of ``count``, and up to 1 ns for each slot: of 64 starts in a row one node of the tree
        is read.
        """
        self.c_sync_starts()
        rows.sync()
        return c_sum_of(self.starts, rows.tree)

    def draw(self, intp_t n, rng):
        """Draw n slots at which a sequence can start, each with the same probability: intp.

        Raises ``NotEnoughDataError`` if there are none.
        """
        cdef Share share
        cdef PyObject* starts = <PyObject*> self
        cdef Among among = Among(&starts, &share, 1, 0, False)
        share.number = 0
        drawn = c_draw_starts(&among, n, rng)
        if drawn is None:
            self.refuse()
        return drawn

    def draw_distinct(self, intp_t n, rng):
        """Draw n distinct slots, otherwise as ``draw``.

        Raises ``NotEnoughDataError`` if a sequence can start at fewer.
        """
        return distinct_of(self, n, rng)

    # ------------------------------------------------------------------ the set of all starts

    cdef int c_sync_starts(self) except -1:
        """Update the set of all starts.

        The first call reads all rows. Later calls read the rows from the oldest waiting one on, and
        rows near those that were hidden.
        """
        cdef Ring ring = self.ring
        cdef int64_t row, waits, first
        cdef cnp.ndarray memory
        self.c_sync_index()
        if self.c_is_over():
            memory = self.starts.c_allocate()
            self.c_sync_index()  # last: other threads may add rows during the allocation
            self.starts.c_forget(memory)
            self.waits = self.oldest = 0
            self.hidden = ring.n_hidden
        elif c_is_current(self):
            return 0
        cdef bint any_hidden = self.c_follow_hidden()
        first, waits = ring.c_first(), ring.state[WRITTEN]
        for row in range(max(self.oldest, waits - ring.capacity), first):
            self.c_discard(<intp_t> (row % ring.capacity))  # the ring leaves these rows out
        for row in range(max(self.waits, first), ring.state[WRITTEN]):
            if self.c_sync_start(<intp_t> (row % ring.capacity)) == WAITS:
                waits = min(waits, row)
        self.waits = waits
        if (any_hidden or self.oldest != first) and (self.before or self.stride > 1):
            self.c_check_oldest()
        c_mark_current(self)
        return 0

    cdef bint c_is_over(self) noexcept:
        """Whether all rows must be read: by the first call, after a clear, and after many deletions."""
        return (
            self.starts.memory is None or self.clears != self.ring.state[CLEARS]
            or self.ring.c_first() < self.oldest
            or self.ring.n_hidden - self.hidden > self.ring.hidden.shape[0]  # the log lacks entries
        )

    cdef bint c_follow_hidden(self) noexcept:
        """Look at the rows that were hidden since the last call; returns whether there are any.

        A sequence ``across`` episodes skips hidden rows, so the rows before these are looked at too.
        """
        cdef Ring ring = self.ring
        cdef int64_t row, last, step, oldest = ring.state[WRITTEN] - c_stored(ring)
        cdef const int64_t* entry
        cdef intp_t _
        if self.hidden == ring.n_hidden:
            return False
        while self.hidden < ring.n_hidden:
            entry = &ring.hidden[self.hidden & (ring.hidden.shape[0] - 1), 0]
            self.hidden += 1
            row, last, step = entry[0], min(entry[1], ring.state[WRITTEN] - 1), entry[2]
            row += max(oldest - row + step - 1, 0) // step * step
            for _ in range(self.rows - 1 if self.across and row <= last else 0):
                row = c_previous(ring, row)
                if row < ring.c_first():
                    break
                if self.c_sync_start(<intp_t> (row % ring.capacity)) == WAITS:
                    self.waits = min(self.waits, row)
            row = entry[0] + max(oldest - entry[0] + step - 1, 0) // step * step
            while row <= last:
                self.c_sync_start(<intp_t> (row % ring.capacity))
                row += step
        return True

    cdef int c_sync_start(self, intp_t slot) noexcept:
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

    cdef bint c_check_start(self, intp_t slot) noexcept:
        """Whether a slot of the set is still a start; if not, the slot is removed."""
        if slot < c_stored(self.ring) and self.c_state(slot) == STARTS:
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
                    self.c_check_start(<intp_t> (row % ring.capacity))
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


cdef struct Among:               # rings that starts are drawn from
    PyObject** starts            # ``Starts`` of each ring, by its number
    Share* shares                # slots, or starts, of each ring
    intp_t count                 # number of rings
    int bits                     # low bits of a start that hold the number of its ring
    bint looks                   # whether a try may read the row before


def draw_starts(list parts not None, int bits, intp_t n, rng):
    """Draw n starts of several rings, each with the same probability: an array of intp.

    A part is the number of a ring and its ``Starts``; all have the same options. A start is a slot with
    the number of its ring in the low ``bits``. None if there are no starts.
    """
    cdef Among among
    cdef Starts starts
    cdef intp_t number
    among.starts = <PyObject**> calloc(
        1, (sizeof(PyObject*) << bits) + (1 + len(parts)) * sizeof(Share)
    )
    if among.starts == NULL:
        raise MemoryError("no memory left to draw rows")
    among.shares, among.count, among.bits = <Share*> (among.starts + (1 << bits)), 0, bits
    try:
        for number, starts in parts:
            among.starts[number] = <PyObject*> starts
            among.shares[among.count].number = number
            among.count += 1
        return c_draw_starts(&among, n, rng)
    finally:
        free(among.starts)


cdef cnp.ndarray c_draw_starts(Among* among, intp_t n, rng):
    """Draw n starts of some rings; None if there are no starts.

    Up to some dozens of slots are tried for each start. The rest is drawn from the sets of all starts.
    """
    cdef cnp.ndarray drawn = c_numbers(1, &n, cnp.NPY_INTP)
    bit_generator = rng.bit_generator
    cdef Bits bits = c_bits_of(c_bit_generator(bit_generator))
    cdef intp_t* out = <intp_t*> cnp.PyArray_DATA(drawn)
    cdef intp_t k, found
    lock = bit_generator.lock
    among.looks = False
    for k in range(among.count):
        c_starts(among, k).c_sync_index()
        among.looks |= c_starts(among, k).c_reads_before()
    # While the lock is held nothing is allocated and nothing raised: see ``draw_uniform``.
    lock.acquire()
    found = c_try_slots(among, out, n, &bits)
    lock.release()
    if found < n:
        for k in range(among.count):
            c_starts(among, k).c_sync_starts()
        lock.acquire()
        found = c_choose_starts(among, out, found, n, &bits)
        lock.release()
    return drawn if found == n else None


cdef inline Starts c_starts(const Among* among, intp_t k):
    """The starts of the k-th ring."""
    return <Starts> among.starts[among.shares[k].number]


cdef intp_t c_set_shares(const Among* among, bint tries) noexcept:
    """Set the shares to the slots in use if ``tries``, otherwise to the starts; returns their number."""
    cdef intp_t k, total = 0
    cdef Share* share
    for k in range(among.count):
        share = among.shares + k
        share.start, share.first = total, -total
        if tries:
            total += c_stored((<Starts> among.starts[share.number]).ring)
            (<Starts> among.starts[share.number]).c_note_certain()
        else:
            total += (<Starts> among.starts[share.number]).starts.count
        share.stop = total
        share.capacity = total - share.start
    return total


cdef void c_tell(
    PyObject** starts, int bits, bint looks, const intp_t* rows, intp_t n, int8_t* states
) noexcept:
    """States of rows, with the number of the ring of ``starts`` in the low ``bits``.

    Called directly after ``c_note_certain`` of each of these ``starts``.
    """
    cdef intp_t k, first = 0, end, mask = (<intp_t> 1 << bits) - 1
    while first < n:
        end = min(n, first + FETCHED_FLAGS)
        for k in range(first, end if looks else first):
            c_prefetch((<Starts> starts[rows[k] & mask]).c_flags_before(rows[k] >> bits))
        for k in range(first, end):
            states[k] = c_state_of(<Starts> starts[rows[k] & mask], rows[k] >> bits)
        first = end


cdef inline int8_t c_state_of(Starts starts, intp_t slot) noexcept nogil:
    """``Starts.c_state``, without a call for the rows of ``c_note_certain``."""
    cdef intp_t age = starts.last - slot
    age = age + starts.ring.capacity if age < 0 else age
    if <size_t> (age - starts.newest) < <size_t> starts.certain:
        return STARTS
    return <int8_t> starts.c_state(slot)


cdef intp_t c_try_slots(const Among* among, intp_t* out, intp_t n, Bits* bits) noexcept:
    """Try slots until n starts are found, or starts are too rare; return the number found."""
    cdef intp_t stored = c_set_shares(among, True)
    if stored == 0:
        return 0
    cdef Starts first = <Starts> among.starts[among.shares[0].number]
    cdef intp_t stride = first.stride
    cdef intp_t pay = TRIES * max(1, min(stored, stride)), left = SPARE_TRIES + pay
    cdef intp_t[FETCHED_FLAGS] tried
    cdef int8_t[FETCHED_FLAGS] states
    cdef intp_t k, count, found = 0
    while found < n and left:
        # The expected number of tries if one row in a stride is a start.
        count = min(FETCHED_FLAGS, left, (n - found) * min(stride, FETCHED_FLAGS))
        c_bounded_each(bits, stored, tried, count)
        if among.bits:
            c_name_rows(among.shares, among.count, among.bits, tried, count)
        c_tell(among.starts, among.bits, among.looks, tried, count, states)
        left -= count
        for k in range(count):
            if found < n and states[k] == STARTS:
                out[found] = tried[k]
                found += 1
                left += pay
    return found


cdef intp_t c_choose_starts(
    const Among* among, intp_t* out, intp_t found, intp_t n, Bits* bits
) noexcept:
    """Draw the starts from number ``found`` to n from the sets of all; return the number drawn in all."""
    cdef intp_t k, slot, place, total
    cdef PyObject* starts
    while found < n:
        total = c_set_shares(among, False)
        if total == 0:
            break
        place, k = <intp_t> c_bounded(bits, total), 0
        while place >= among.shares[k].stop:
            k += 1
        starts = among.starts[among.shares[k].number]
        slot = (<Starts> starts).starts.c_at(place - among.shares[k].start)
        if (<Starts> starts).c_check_start(slot):
            out[found] = slot << among.bits | among.shares[k].number
            found += 1
    return found


cdef float64_t c_sum_of(SlotSet slots, SumTree tree) noexcept:
    """The sum of the leaves of a set of slots: of 64 or 8 neighbours from the node above them."""
    cdef const float64_t* leaves = tree.c_level(0)
    cdef const float64_t* eights = tree.c_level(1)
    cdef const float64_t* nodes = tree.c_level(2)
    cdef uint64_t bits
    cdef intp_t word, byte, k
    cdef float64_t part, total = 0.0
    for word in range(slots.words if slots.count else 0):
        bits = slots.bits[word]
        if bits == ~<uint64_t> 0:
            total += nodes[word]
        elif bits:
            for byte in range(word << 3, (word + 1) << 3):
                if bits & 0xFF == 0xFF:
                    total += eights[byte]
                elif bits & 0xFF:
                    part = 0.0  # no branch for each leaf: starts of irregular episodes took 3 ns each
                    for k in range(8):
                        part += leaves[(byte << 3) + k] * <float64_t> (bits >> k & 1)
                    total += part
                bits >>= 8
    return total


def distinct_of(starts, intp_t n, rng):
    """Draw n distinct slots of ``starts``, each with the same probability.

    ``starts`` is a ``Starts``, or an object with its other methods. Raises ``NotEnoughDataError`` for
    fewer slots.
    """
    cdef intp_t _
    drawn = np.empty(0, np.intp)
    if n > len(starts.ring):
        starts.refuse(n)
    # Draws of a large part of the ring come from the list at once: sorting repeated slots takes longer.
    for _ in range(ROUNDS if n < len(starts.ring) // LARGE_PART else 0):
        if len(drawn) == n:
            return drawn
        # A repeated slot is dropped, so each of the others is equally likely.
        drawn = np.concatenate([drawn, starts.draw(n - len(drawn), rng)])
        drawn = drawn[np.sort(np.unique(drawn, return_index=True)[1])]
    others = starts.slots()
    if len(drawn):
        others = np.setdiff1d(others, drawn)
    if len(drawn) + len(others) < n:
        starts.refuse(n)
    return np.concatenate([drawn, rng.choice(others, n - len(drawn), replace=False)])


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
    cdef intp_t k, stored = c_stored(ring)
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
                row = c_random_row(ring, bits, row if strategy == C_FUTURE else bounds.first, bounds.last)
        chosen[k] = <intp_t> (row % ring.capacity)
    return True


cdef int64_t c_random_row(Ring ring, Bits* bits, int64_t first, int64_t last) noexcept:
    """A random row that holds a step, of a stream from ``first`` to ``last``, which hold one.

    Rows are tried first. If too many are absent, the rows that hold a step are counted.
    """
    cdef int64_t n = (last - first) // ring.n_envs + 1, row = last, present = 0, number
    cdef intp_t _, tries = 1
    if c_absent(ring):
        tries = PICKS + <intp_t> sqrt(<float64_t> n)
    for _ in range(tries):
        row = first + ring.n_envs * <int64_t> c_bounded(bits, n)
        if not c_absent(ring) or not ring.c_is_absent(<intp_t> (row % ring.capacity)):
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
