"""Attributes and C signatures of the walk through the windows of a batch."""

from numpy cimport ndarray

from cpprb_like._machine.blocks cimport Block
from cpprb_like._core cimport Ring, Walk
from cpprb_like._rows.rings cimport Rings, Span
from cpprb_like._c.typedefs cimport float32_t, float64_t, intp_t, uint8_t


cdef struct Read:                # of one batch
    char** outs                  # of each column, by its place; NULL of those that are not read
    const intp_t* slots
    const intp_t* steps          # the most rows of each n-step return; NULL: ``most`` of each
    intp_t most
    intp_t before                # rows before each row, at most
    intp_t after                 # rows behind it, at most
    bint is_whole                # windows of all rows are written, not of one chunk
    intp_t* windows              # slots: a matrix of before + 1 + after columns
    intp_t* counts               # rows before and behind each row; NULL unless ``is_whole``
    intp_t* lengths              # rows of each n-step return
    intp_t* last                 # slot of the last of them
    const float64_t* powers      # of gamma
    float32_t* discount          # NULL if there is no such column
    Block* blocks                # room for one of each column
    Walk* walks                  # of several rings, by number; NULL: the rows are slots of one
    const Span* spans            # of several rings, as are ...
    int bits                     # ... the low bits of a row that hold its number, and ...
    intp_t mask                  # ... the same bits
    const char** wholes          # where the records of the rows lie, or other values of each


cdef class Walker:
    cdef Ring ring               # or the layout of ``rings``
    cdef Rings rings             # several of them, or None
    cdef intp_t size             # the most rows of an n-step return
    cdef intp_t before           # rows before each row that are walked
    cdef intp_t after            # rows behind it that are walked, at least size - 1
    cdef intp_t least_after      # of them, those that are walked whatever the n of a row is
    cdef bint gives_windows
    cdef bint keeps              # slots of windows are written, as more than one column reads them
    cdef float64_t[::1] powers   # of gamma, from 0 to ``size``
    cdef frozenset last_fields   # names of the columns that are of the last row
    cdef uint8_t[::1] origins    # what a batch holds of each column, by its place
    cdef intp_t lead             # place of a column of one number that is summed on the way, or -1
    cdef int discount_ndim       # 0 if there is no such column

    cdef ndarray c_new_discount(self, intp_t n)
    cdef int c_fill(
        self, ndarray slots, tuple columns, list arrays, ndarray last, ndarray lengths,
        ndarray windows, ndarray counts, ndarray discount, steps
    ) except -1
    cdef void c_read(self, Read* read, intp_t n) noexcept nogil
    cdef int c_read_several(self, Read* read, intp_t n) except -1
    cdef void c_read_chunks(self, Ring ring, Read* read, intp_t n) noexcept nogil
    cdef void c_walk_chunk(
        self, Ring ring, Walk walk, const Read* read, intp_t start, intp_t n, intp_t* windows
    ) noexcept nogil
