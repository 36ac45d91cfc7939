"""Attributes and C signatures of ``NewItems``."""

from cpython.object cimport PyObject
from numpy cimport ndarray

from cpprb_like._c.typedefs cimport int64_t, intp_t, uint8_t
from cpprb_like._rows.item_ring cimport ItemRing, Living


cdef struct Given:               # the items that a call has for a ragged column
    const char* items
    bint is_declared             # the axis is where the shape declares it; false: it is the first one


cdef enum SharedPlace:           # of items of a row that lie at no place yet
    APART = -1                   # they are placed anew
    OF_CALL = -2                 # they are next items of an earlier row of the call


cdef class NewItems:
    cdef tuple rings                 # ItemRing of each axis
    cdef tuple columns               # ragged columns of all axes
    cdef intp_t n_axes
    cdef intp_t lag                  # rows between a row of the call and the one with its next values
    cdef intp_t[::1] following       # by axis: that of its next values; -1 without
    cdef intp_t[:, ::1] pairs        # columns with next values: axis, numbers of both among ragged ones, column
    cdef intp_t[:, ::1] of_field     # by number of the field: axis, column of the axis, number among ragged ones
    cdef intp_t[:, ::1] shapes       # of each ragged column: outer numbers, bytes of the rest, whether text
    cdef intp_t[:, ::1] counted      # fields whose values count items: field, axis, kind, numbers, place
    cdef Given* given                # of each ragged column
    cdef int64_t[:, ::1] counts      # by axis: items of each row of the call
    cdef int64_t[:, ::1] shared      # by axis: place of the items of each row if those are there; or SharedPlace
    cdef int64_t[::1] order          # counts of the items of an axis, in the order in which they are placed
    cdef uint8_t[:, ::1] entries     # by axis: entries of the rows of the call, as they are stored
    cdef intp_t n                    # rows of the call
    cdef intp_t most                 # rows for which there is memory

    cdef bint c_is_ragged(self, intp_t number) noexcept nogil
    cdef bint c_take(self, intp_t number, PyObject* value) noexcept
    cdef bint c_are_in_range(self, const intp_t* sources) noexcept
    cdef int c_hold(self, intp_t n) except -1
    cdef intp_t c_order_items(self, intp_t axis, bint shares) noexcept
    cdef void c_find_shared(self, intp_t axis, const Living* rows, int64_t stay) noexcept
    cdef bint c_are_equal(self, intp_t axis, int64_t first, int64_t count, int64_t place, int64_t later) noexcept
    cdef char* c_entries(self, intp_t axis) noexcept
    cdef void c_write(self, bint is_moved) noexcept
    cdef void c_write_entries(self, intp_t axis, bint is_moved) noexcept
