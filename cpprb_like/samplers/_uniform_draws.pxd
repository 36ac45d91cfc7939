"""C signatures of uniform draws."""

from numpy cimport ndarray

from cpprb_like._core cimport Ring
from cpprb_like._c.random_integers cimport Bits
from cpprb_like._c.shuffle cimport Shuffle
from cpprb_like._c.typedefs cimport int64_t, intp_t


cdef struct Plan:            # of a draw: what it chooses among
    intp_t first             # slot of the first, or ``NUMBERS``
    intp_t among             # slots from there on, or numbers
    intp_t drawable          # of these
    intp_t passed            # rows that can be drawn, and are older than those
    int64_t oldest           # row of all
    bint skips               # slots that cannot be drawn, which are at most half of them


cdef Plan c_plan(Ring ring, intp_t newest) noexcept
cdef bint c_is(const Plan* plan, Plan other) noexcept
cdef intp_t c_most(const Plan* plan, intp_t n, intp_t times) noexcept
cdef bint c_draw(
    Ring ring, ndarray slots, Bits* bits, const Plan* plan, Shuffle shuffle
) noexcept
