"""C functions that change stored rows."""

from numpy cimport ndarray

from cpprb_like._c.typedefs cimport int64_t, intp_t
from cpprb_like._core cimport Moment, Ring
from cpprb_like._rows.new_items cimport NewItems

cdef bint c_mark_disk(Ring ring, ndarray slots) except -1
cdef int c_end_episode(Ring ring, intp_t stream) except -1
cdef int c_hide(Ring ring, ndarray slots, Moment moment) except -1
cdef bint c_make_room(Ring ring, NewItems given, intp_t rows, int64_t kept) except -1
cdef void c_mark_edited(Ring ring, intp_t slot) noexcept
cdef object c_rewind(Ring ring, int64_t row)
cdef int c_clear_rows(Ring ring) except -1
