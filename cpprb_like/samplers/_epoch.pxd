"""Attributes of ``Epoch``."""

from numpy cimport ndarray

from cpprb_like._core cimport Ring
from cpprb_like.samplers._uniform_draws cimport Shuffle
from cpprb_like._c.typedefs cimport int64_t, intp_t, uint64_t


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
