"""Uniform sampling of slots: with replacement, without, and over an epoch.

Compiled because random numbers come straight from the bit generator, and because records are
prefetched while the next numbers are drawn. Not here: bounded random integers
(``_c.random_integers``), reading the rows (``_rows.gather``), and sampling by weight
(``_segment_tree``).
"""

cimport cython
cimport numpy as cnp
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset
from numpy.random cimport bitgen_t

from cpprb_like._machine.aligned cimport c_numbers
from cpprb_like._core cimport Ring
from cpprb_like._c.random_integers cimport Bits, c_bit_generator, c_bits_of, c_bounded, c_bounded_each
from cpprb_like._c.typedefs cimport int64_t, intp_t, uint64_t

import numpy as np

from cpprb_like._rows.row_handles import ordered_slots
from cpprb_like.errors import NotEnoughDataError

cnp.import_array()

cdef extern from "Python.h":
    const intp_t PY_SSIZE_T_MAX

cdef enum:
    DENSE = 4                # an array is faster if more than one number in DENSE may be drawn


@cython.final
cdef class Shuffle:
    """The numbers 0 to n - 1 in random order, one at a time, at most ``most`` of them.

    A sparse Fisher-Yates shuffle: a hash table holds the places whose number differs from the place.
    If many of the numbers may be drawn, an array holds the differences instead. All differences are
    zero at first, so the array needs no filling: a million numbers take 10 ms and not 90.
    """

    def __cinit__(self, intp_t n, intp_t most):
        cdef intp_t size = 4
        self.n = n
        self.most = most
        self.drawn = 0
        self.shift = 62
        while size < 2 * most:
            size *= 2
            self.shift -= 1
        if DENSE * most >= n:
            self.numbers = <intp_t*> calloc(max(n, 1), sizeof(intp_t))
            if self.numbers == NULL:
                raise MemoryError(f"no memory left to draw {most} distinct rows")
            return
        self.mask = size - 1
        self.places = <intp_t*> malloc(2 * size * sizeof(intp_t))
        if self.places == NULL:
            raise MemoryError(f"no memory left to draw {most} distinct rows")
        self.numbers = self.places + size
        memset(self.places, 0xFF, size * sizeof(intp_t))

    def __dealloc__(self):
        free(self.places if self.places != NULL else self.numbers)

    cdef intp_t c_next_number(self, Bits* bits) noexcept nogil:
        """The next number; at most ``most`` calls."""
        return c_next_of(self, bits)

    cdef void c_take_numbers(self, Bits* bits, intp_t* numbers, intp_t n) noexcept nogil:
        """The next n numbers."""
        cdef intp_t k
        cdef Bits own = bits[0]  # in registers
        for k in range(n):
            numbers[k] = c_next_of(self, &own)
        bits[0] = own


cdef inline intp_t c_next_of(Shuffle shuffle, Bits* bits) noexcept nogil:
    cdef intp_t place = shuffle.drawn + <intp_t> c_bounded(bits, shuffle.n - shuffle.drawn)
    cdef intp_t here, head, number, moved
    cdef intp_t* places = shuffle.places
    cdef intp_t* numbers = shuffle.numbers
    if places == NULL:
        number = place + numbers[place]
        numbers[place] = shuffle.drawn + numbers[shuffle.drawn] - place
        shuffle.drawn += 1
        return number
    here = c_find_entry(places, shuffle.mask, shuffle.shift, place)
    head = c_find_entry(places, shuffle.mask, shuffle.shift, shuffle.drawn)
    number = numbers[here] if places[here] == place else place
    moved = numbers[head] if places[head] == shuffle.drawn else shuffle.drawn
    places[here] = place
    numbers[here] = moved
    shuffle.drawn += 1
    return number


cdef inline intp_t c_find_entry(
    const intp_t* places, intp_t mask, int shift, intp_t place
) noexcept nogil:
    """Entry of a place in the hash table, or the free entry for the place."""
    cdef uint64_t mixed = <uint64_t> place * <uint64_t> 0x9E3779B97F4A7C15
    cdef intp_t entry = <intp_t> (mixed >> shift)
    while places[entry] != -1 and places[entry] != place:
        entry = (entry + 1) & mask
    return entry


cdef enum:
    SPARE_DRAWS = 64         # extra numbers of a shuffle, for rows that cannot be drawn
    NUMBERS = -1             # ``first`` of a population that draws numbers of rows, not slots


cdef struct Population:      # the slots of a draw
    intp_t first             # the first slot, or NUMBERS: draw numbers of rows instead
    intp_t among             # number of slots from there on, or of numbers
    intp_t drawable          # rows among these slots that can be drawn
    intp_t passed            # older rows that can be drawn
    int64_t oldest           # id of the oldest row that is not left out
    bint skips               # reject slots that cannot be drawn, at most half of ``among``


