"""``DrawCounts``: how much a source was drawn from, and how old the drawn rows were.

The age of one row of each draw is noted, a random one of its batch, so the cost of a draw does not
depend on the size of the batch. The age of a row is the number of rows that were
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

cnp.import_array()

cdef extern from *:
    """
    #if defined(_MSC_VER)
    #include <intrin.h>
    static inline int cpprb_top_bit(unsigned long long x) {
        unsigned long at; _BitScanReverse64(&at, x); return (int) at;
    }
    #else
    static inline int cpprb_top_bit(unsigned long long x) { return 63 - __builtin_clzll(x); }
    #endif
    """
    int c_top_bit "cpprb_top_bit"(uint64_t x) noexcept nogil

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

cdef double LEAST = 1e-200
cdef double MOST_DRAWS = 200.0           # exp(-200) times LEAST is no zero
cdef int64_t MOST_AGE = (<int64_t> 1 << 40) - 1

WORDS = N_WORDS
QUANTILES = ("age_at_draw_p50", 0.5), ("age_at_draw_p90", 0.9), ("age_at_draw_p99", 0.99)


@cython.final
cdef class Undrawn:
    """Expected share of the rows of a ring that were never drawn, of uniform draws from all rows.

    A draw of n of N rows leaves a row out with probability ``exp(-n / N)``.
    """

    def __cinit__(self, Ring ring not None):
        self.ring = ring
        self.block = (ring.capacity + BLOCKS - 2) // (BLOCKS - 1)
        self.clears = -1
        self.survival = 1.0

    cdef void c_sync_undrawn(self) noexcept:
        """Take in the rows that were written since the last call."""
        cdef int64_t written = self.ring.state[WRITTEN], first, block
        if self.clears != self.ring.state[CLEARS] or written < self.seen:
            self.clears = self.ring.state[CLEARS]
            self.seen = 0
            self.survival = self.born[0] = 1.0
        if written == self.seen:
            return
        first = max(self.seen, written - self.ring.capacity)
        block = (first + self.block - 1) // self.block
        if first > self.seen:  # rows were passed over: no row of its block was there before
            block = first // self.block
        for block in range(block, written // self.block + 1):
            self.born[block % BLOCKS] = self.survival
        self.seen = written

    cdef void c_thin(self, double left) noexcept:
        """Note a draw that leaves each row out with this probability."""
        cdef intp_t k
        self.survival *= left
        if self.survival < LEAST:
            for k in range(BLOCKS):
                self.born[k] /= LEAST
            self.survival /= LEAST

    cdef double c_share_undrawn(self) noexcept:
        """The share of the rows in the ring; NaN without rows."""
        self.c_sync_undrawn()
        cdef int64_t stop = self.seen, first = stop - min(stop, <int64_t> self.ring.capacity)
        cdef int64_t block, start, end
        cdef double share = 0.0, left
        if stop == first:
            return float("nan")
        for block in range(first // self.block, (stop - 1) // self.block + 1):
            start, end = max(first, block * self.block), min(stop, (block + 1) * self.block)
            left = self.survival / self.born[block % BLOCKS]
            if (block + 1) * self.block <= stop:  # between those at both ends of the block
                left = sqrt(left * self.survival / self.born[(block + 1) % BLOCKS])
            else:
                left = sqrt(left)
            share += (end - start) * left
        return min(share / (stop - first), 1.0)


cdef inline intp_t c_one_of(int64_t draw, intp_t n) noexcept:
    """The place of the item whose age a draw notes: a number below n that looks random.

    Items of stratified draws are in the order of their slots. With the places 0, 1, 2, ... in turn, the
    place moved on like the write head, and ages were all old or all new.
    """
    cdef uint64_t mixed = <uint64_t> draw + <uint64_t> 0x9E3779B97F4A7C15
    mixed = (mixed ^ mixed >> 30) * <uint64_t> 0xBF58476D1CE4E5B9
    mixed = (mixed ^ mixed >> 27) * <uint64_t> 0x94D049BB133111EB
    return <intp_t> ((mixed ^ mixed >> 31) % <uint64_t> n)


@cython.final
cdef class DrawCounts:
    """Counts of the draws from a ring, or from several rings.

    Parameters
    ----------
    memory : ndarray of int64, shape (WORDS,)
        The counts, zeros at first.
    is_uniform : bool
        Whether each draw takes each row with the same probability. Otherwise the share of rows that
        were never drawn is unknown.
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

    cdef void c_forget_draws(self):
        """Note that a draw was not uniform over all rows."""
        self.is_uniform = False
        self.undrawn = [None] * len(self.undrawn)

    cdef void c_count_age(self, int64_t age, intp_t n) noexcept:
        """Count a draw of n items, of which one has this age."""
        cdef int64_t* words = self.words
        cdef int top
        words[DRAWS] += 1
        words[SAMPLES] += n
        if words[DRAWS] % LOOK_EACH == 1:
            words[SHARE] = self.c_share_undrawn()
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

    cdef int64_t c_share_undrawn(self) noexcept:
        """The share of rows never drawn, over all rings, in units of SHARE_UNIT; -1 without rows."""
        cdef double share = 0.0, rows = 0.0, drawable
        cdef Undrawn one
        for one in self.undrawn:
            if one is not None and one.ring.c_drawable():
                drawable = one.ring.c_drawable()
                share += one.c_share_undrawn() * drawable
                rows += drawable
        return <int64_t> (share / rows * SHARE_UNIT) if rows > 0.0 else -1

    cdef Undrawn c_undrawn(self, intp_t number, Ring ring):
        """``Undrawn`` of a ring, which may have taken the place of another."""
        one = <Undrawn> self.undrawn[number]
        if one is None or one.ring is not ring:
            one = self.undrawn[number] = Undrawn(ring)
        return one

    cdef int c_note_draw(self, Ring ring, cnp.ndarray slots, bint of_all) except -1:
        """Note a draw of the rows in these slots, dense and of intp.

        ``of_all`` says whether each row that the ring can draw was drawn with the same probability.
        """
        cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(slots)
        cdef intp_t n = cnp.PyArray_DIM(slots, 0), rows
        cdef Undrawn undrawn
        cdef int64_t age = 0
        if n:
            age = ring.state[WRITTEN] - 1 - ring.c_row_at(values[c_one_of(self.words[DRAWS], n)])
        if self.is_uniform and not of_all:
            self.c_forget_draws()
        if self.is_uniform:
            undrawn = self.c_undrawn(0, ring)
            undrawn.c_sync_undrawn()
            rows = ring.c_drawable()
            if n and rows:
                undrawn.c_thin(exp(-min(<double> n / rows, MOST_DRAWS)))
        self.c_count_age(age, n)
        return 0

    def note_of(self, Rings rings not None, cnp.ndarray rows not None, bint of_all):
        """Note a draw of rows of several rings, by their numbers: see ``c_note_draw``."""
        cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(rows)
        cdef intp_t k, number, n = cnp.PyArray_DIM(rows, 0), total = 0
        cdef int64_t age = 0
        cdef double left
        cdef Ring ring
        cdef Undrawn undrawn
        if n:
            k = c_one_of(self.words[DRAWS], n)
            ring = rings.c_ring(values[k] & rings.mask)
            age = ring.state[WRITTEN] - 1 - ring.c_row_at(values[k] >> rings.bits)
        if self.is_uniform and not of_all:
            self.c_forget_draws()
        for number, ring in enumerate(rings.rings if self.is_uniform else ()):
            if ring is not None:
                self.c_undrawn(number, ring).c_sync_undrawn()
                total += ring.c_drawable()
        if n and total:
            left = exp(-min(<double> n / total, MOST_DRAWS))
            for undrawn in self.undrawn:
                if undrawn is not None:
                    undrawn.c_thin(left)
        self.c_count_age(age, n)

    def stats(self):
        """``c_stats``."""
        return self.c_stats()

    cdef dict c_stats(self):
        """The counts, and quantiles of ages, as a dict; no age without a draw."""
        self.words[SHARE] = self.c_share_undrawn()
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
