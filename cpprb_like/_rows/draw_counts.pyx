"""``DrawCounts``: how much a source was drawn from, and how old the drawn rows were.

The age of one row of each draw is noted, in turn the first, second, ... of its batch, so the cost
of a draw does not depend on the size of the batch. The age of a row is the number of rows that were
added to its ring since. Ages are counted in a histogram of four buckets for each doubling, over the
last 1,024 to 2,048 draws. Counts are words of int64, so that other processes can read them.

Not here: which rows are drawn (``samplers``), and the dict that users get (``Source.stats``).
"""

cimport cython
cimport numpy as cnp
from libc.math cimport exp, sqrt
from libc.string cimport memcpy, memset

from cpprb_like._core cimport CLEARS, WRITTEN, Ring
from cpprb_like._c.typedefs cimport int64_t, intp_t, uint64_t
from cpprb_like._rows.rings cimport Rings

import numpy as np

cnp.import_array()

cdef extern from *:
    """
    #if defined(_MSC_VER)
    #include <intrin.h>
    static inline int cpprb_top_bit(unsigned long long x) {
        unsigned long at; _BitScanReverse64(&at, x); return (int) at;
    }
    static inline int cpprb_ones(unsigned long long x) {
        int n = 0; while (x) { x &= x - 1; ++n; } return n;
    }
    #else
    static inline int cpprb_top_bit(unsigned long long x) { return 63 - __builtin_clzll(x); }
    static inline int cpprb_ones(unsigned long long x) { return __builtin_popcountll(x); }
    #endif
    """
    int c_top_bit "cpprb_top_bit"(uint64_t x) noexcept nogil
    int c_ones "cpprb_ones"(uint64_t x) noexcept nogil

cdef enum:  # words
    DRAWS = 0                # batches
    SAMPLES = 1              # items of all batches
    SHARE = 2                # share of rows never drawn, in units of SHARE_UNIT, -1 if unknown
    N = 3                    # ages in each histogram: the present one, the one before
    SUM = 5                  # sums of these ages
    MOST = 7                 # greatest of these ages
    AGES = 9                 # the histograms
    BUCKETS = 160            # ages below 2**40
    N_WORDS = AGES + 2 * BUCKETS

cdef enum:
    TURN = 1024              # ages in a histogram
    LOOK_EACH = 256          # draws after which the share of rows never drawn is computed
    SHARE_UNIT = 1 << 30
    LOOKS = 64               # words of marks that are looked at for a share

cdef double LEAST = 1e-200
cdef double MOST_DRAWS = 200.0           # exp(-200) times LEAST is no zero
cdef int64_t MOST_AGE = (<int64_t> 1 << 40) - 1

WORDS = N_WORDS
QUANTILES = ("age_at_draw_p50", 0.5), ("age_at_draw_p90", 0.9), ("age_at_draw_p99", 0.99)


