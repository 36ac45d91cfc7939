"""C signatures of the uniform draws."""

from numpy cimport ndarray
from numpy.random cimport bitgen_t

from cpprb_like._core cimport Ring
from cpprb_like._random cimport Bits
from cpprb_like._typedefs cimport intp_t

cdef ndarray c_draw_slots(Ring ring, ndarray slots, bitgen_t* source, bint replace, newest)
cdef int c_draw(
    Ring ring, ndarray slots, Bits* bits, intp_t first, intp_t among, bint replace,
    bint skip,
) except -1
