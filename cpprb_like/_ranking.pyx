"""Slots in the exact order of their keys, to draw slots by rank.

Two arrays that somebody else allocated: the keys of all slots, which are the truth, and the memory
of an order that follows from them. Compiled because each update searches and moves entries of that
order. Here is what Python sees; how the order is kept stands in ``_ranking.pxd``. Not here: what a
key means, and how likely a rank is drawn (``ranked``).

This is the rank(i) of T. Schaul et al., "Prioritized Experience Replay" (2016), section 3.3; its
authors approximate it by a heap that is sorted now and then (appendix B).
"""

cimport cython
cimport numpy as cnp
from libc.math cimport INFINITY, NAN
from libc.stdint cimport int32_t

from cpprb_like._arrays cimport c_check_array, c_index
from cpprb_like._copy cimport c_prefetch
from cpprb_like._typedefs cimport float64_t, intp_t

import numpy as np

cnp.import_array()

cdef enum:
    BLOCK = 128              # entries; 64 to 256 take about as long for 10^6 slots
    REBUILD = 16             # more changes than capacity / 16 are made sooner all at once


def ranking_size(capacity, block=BLOCK):
    """Length of the array ``memory`` of a ``Ranking``: about ``3.1 * capacity``.

    Parameters
    ----------
    capacity : int
        Slots, from 1 to 2147483647.
    block : int, default 128
        Entries in a block, from 2 to 2147483647.

    Raises
    ------
    ValueError
        One of them is out of range.
    """
    cdef intp_t slots = c_index(capacity), size = c_index(block)
    if not 1 <= slots <= MOST_SLOTS:
        raise ValueError(f"capacity: expected 1 to {MOST_SLOTS}, got {capacity}")
    if not 2 <= size <= MOST_SLOTS:
        raise ValueError(f"block: expected 2 to {MOST_SLOTS}, got {block}")
    return (c_nbytes(c_blocks_for(slots, size), size) + 7) // 8


