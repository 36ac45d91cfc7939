"""Sets of slots and runs of absent rows: ``SlotSet`` and ``AbsentRuns``.

A ``SlotSet`` has the slots of a ring whose rows cannot be drawn. It finds the k-th slot in the set,
or the k-th one that is not. The time is the same for few and for many slots. It stores a bit for
each slot, and a Fenwick tree of the bits in each word. Both take a quarter of a byte for each slot.

``AbsentRuns`` finds the next step of a stream behind a run of absent rows, in constant time. Such
a run is a pause of an environment or a deleted episode. The first and the last row of a run store
its length. So a row that becomes absent joins two runs in constant time. This takes eight bytes for
each slot.

Both classes allocate memory with the first absent row. They are compiled because a draw calls them
for every row. Not here: which rows are absent (``_core``).
"""

cimport cython
cimport numpy as cnp

from cpprb_like._c.typedefs cimport int32_t, int64_t, intp_t, uint64_t

import numpy as np

cnp.import_array()

cdef enum:
    SPARSE = 8                   # words of bits that are read in the time of one search


@cython.final
@cython.no_gc  # no garbage is collected, and so no Python code runs, where an object is made
cdef class SlotSet:
    """A set of slots from 0 to ``capacity - 1``. It allocates memory with the first slot."""

    def __cinit__(self, intp_t capacity):
        if capacity < 1:
            raise ValueError(f"capacity: expected at least 1, got {capacity}")
        self.capacity = capacity
        self.words = (capacity + 63) >> 6
        self.top = 1
        while 2 * self.top <= self.words:
            self.top *= 2

    @property
    def nbytes(self):
        """Bytes of memory."""
        return 0 if self.memory is None else self.memory.nbytes

    cdef cnp.ndarray c_allocate(self):
        """Memory of an empty set: zeros, whose pages the system maps on first use."""
        return np.zeros(2 * self.words + 1, np.intp)

    cdef int c_make_memory(self) except -1:
        """Make sure that slots can be added."""
        if self.memory is None:
            self.c_forget(self.c_allocate())
        return 0

    cdef void c_forget(self, cnp.ndarray memory) noexcept:
        """Remove all slots, and use other memory: that of ``c_allocate``."""
        self.memory = memory
        self.bits = <uint64_t*> cnp.PyArray_DATA(memory)
        self.counts = <intp_t*> cnp.PyArray_DATA(memory) + self.words
        self.count = 0

    cdef void c_add(self, intp_t slot) noexcept nogil:
        """Add a slot, unless it is in the set."""
        cdef uint64_t bit = <uint64_t> 1 << (slot & 63)
        if not self.bits[slot >> 6] & bit:
            self.bits[slot >> 6] |= bit
            self.c_change_count(slot, 1)

    cdef void c_remove(self, intp_t slot) noexcept nogil:
        """Remove a slot, if it is in the set."""
        cdef uint64_t bit = <uint64_t> 1 << (slot & 63)
        if self.bits[slot >> 6] & bit:
            self.bits[slot >> 6] ^= bit
            self.c_change_count(slot, -1)

    cdef void c_change_count(self, intp_t slot, intp_t change) noexcept nogil:
        cdef intp_t place = (slot >> 6) + 1
        self.count += change
        while place <= self.words:
            self.counts[place] += change
            place += place & -place

    cdef intp_t c_free_before(self, intp_t slot) noexcept nogil:
        """Number of slots before this one, at most ``capacity``, that are not in the set."""
        cdef intp_t place = slot >> 6, found = slot
        if self.count == 0:
            return slot
        if slot & 63:
            found -= c_ones(self.bits[place] & ((<uint64_t> 1 << (slot & 63)) - 1))
        while place > 0:
            found -= self.counts[place]
            place -= place & -place
        return found

    cdef intp_t c_free_rows(self, int64_t first, int64_t stop) noexcept nogil:
        """Number of rows from ``first`` to ``stop``, at most ``capacity``, in slots that are not in the set."""
        cdef intp_t low, high, found
        if self.count == 0 or first == stop:
            return <intp_t> (stop - first)
        low, high = <intp_t> (first % self.capacity), <intp_t> (stop % self.capacity)
        found = self.c_free_before(high) - self.c_free_before(low)
        return found if low < high else found + self.capacity - self.count

    cdef intp_t c_free_at(self, intp_t place) noexcept nogil:
        """The ``place``-th slot that is not in the set, from 0 on."""
        return place if self.count == 0 else c_search(self, place, True)

    cdef intp_t c_at(self, intp_t place) noexcept nogil:
        """The ``place``-th slot of the set, from 0 on."""
        return c_search(self, place, False)

    cdef cnp.ndarray c_list(self, intp_t n, bint free):
        """The first n slots of the set, or with ``free`` not of the set, ascending: fresh intp."""
        cdef uint64_t without = ~<uint64_t> 0 if free else 0  # a word without such a slot
        cdef cnp.ndarray found = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_INTP)
        cdef intp_t* slots = <intp_t*> cnp.PyArray_DATA(found)
        cdef intp_t k = 0, slot = 0
        if n * SPARSE < self.words:
            for k in range(n):
                slots[k] = c_search(self, k, free)
            return found
        while k < n:
            if self.bits[slot >> 6] == without:
                slot = (slot | 63) + 1
                continue
            if c_has(self, slot) != free:
                slots[k] = slot
                k += 1
            slot += 1
        return found

    # ------------------------------------------------------------------ for tests

    def add(self, intp_t slot):
        """Add a slot. Raises ``IndexError`` for a slot out of range, like the methods below."""
        self._check(slot, self.capacity - 1)
        self.c_make_memory()
        self.c_add(slot)

    def remove(self, intp_t slot):
        """Remove a slot, if it is in the set."""
        self._check(slot, self.capacity - 1)
        if self.count:
            self.c_remove(slot)

    def __contains__(self, intp_t slot):
        self._check(slot, self.capacity - 1)
        return c_has(self, slot)

    def free_before(self, intp_t slot):
        """Number of slots before this one that are not in the set."""
        self._check(slot, self.capacity)
        return self.c_free_before(slot)

    def free_at(self, intp_t place):
        """The ``place``-th slot that is not in the set, from 0 on."""
        self._check(place, self.capacity - self.count - 1)
        return self.c_free_at(place)

    def at(self, intp_t place):
        """The ``place``-th slot of the set, from 0 on."""
        self._check(place, self.count - 1)
        return self.c_at(place)

    def _check(self, intp_t number, intp_t most):
        if not 0 <= number <= most:
            raise IndexError(f"expected 0 to {most}, got {number}")


