"""Attributes and C signatures of reading rows of several steps."""

from numpy cimport ndarray

from cpprb_like._machine.blocks cimport Block
from cpprb_like._core cimport Ring
from cpprb_like._c.typedefs cimport float32_t, float64_t, int32_t, intp_t, uint8_t


cdef struct Walk:                # through the rows of a ring, as it is at one time
    const uint8_t* flags         # of slot 0
    intp_t stride                # of the flags
    intp_t capacity
    intp_t n_envs
    const int32_t* onward        # of an absent row, how many are absent from it on
    intp_t head                  # the slot of the next row to be written
    bint any_absent


cdef struct Read:                # of one batch
    char** outs                  # of each column, by its place; NULL of those that are not read
    const intp_t* slots
    const intp_t* steps          # the most rows of each window ...
    intp_t most                  # ... or that of all, if there are none
    const float64_t* powers      # of gamma
    intp_t* last                 # slots of the last rows
    float32_t* discount          # NULL if there is no such column
    Block* blocks                # room for one of each column


cdef class Windows:
    cdef Ring ring
    cdef intp_t size             # the most rows of a window
    cdef float64_t[::1] powers   # of gamma, from 0 to ``size``
    cdef frozenset last_step_fields  # names of the columns that are of the last row
    cdef uint8_t[::1] origins    # what a batch holds of each column, by its place
    cdef intp_t lead             # place of a column that is summed by ``c_walk``, or -1
    cdef int discount_ndim       # 0 if there is no such column

    cdef ndarray c_new_discount(self, intp_t n)
    cdef int c_fill(
        self, ndarray slots, tuple columns, list arrays, ndarray last, ndarray discount, steps
    ) except -1
    cdef void c_read(self, Read* read, intp_t n) noexcept nogil
    cdef void c_walk_chunk(
        self, const Walk* walk, const Read* read, intp_t start, intp_t n, intp_t* lengths
    ) noexcept nogil