def draw_uniform(Ring ring not None, intp_t n, rng, bint replace=True, newest=None):
    """Draw n slots whose rows can be drawn, each with the same probability; intp, in random order.

    Without ``replace`` slots are distinct. They are of the ``newest`` rows that can be drawn, at
    least 1; by default of all. Raises ``NotEnoughDataError`` where there are not enough.

    Cost: proportional to n; times the logarithm of the rows stored, if over half of these cannot be
    drawn, or if there are such rows and ``newest`` is given.
    """
    bit_generator = rng.bit_generator
    cdef bitgen_t* source = c_bit_generator(bit_generator)
    cdef cnp.ndarray slots = c_numbers(1, &n, cnp.NPY_INTP)
    cdef intp_t least = PY_SSIZE_T_MAX if newest is None else min(newest, PY_SSIZE_T_MAX)
    cdef intp_t spare = 1
    cdef bint is_drawn = False
    cdef Bits bits = c_bits_of(source)
    cdef Population population
    cdef Shuffle shuffle = None
    if least < 1:
        raise ValueError(f"newest: expected at least 1, got {newest}")
    lock = bit_generator.lock
    # While the lock is held nothing is allocated and nothing raised: the garbage collector could
    # run a finalizer that draws, which would wait for the lock for ever.
    while not is_drawn:
        population = c_population(ring, least)
        if population.among == 0:
            raise NotEnoughDataError("cannot sample: the buffer is empty")
        if not replace and n > population.drawable:
            raise NotEnoughDataError(
                f"cannot sample {n} distinct rows: the buffer holds {population.drawable}"
            )
        if not replace:
            shuffle = Shuffle(population.among, c_most(&population, n, spare))
            spare = min(4 * spare, population.among)
        lock.acquire()
        is_drawn = c_is(&population, c_population(ring, least)) and c_draw_slots(
            ring, slots, &bits, &population, shuffle
        )
        lock.release()
    return slots


cdef Population c_population(Ring ring, intp_t newest) noexcept:
    """Population of a draw from the ``newest`` rows."""
    cdef Population population
    cdef intp_t drawable = ring.c_drawable()
    cdef intp_t width = <intp_t> (ring.c_stop() - ring.c_first())
    population.oldest = ring.c_first()
    population.drawable = population.among = min(drawable, newest)
    population.passed = drawable - population.drawable
    population.skips = False
    if drawable == width:
        population.first = <intp_t> ((ring.c_stop() - population.among) % ring.capacity)
    elif population.passed == 0 and 2 * drawable >= width:
        population.first = <intp_t> (population.oldest % ring.capacity)
        population.among = width
        population.skips = True
    else:
        population.first = NUMBERS
    return population


cdef bint c_is(const Population* population, Population other) noexcept:
    """Whether two populations are equal: no rows came or went while a thread waited for the lock."""
    return (
        population.first == other.first and population.among == other.among and population.skips == other.skips
        and population.drawable == other.drawable and population.passed == other.passed
        and population.oldest == other.oldest
    )


cdef intp_t c_most(const Population* population, intp_t n, intp_t times) noexcept:
    """How many numbers of a shuffle are tried, at most, to find n distinct slots.

    At least half of the numbers are slots that can be drawn, so ``4 * n`` numbers are enough except
    in very rare cases.
    """
    return min(population.among, times * (4 * n + SPARE_DRAWS)) if population.skips else n


cdef bint c_draw_slots(
    Ring ring, cnp.ndarray slots, Bits* bits, const Population* population, Shuffle shuffle
) noexcept:
    """Fill ``slots``, with distinct slots if there is a shuffle; false if it gives too few."""
    cdef intp_t* values = <intp_t*> cnp.PyArray_DATA(slots)
    cdef intp_t k = 0, n = cnp.PyArray_DIM(slots, 0)
    cdef intp_t among = population.among, slot, capacity = ring.capacity
    cdef intp_t first = 0 if population.first == NUMBERS else population.first
    if shuffle is not None and not population.skips:
        shuffle.c_take_numbers(bits, values, n)
        for k in range(n):
            slot = first + values[k]
            values[k] = slot if slot < capacity else slot - capacity
        k = n
    elif shuffle is not None:
        while k < n and shuffle.drawn < shuffle.most:
            slot = first + shuffle.c_next_number(bits)
            values[k] = slot if slot < capacity else slot - capacity
            k += ring.c_can_draw(values[k])
    elif not population.skips:
        c_bounded_each(bits, among, values, n)
        for k in range(n):
            slot = first + values[k]
            values[k] = slot if slot < capacity else slot - capacity
        k = n
    else:
        while k < n:
            slot = first + <intp_t> c_bounded(bits, among)
            slot = slot if slot < capacity else slot - capacity
            if not ring.c_can_draw(slot):
                continue
            values[k] = slot
            k += 1
    if population.first == NUMBERS:
        for slot in range(k):
            values[slot] = ring.c_slot_of_nth(population.passed + values[slot], population.oldest)
    return k == n


@cython.final
cdef class Epoch:
    """The slots whose rows can be drawn when it is created, once each.

    They come in the random order of ``rng``, or without one in the order of public slots.
    """

    cdef Ring ring
    cdef object rng              # None: the order of public slots
    cdef Shuffle shuffle
    cdef cnp.ndarray slots       # all slots of the epoch
    cdef intp_t given            # slots that were returned or left out so far

    def __cinit__(self, Ring ring not None, rng=None):
        self.ring = ring
        self.rng = rng
        self.slots = ordered_slots(ring)
        if rng is not None:
            self.shuffle = Shuffle(len(self.slots), len(self.slots))

    def take(self, intp_t n):
        """The next n slots whose rows can be drawn now, or as many as are left: an array of intp.

        Slots whose rows cannot be drawn now are left out of this epoch.
        """
        cdef const intp_t* slots = <const intp_t*> cnp.PyArray_DATA(self.slots)
        cdef intp_t total = cnp.PyArray_DIM(self.slots, 0)
        cdef cnp.ndarray found = np.empty(min(n, total - self.given), np.intp)
        cdef intp_t* out = <intp_t*> cnp.PyArray_DATA(found)
        cdef intp_t count = 0, most = cnp.PyArray_DIM(found, 0)
        cdef Bits bits
        if self.rng is not None:
            bits = c_bits_of(c_bit_generator(self.rng.bit_generator))
            self.rng.bit_generator.lock.acquire()
        while count < most and self.given < total:
            out[count] = slots[self.given if self.rng is None else self.shuffle.c_next_number(&bits)]
            count += self.ring.c_can_draw(out[count])
            self.given += 1
        if self.rng is not None:
            self.rng.bit_generator.lock.release()
        return found[:count]
