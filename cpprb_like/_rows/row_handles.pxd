"""C functions that make and resolve the ``indexes`` of rows."""

from numpy cimport ndarray

from cpprb_like._core cimport ABSENT_ROWS, HANDLE_BASE, WRITTEN, Ring, c_stored
from cpprb_like._c.typedefs cimport int64_t, intp_t


cdef enum:  # results of ``c_slot_of`` that are no slots
    GONE = -1        # the row was overwritten, left out, deleted or cleared
    NO_ROW = -2      # no row ever had this index, or the row holds no step


cdef inline int64_t c_row_of_public(Ring ring, intp_t slot) noexcept nogil:
    """The row id of the row in a public slot; below ``c_first`` for an empty slot."""
    cdef int64_t last = ring.c_stop() - 1
    return last - (last - slot) % ring.span if slot <= last else -1


cdef inline intp_t c_slot_of(Ring ring, int64_t index, bint as_handles) noexcept nogil:
    """The slot of the row that an index names, or ``GONE`` or ``NO_ROW``.

    With ``as_handles`` an index is a handle or a public slot, else a public slot.
    """
    cdef int64_t row, base = ring.state[HANDLE_BASE], written = ring.state[WRITTEN]
    cdef intp_t slot = <intp_t> index
    if index >= ring.span:
        row = index - ring.span - base
        if not as_handles or row >= written:
            return NO_ROW
        if row < 0 or row < ring.c_first():
            return GONE
        slot = <intp_t> (row % ring.capacity)
    elif slot < 0:
        return NO_ROW
    elif ring.lookahead:
        row = c_row_of_public(ring, slot)
        if row < ring.c_first():
            return NO_ROW if row < 0 else GONE
        slot = <intp_t> (row % ring.capacity)
    elif slot >= c_stored(ring):
        return NO_ROW
    if ring.state[ABSENT_ROWS] and ring.c_is_absent(slot):
        return NO_ROW if index < ring.span else GONE  # a row with a handle held a step: it was deleted
    return slot


cdef ndarray c_row_handles(Ring ring, ndarray slots)
cdef ndarray c_indexes(Ring ring, ndarray slots, bint as_handles)
cdef intp_t c_find_indexes(
    Ring ring, const int64_t* indexes, intp_t n, bint as_handles, int64_t drawn, intp_t* slots,
    intp_t* places,
) noexcept nogil
cdef ndarray c_find_rows(Ring ring, const int64_t[::1] indexes)
cdef int c_refuse(Ring ring, int64_t index, intp_t place) except -1