@cython.final
cdef class Undrawn:
    """Share of the rows of a ring that were never drawn.

    With ``marks`` each drawn row is marked, and the share is that of up to 4,096 rows, in groups of
    64, evenly spread over the ring; rows that cannot be drawn are left out. Without, for uniform
    draws, it is the expected share: a draw of n of N rows leaves a row out with probability
    ``exp(-n / N)``. A mark costs some instructions for each row, too many where a draw costs 80.
    """

    def __cinit__(self, Ring ring not None, bint is_uniform):
        self.ring = ring
        self.block = (ring.capacity + BLOCKS - 2) // (BLOCKS - 1)
        self.n_words = (ring.capacity + 63) // 64
        self.marks = None if is_uniform else np.zeros(self.n_words, np.uint64)
        self.clears = -1
        self.survival = 1.0

    cdef void c_sync(self) noexcept:
        """Take in the rows that were written since the last call."""
        cdef int64_t written = self.ring.state[WRITTEN], first, block
        if self.clears != self.ring.state[CLEARS] or written < self.seen:
            self.clears = self.ring.state[CLEARS]
            self.seen = 0
            self.survival = self.born[0] = 1.0
            if self.marks is not None:
                memset(cnp.PyArray_DATA(self.marks), 0, 8 * self.n_words)
        if written == self.seen:
            return
        first = max(self.seen, written - self.ring.capacity)
        block = (first + self.block - 1) // self.block
        if first > self.seen:  # rows were passed over: no row of its block was there before
            block = first // self.block
        if self.marks is not None:
            self.c_unmark(first, written)
        else:
            for block in range(block, written // self.block + 1):
                self.born[block % BLOCKS] = self.survival
        self.seen = written

    cdef void c_unmark(self, int64_t first, int64_t stop) noexcept:
        """Remove the marks of the slots of new rows."""
        cdef uint64_t* marks = <uint64_t*> cnp.PyArray_DATA(self.marks)
        cdef intp_t slot, count, capacity = self.ring.capacity
        while first < stop:
            slot = <intp_t> (first % capacity)
            count = min(<intp_t> (stop - first), capacity - slot)
            if slot & 63 == 0 and count >= 64:
                count &= ~<intp_t> 63
                memset(&marks[slot >> 6], 0, count >> 3)
            else:
                count = min(count, 64 - (slot & 63))
                marks[slot >> 6] &= ~((~<uint64_t> 0 >> (64 - count)) << (slot & 63))
            first += count

    cdef void c_thin(self, double left) noexcept:
        """Note a uniform draw that leaves each row out with this probability."""
        cdef intp_t k
        self.survival *= left
        if self.survival < LEAST:
            for k in range(BLOCKS):
                self.born[k] /= LEAST
            self.survival /= LEAST

    cdef double c_share(self) noexcept:
        """The share of the rows in the ring; NaN without rows."""
        self.c_sync()
        cdef int64_t stop = self.seen, first = stop - min(stop, <int64_t> self.ring.capacity)
        cdef int64_t block, start, end
        cdef double share = 0.0, left
        cdef const uint64_t* marks
        cdef const uint64_t* out = self.ring.out.bits if self.ring.out.count else NULL
        cdef uint64_t there
        cdef intp_t k, word, looks, drawn = 0, rows = 0
        cdef intp_t stored = <intp_t> (stop - first), full = stored >> 6
        if stored == 0:
            return float("nan")
        if self.marks is None:
            for block in range(first // self.block, (stop - 1) // self.block + 1):
                start, end = max(first, block * self.block), min(stop, (block + 1) * self.block)
                left = self.survival / self.born[block % BLOCKS]
                if (block + 1) * self.block <= stop:  # between those at both ends of the block
                    left = sqrt(left * self.survival / self.born[(block + 1) % BLOCKS])
                else:
                    left = sqrt(left)
                share += (end - start) * left
            return min(share / stored, 1.0)
        marks = <const uint64_t*> cnp.PyArray_DATA(self.marks)
        looks = max(1, min(full, LOOKS))
        for k in range(looks):
            word = k * full // looks
            there = ~<uint64_t> 0 if full else (<uint64_t> 1 << stored) - 1
            if out != NULL:
                there &= ~out[word]
            rows += c_ones(there)
            drawn += c_ones(marks[word] & there)
        return 1.0 - <double> drawn / rows if rows else 1.0

    @property
    def share(self):
        """The share of the rows in the ring that were never drawn; NaN without rows."""
        return self.c_share()


@cython.final
cdef class DrawCounts:
    """Counts of the draws from a ring, or from several rings.

    Parameters
    ----------
    memory : ndarray of int64, shape (WORDS,)
        The counts, zeros at first.
    is_uniform : bool
        Whether each row is drawn with the same probability: see ``Undrawn``.
    width : int
        Number of rings.
    """

    def __cinit__(self, cnp.ndarray memory not None, bint is_uniform, intp_t width=1):
        if cnp.PyArray_TYPE(memory) != cnp.NPY_INT64 or cnp.PyArray_SIZE(memory) != N_WORDS:
            raise ValueError(f"memory: expected {N_WORDS} words of int64")
        self.memory = memory
        self.words = <int64_t*> cnp.PyArray_DATA(memory)
        self.is_uniform = is_uniform
        self.undrawn = [None] * width
        self.marks = np.zeros(width, np.intp)

    cdef void c_expect(self, bint is_uniform):
        """Draws are uniform from now on, or no longer: no row counts as drawn."""
        self.is_uniform = is_uniform
        self.undrawn = [None] * len(self.undrawn)

    cdef void c_count(self, int64_t age, intp_t n) noexcept:
        """Count a draw of n items, of which one has this age."""
        cdef int64_t* words = self.words
        cdef int top
        words[DRAWS] += 1
        words[SAMPLES] += n
        if words[DRAWS] % LOOK_EACH == 1:
            words[SHARE] = self.c_share()
        if n == 0:
            return
        if words[N] >= TURN:
            memcpy(&words[AGES + BUCKETS], &words[AGES], BUCKETS * sizeof(int64_t))
            memset(&words[AGES], 0, BUCKETS * sizeof(int64_t))
            words[N + 1], words[SUM + 1], words[MOST + 1] = words[N], words[SUM], words[MOST]
            words[N] = words[SUM] = words[MOST] = 0
        age = min(max(age, 0), MOST_AGE)
        top = c_top_bit(<uint64_t> age | 3)
        words[AGES + ((top - 1) * 4 + ((age >> (top - 2)) & 3) if top > 1 else age)] += 1
        words[N] += 1
        words[SUM] += age
        words[MOST] = max(words[MOST], age)

    cdef int64_t c_share(self) noexcept:
        """The share of rows never drawn, over all rings, in units of SHARE_UNIT; -1 without rows."""
        cdef double share = 0.0, rows = 0.0, drawable
        cdef Undrawn one
        for one in self.undrawn:
            if one is not None and one.ring.c_drawable():
                drawable = one.ring.c_drawable()
                share += one.c_share() * drawable
                rows += drawable
        return <int64_t> (share / rows * SHARE_UNIT) if rows > 0.0 else -1

    cdef Undrawn c_undrawn(self, intp_t number, Ring ring):
        """``Undrawn`` of a ring, which may have taken the place of another."""
        one = <Undrawn> self.undrawn[number]
        if one is None or one.ring is not ring:
            one = self.undrawn[number] = Undrawn(ring, self.is_uniform)
            if one.marks is not None:
                self.marks[number] = <intp_t> cnp.PyArray_DATA(one.marks)
        return one

    cdef void c_mark(self, const intp_t* rows, intp_t n, intp_t mask, int bits) noexcept:
        """Mark drawn rows: of each its ring in the lower ``bits`` bits, and its slot above them."""
        cdef const intp_t* marks = &self.marks[0]
        cdef uint64_t* alone = <uint64_t*> marks[0]
        cdef intp_t k, slot
        if not mask:
            for k in range(n):
                alone[rows[k] >> 6] |= <uint64_t> 1 << (rows[k] & 63)
            return
        for k in range(n):
            slot = rows[k] >> bits
            (<uint64_t*> marks[rows[k] & mask])[slot >> 6] |= <uint64_t> 1 << (slot & 63)

    cdef int c_note(self, Ring ring, cnp.ndarray slots) except -1:
        """Note a draw of the rows in these slots, dense and of intp."""
        cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(slots)
        cdef intp_t n = cnp.PyArray_DIM(slots, 0), rows
        cdef Undrawn undrawn = self.c_undrawn(0, ring)
        cdef int64_t age = 0
        undrawn.c_sync()
        if n:
            age = ring.state[WRITTEN] - 1 - ring.c_row_at(values[self.words[DRAWS] % n])
            if not self.is_uniform:
                self.c_mark(values, n, 0, 0)
            elif (rows := ring.c_drawable()):
                undrawn.c_thin(exp(-min(<double> n / rows, MOST_DRAWS)))
        self.c_count(age, n)
        return 0

    def note(self, Ring ring not None, cnp.ndarray slots not None):
        """Note a draw of the rows in these slots, dense and of intp."""
        self.c_note(ring, slots)

    def note_of(self, Rings rings not None, cnp.ndarray rows not None):
        """Note a draw of rows of several rings, by their numbers."""
        cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(rows)
        cdef intp_t k, number, n = cnp.PyArray_DIM(rows, 0), total = 0
        cdef int64_t age = 0
        cdef double left
        cdef Ring ring
        cdef Undrawn undrawn
        for number, ring in enumerate(rings.rings):
            if ring is not None:
                self.c_undrawn(number, ring).c_sync()
                total += ring.c_drawable()
        if n:
            k = self.words[DRAWS] % n
            ring = rings.c_ring(values[k] & rings.mask)
            age = ring.state[WRITTEN] - 1 - ring.c_row_at(values[k] >> rings.bits)
            if not self.is_uniform:
                self.c_mark(values, n, rings.mask, rings.bits)
            elif total:
                left = exp(-min(<double> n / total, MOST_DRAWS))
                for undrawn in self.undrawn:
                    if undrawn is not None:
                        undrawn.c_thin(left)
        self.c_count(age, n)

    def stats(self):
        """``c_stats``."""
        return self.c_stats()

    cdef dict c_stats(self):
        """The counts, and quantiles of ages, as a dict; no age without a draw."""
        self.words[SHARE] = self.c_share()
        return c_stats_of([self.memory])


def stats_of(list memories not None):
    """``DrawCounts.c_stats`` of several arrays of counts together, such as those of all learners."""
    return c_stats_of(memories)


cdef dict c_stats_of(list memories):
    cdef int64_t[BUCKETS] ages
    cdef int64_t draws = 0, samples = 0, n = 0, total = 0, most = 0, count
    cdef double share = 0.0, age
    cdef const int64_t* words
    cdef intp_t k, shares = 0
    cdef cnp.ndarray memory
    memset(ages, 0, sizeof(ages))
    for memory in memories:
        words = <const int64_t*> cnp.PyArray_DATA(memory)
        draws += words[DRAWS]
        samples += words[SAMPLES]
        n += words[N] + words[N + 1]
        total += words[SUM] + words[SUM + 1]
        most = max(most, words[MOST], words[MOST + 1])
        if words[DRAWS] and words[SHARE] >= 0:
            share += <double> words[SHARE] / SHARE_UNIT
            shares += 1
        for k in range(BUCKETS):
            ages[k] += words[AGES + k] + words[AGES + BUCKETS + k]
    cdef dict found = {"draws": draws, "samples": samples}
    if n:
        found["age_at_draw_mean"] = <double> total / n
        k = count = 0
        for name, quantile in QUANTILES:
            while k < BUCKETS - 1 and count + ages[k] < <double> quantile * n:
                count += ages[k]
                k += 1
            age = c_age(k) + (c_age(k + 1) - c_age(k)) * (<double> quantile * n - count) / ages[k]
            found[name] = min(age, <double> most)
        found["age_at_draw_max"] = most
    if shares:
        found["never_drawn"] = share / shares
    return found


cdef double c_age(intp_t bucket) noexcept:
    """The least age of a bucket."""
    return bucket if bucket < 4 else <double> (<int64_t> (4 + bucket % 4) << (bucket // 4 - 1))
