"""Random permutations, drawn lazily: the cost is proportional to the numbers that are drawn.

Compiled because a draw without replacement takes one number for each row. Not here: bounded random
integers (``random_integers``).
"""

cimport cython
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from cpprb_like._c.random_integers cimport Bits, c_bounded
from cpprb_like._c.typedefs cimport intp_t, uint64_t


cdef enum:
    DENSE = 4                # an array takes less time than a table of this part of the numbers


@cython.final
cdef class Shuffle:
    """The numbers 0 to n - 1 in random order, one at a time, at most ``most`` of them.

    A sparse Fisher-Yates shuffle: a hash table holds the places whose number is not that of the
    place. If most of the numbers may be drawn, an array holds the differences instead: it is zero
    at first, so it need not be filled, and a million numbers take 10 ms and not 90.
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

    cdef intp_t c_next(self, Bits* bits) noexcept nogil:
        """The next number; at most ``most`` calls."""
        return c_next_of(self, bits)

    cdef void c_take(self, Bits* bits, intp_t* numbers, intp_t n) noexcept nogil:
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
    here = c_find(places, shuffle.mask, shuffle.shift, place)
    head = c_find(places, shuffle.mask, shuffle.shift, shuffle.drawn)
    number = numbers[here] if places[here] == place else place
    moved = numbers[head] if places[head] == shuffle.drawn else shuffle.drawn
    places[here] = place
    numbers[here] = moved
    shuffle.drawn += 1
    return number


cdef inline intp_t c_find(
    const intp_t* places, intp_t mask, int shift, intp_t place
) noexcept nogil:
    """Where a place is in the table, or the free entry where it belongs."""
    cdef uint64_t mixed = <uint64_t> place * <uint64_t> 0x9E3779B97F4A7C15
    cdef intp_t entry = <intp_t> (mixed >> shift)
    while places[entry] != -1 and places[entry] != place:
        entry = (entry + 1) & mask
    return entry