cdef inline intp_t c_ones(uint64_t word) noexcept nogil:
    """Number of bits that are set."""
    word -= word >> 1 & <uint64_t> 0x5555555555555555
    word = (word & <uint64_t> 0x3333333333333333) + (word >> 2 & <uint64_t> 0x3333333333333333)
    word = (word + (word >> 4)) & <uint64_t> 0x0F0F0F0F0F0F0F0F
    return <intp_t> (word * <uint64_t> 0x0101010101010101 >> 56)


cdef inline intp_t c_search(SlotSet slots, intp_t place, bint free) noexcept nogil:
    """The ``place``-th slot of the set, or with ``free`` not of the set, from 0 on."""
    cdef intp_t word = 0, step = slots.top, left = place, count, width = 32, shift = 0
    cdef uint64_t bits
    while step:
        if word + step <= slots.words:
            count = slots.counts[word + step]
            if free:
                count = (step << 6) - count
            if count <= left:
                left -= count
                word += step
        step >>= 1
    bits = ~slots.bits[word] if free else slots.bits[word]
    while width:
        count = c_ones(bits >> shift & ((<uint64_t> 1 << width) - 1))
        if count <= left:
            left -= count
            shift += width
        width >>= 1
    return (word << 6) + shift


cdef enum:
    LONGEST = 0x7FFFFFFF             # a longer run is skipped in parts


@cython.final
cdef class AbsentRuns:
    """Lengths of the runs of absent rows of a ring.

    A stored length stays valid as long as its row is in the ring, as absent rows stay absent. In
    the middle of a run it may be too short.
    """

    def __cinit__(self, intp_t capacity, intp_t n_envs):
        self.capacity = capacity
        self.n_envs = n_envs

    @property
    def nbytes(self):
        """Bytes of memory."""
        return 0 if self.memory is None else self.memory.nbytes

    cdef int c_make_memory(self) except -1:
        """Allocate memory, if there is none yet, before a row becomes absent."""
        if self.memory is None:
            self.memory = np.zeros(2 * self.capacity, np.int32)
            self.onward = <int32_t*> cnp.PyArray_DATA(self.memory)
            self.back = self.onward + self.capacity
        return 0

    cdef void c_join(self, int64_t row, intp_t before, intp_t after) noexcept nogil:
        """Note that a row became absent, behind ``before`` and before ``after`` absent rows."""
        cdef intp_t slot = <intp_t> (row % self.capacity)
        cdef int64_t first = row - <int64_t> before * self.n_envs
        cdef int64_t last = row + <int64_t> after * self.n_envs
        self.onward[slot] = <int32_t> min(1 + after, LONGEST)
        self.back[slot] = <int32_t> min(1 + before, LONGEST)
        self.onward[first % self.capacity] = <int32_t> min(1 + before + after, LONGEST)
        self.back[last % self.capacity] = <int32_t> min(1 + before + after, LONGEST)