@cython.final
cdef class Ranking:
    """Which slot has the largest key, the second largest, and so on.

    Each of the slots 0 to ``capacity - 1`` is present, with a key, or absent. Present slots are in
    order of their keys, largest first, and of equal keys by slot, smallest first. The rank of a
    slot is its place in this order, counted from 1. Indexes, ranks and keys come in arrays that are
    dense, 1-d, and of dtype intp and float64. A call that raises changes nothing.

    Any number of threads may call; each call is seen whole or not at all.

    Parameters
    ----------
    keys : ndarray of float64, shape (capacity,)
        The key of each slot: finite and 0 or more, or NaN if it is absent. Each call keeps it up to
        date. It is all that need be saved: a ranking over a copy is the same. Whoever else writes
        to it calls ``rebuild`` before anything else.
    memory : ndarray of float64, shape (ranking_size(capacity, block),)
        Memory for the order; what stands there is overwritten. Nobody else may write to it.
    block : int, default 128
        Entries that are kept side by side, from 2.

    Notes
    -----
    It takes 33 bytes a slot, 8 of them for the keys. To change, find or rank n slots costs n times
    about log(capacity), to build the order is linear in capacity, and the first reading after a
    change is linear in capacity / block.

    Examples
    --------
    >>> ranking = Ranking(np.full(9, np.nan), np.empty(ranking_size(9)))
    >>> ranking.set(np.array([3, 7, 5]), np.array([0.5, 2.0, 0.5]))
    >>> ranking.at(np.array([1, 2, 3]))
    array([7, 3, 5])
    >>> len(ranking), ranking.largest
    (3, 2.0)
    """

    def __cinit__(self, float64_t[::1] keys not None, float64_t[::1] memory not None, block=BLOCK):
        cdef intp_t size = ranking_size(keys.shape[0], block)
        if memory.shape[0] != size:
            raise ValueError(f"memory: expected {size}, got {memory.shape[0]}")
        self.capacity = keys.shape[0]
        self.keys = keys
        self.memory = memory
        size = c_index(block)
        c_begin(&self.order, &memory[0], c_blocks_for(self.capacity, size), size)
        self.rebuild()

    def __len__(self):
        """Slots that are present."""
        return self.order.length

    @property
    def largest(self):
        """The largest key; 0.0 if no slot is present."""
        if self.order.length == 0:
            return 0.0
        return self.order.keys[self.order.blocks[0].home * self.order.size]  # no block is empty

    # ------------------------------------------------------------------ writing

    def set(self, indexes, keys):
        """Set the key of slot ``indexes[k]`` to ``keys[k]``; of duplicates the last wins.

        Raises ``TypeError`` for other arrays, ``IndexError`` for a slot out of range, and
        ``ValueError`` for a key that is none or another number of keys.
        """
        cdef intp_t n = self.c_check_indexes(indexes)
        self.c_check_keys(keys, n)
        self.c_set(
            <const intp_t*> cnp.PyArray_DATA(indexes), 0,
            <const float64_t*> cnp.PyArray_DATA(keys), n,
        )

    def set_range(self, first, keys):
        """Set the keys of consecutive slots, from ``first`` on. Raises like ``set``."""
        c_check_array(keys, "keys", cnp.NPY_FLOAT64, -1)
        cdef intp_t n = cnp.PyArray_DIM(keys, 0), start = c_index(first)
        if not (0 <= start <= self.capacity and n <= self.capacity - start):
            raise IndexError(
                f"range: expected slots from 0 to {self.capacity - 1}, got {n} from {first} on"
            )
        self.c_check_keys(keys, n)
        self.c_set(NULL, start, <const float64_t*> cnp.PyArray_DATA(keys), n)

    def remove(self, indexes):
        """Make slots absent; those that are so already stay so.

        Raises ``TypeError`` for another array and ``IndexError`` for a slot out of range.
        """
        cdef intp_t n = self.c_check_indexes(indexes)
        self.c_set(<const intp_t*> cnp.PyArray_DATA(indexes), 0, NULL, n)

    def clear(self):
        """Make all slots absent."""
        self.c_clear()

    cdef void c_clear(self) noexcept nogil:
        self.keys[:] = NAN
        self.c_order()

    cdef void c_order(self) noexcept nogil:
        """Build the order from the keys, which are sound."""
        c_order_all(&self.order, &self.keys[0], self.capacity)

    def rebuild(self):
        """Build the order from the keys, as after writing to their array.

        Raises ``ValueError`` if one is neither a key nor NaN.
        """
        cdef intp_t slot
        for slot in range(self.capacity):
            if self.keys[slot] < 0.0 or self.keys[slot] == INFINITY:
                raise ValueError(
                    f"keys[{slot}]: expected a finite number from 0, or NaN for an absent slot, "
                    f"got {self.keys[slot]}"
                )
        for slot in range(self.capacity):
            self.keys[slot] += 0.0  # never minus zero
        c_order_all(&self.order, &self.keys[0], self.capacity)

    cdef intp_t c_check_indexes(self, indexes) except -1:
        """Raise unless these are slots; their number."""
        c_check_array(indexes, "indexes", cnp.NPY_INTP, -1)
        cdef const intp_t* slots = <const intp_t*> cnp.PyArray_DATA(indexes)
        cdef intp_t k, n = cnp.PyArray_DIM(indexes, 0)
        cdef bint wrong = False
        for k in range(n):
            wrong |= <size_t> slots[k] >= <size_t> self.capacity
        if wrong:
            raise IndexError(
                f"indexes: expected 0 to {self.capacity - 1}, "
                f"got {indexes.min()} to {indexes.max()}"
            )
        return n

    cdef int c_check_keys(self, keys, intp_t n) except -1:
        """Raise unless these are n keys."""
        c_check_array(keys, "keys", cnp.NPY_FLOAT64, n)
        cdef const float64_t* values = <const float64_t*> cnp.PyArray_DATA(keys)
        cdef intp_t k
        cdef bint right = True
        for k in range(n):
            right &= (values[k] >= 0.0) & (values[k] < INFINITY)  # false for NaN
        if not right:
            wrong = np.flatnonzero(~((keys >= 0.0) & (keys < np.inf)))[0]
            raise ValueError(f"keys[{wrong}]: expected a finite number from 0, got {keys[wrong]}")
        return 0

    cdef int c_set(self, const intp_t* slots, intp_t first, const float64_t* keys, intp_t n) except -1:
        """Set the keys of slots, or of those from ``first`` on, or remove them if keys is NULL."""
        if not self.c_set_keys(slots, first, keys, n):
            raise RuntimeError("keys: somebody else wrote to them without calling rebuild()")
        return 0

    cdef bint c_is_many(self, intp_t n) noexcept nogil:
        """Whether the keys of so many slots are better set all at once, and put in order then."""
        return n > self.capacity // REBUILD

    cdef bint c_set_keys(
        self, const intp_t* slots, intp_t first, const float64_t* keys, intp_t n
    ) noexcept nogil:
        """As ``c_set``; false if somebody else wrote to the keys."""
        cdef bint at_once = self.c_is_many(n), right = True
        cdef intp_t k, slot
        cdef float64_t key
        for k in range(n):
            slot = slots[k] if slots != NULL else first + k
            key = keys[k] + 0.0 if keys != NULL else NAN  # never minus zero
            right &= at_once or self.c_set_one(slot, key)
            self.keys[slot] = key
        if at_once:
            self.c_order()
        return right

    cdef bint c_set_one(self, intp_t slot, float64_t key) noexcept nogil:
        """Change the order only; false if the keys are not those that it was made from."""
        cdef float64_t old = self.keys[slot]
        cdef bint right = True
        if old == key:
            return True
        if old == old:
            right = c_remove(&self.order, old, slot)
        if key == key:
            if self.order.length == self.capacity:
                return False
            c_insert(&self.order, key, slot)
        return right

    # ------------------------------------------------------------------ reading

    def get(self, indexes):
        """The keys of slots, NaN where absent, as a fresh array. Raises like ``remove``."""
        cdef intp_t k, n = self.c_check_indexes(indexes)
        cdef const intp_t* slots = <const intp_t*> cnp.PyArray_DATA(indexes)
        cdef cnp.ndarray keys = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_FLOAT64)
        cdef float64_t* out = <float64_t*> cnp.PyArray_DATA(keys)
        for k in range(n):
            out[k] = self.keys[slots[k]]
        return keys

    def at(self, ranks):
        """The slots at ranks, as a fresh array.

        Raises ``TypeError`` for another array, and ``IndexError`` for a rank that is not from 1 to
        the number of present slots.
        """
        c_check_array(ranks, "ranks", cnp.NPY_INTP, -1)
        cdef intp_t k, n = cnp.PyArray_DIM(ranks, 0)
        cdef const intp_t* wanted = <const intp_t*> cnp.PyArray_DATA(ranks)
        cdef cnp.ndarray slots = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_INTP)
        cdef intp_t* out = <intp_t*> cnp.PyArray_DATA(slots)
        cdef bint wrong = False
        for k in range(n):
            wrong |= not 1 <= wanted[k] <= self.order.length
        if wrong:
            raise IndexError(
                f"ranks: expected 1 to {self.order.length}, got {ranks.min()} to {ranks.max()}"
            )
        for k in range(n):
            out[k] = wanted[k] - 1
        self.c_find_slots(out, n)
        return slots

    cdef void c_find_slots(self, intp_t* ranks, intp_t n) noexcept nogil:
        """Put the slots at n ranks, counted from 0, in place of these."""
        cdef intp_t k
        for k in range(n):
            ranks[k] = c_place_at(&self.order, ranks[k])
            c_prefetch(self.order.slots + ranks[k])
        for k in range(n):
            ranks[k] = self.order.slots[ranks[k]]

    cdef intp_t c_rank(self, intp_t slot) noexcept nogil:
        """The rank of a slot, counted from 0; -1 if it is absent."""
        cdef float64_t key = self.keys[slot]
        return c_rank_of(&self.order, key, <int32_t> slot) if key == key else -1

    def ranks_of(self, indexes):
        """The ranks of slots, as a fresh array.

        Raises like ``remove``, and ``ValueError`` for an absent slot.
        """
        cdef intp_t k, slot, n = self.c_check_indexes(indexes)
        cdef const intp_t* slots = <const intp_t*> cnp.PyArray_DATA(indexes)
        cdef cnp.ndarray ranks = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_INTP)
        cdef intp_t* out = <intp_t*> cnp.PyArray_DATA(ranks)
        for k in range(n):
            slot = slots[k]
            if self.keys[slot] != self.keys[slot]:
                raise ValueError(f"indexes[{k}]: expected slots that are present, got {slot}")
            out[k] = c_rank_of(&self.order, self.keys[slot], slot) + 1
        return ranks
