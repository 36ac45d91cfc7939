"""Attributes and C signatures of uniform draws."""

from numpy cimport ndarray

from cpprb_like._core cimport Ring
from cpprb_like._c.random_integers cimport Bits
from cpprb_like._c.typedefs cimport int64_t, intp_t, uint64_t


cdef class Shuffle:
    cdef intp_t n
    cdef intp_t most                 # numbers that there is room for
    cdef intp_t drawn                # of these that were given out
    cdef intp_t* places              # hash table: place, -1 for a free entry; or NULL, then ...
    cdef intp_t* numbers             # the number at that place; ... or of each, less the place
    cdef intp_t mask
    cdef int shift

    cdef intp_t c_next(self, Bits* bits) noexcept nogil
    cdef void c_take(self, Bits* bits, intp_t* numbers, intp_t n) noexcept nogil


cdef struct Plan:            # of a draw: the slots that it draws from
    intp_t first             # the first of them, or ``NUMBERS``: draw numbers of rows instead
    intp_t among             # how many slots from there on, or how many numbers
    intp_t drawable          # rows among these that can be drawn
    intp_t passed            # rows that can be drawn, and are older than these
    int64_t oldest           # id of the oldest row that is not left out
    bint skips               # reject slots that cannot be drawn, which are at most half of them


cdef Plan c_plan(Ring ring, intp_t newest) noexcept
cdef bint c_is(const Plan* plan, Plan other) noexcept
cdef intp_t c_most(const Plan* plan, intp_t n, intp_t times) noexcept
cdef bint c_draw(
    Ring ring, ndarray slots, Bits* bits, const Plan* plan, Shuffle shuffle
) noexcept


cdef class Epoch:
    cdef Ring ring
    cdef object rng              # None: in the order of the slots
    cdef Shuffle shuffle
    cdef ndarray slots           # of the rows, where most of the ring's rows cannot be drawn
    cdef ndarray memory          # what ``absent`` points into
    cdef const uint64_t* absent  # a bit for each slot: no row could be drawn there at first; or NULL
    cdef int64_t first           # row ids of the others: from ``base`` to ``stop``, then from here
    cdef int64_t base
    cdef int64_t stop
    cdef intp_t n                # rows in all
    cdef intp_t given            # rows that were asked for so far

    cdef intp_t c_slot(self, intp_t number) noexcept
    cdef bint c_can_give(self, intp_t slot) noexcept
