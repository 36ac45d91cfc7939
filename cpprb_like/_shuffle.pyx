"""Random order without an array of all numbers.

Compiled because a draw without replacement asks it for every row. Not here: bounded random integers
(``_random``).
"""

cimport cython
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from cpprb_like._random cimport Bits, c_bounded
from cpprb_like._typedefs cimport intp_t, uint64_t


@cython.final
cdef class Shuffle:
    """The numbers 0 to n - 1 in random order, one at a time, without an array of all of them.

    Fisher-Yates over an array that is imagined; a hash table holds the places that differ from
    their number.
    """

    def __cinit__(self, intp_t n, intp_t most):
        cdef intp_t size = 4
        self.n = n
        self.drawn = 0
        self.shift = 62
        while size < 2 * most:
            size *= 2
            self.shift -= 1
        self.mask = size - 1
        self.places = <intp_t*> malloc(2 * size * sizeof(intp_t))
        if self.places == NULL:
            raise MemoryError(f"no memory left to draw {most} distinct rows")
        self.numbers = self.places + size
        memset(self.places, 0xFF, size * sizeof(intp_t))

    def __dealloc__(self):
        free(self.places)

    cdef intp_t c_next(self, Bits* bits) noexcept nogil:
        """The next number; at most ``most`` calls."""
        cdef intp_t place = self.drawn + <intp_t> c_bounded(bits, self.n - self.drawn)
        cdef intp_t here = self.c_find(place)
        cdef intp_t head = self.c_find(self.drawn)
        cdef intp_t number = self.numbers[here] if self.places[here] == place else place
        cdef intp_t moved = self.numbers[head] if self.places[head] == self.drawn else self.drawn
        self.places[here] = place
        self.numbers[here] = moved
        self.drawn += 1
        return number

    cdef intp_t c_find(self, intp_t place) noexcept nogil:
        """Where a place is in the table, or the free entry where it belongs."""
        cdef uint64_t mixed = <uint64_t> place * <uint64_t> 0x9E3779B97F4A7C15
        cdef intp_t entry = <intp_t> (mixed >> self.shift)
        while self.places[entry] != -1 and self.places[entry] != place:
            entry = (entry + 1) & self.mask
        return entry
