"""Attributes and C signatures of ``Undo``."""

from cpprb_like._rows.tracker cimport Tracker
from cpprb_like._c.typedefs cimport int64_t, intp_t, uint8_t


cdef class Undo:
    cdef uint8_t[::1] arena          # what is written to
    cdef readonly int64_t[::1] lens  # of the streams' episodes, before the rows that are being added
    cdef uint8_t[::1] log            # a word, the bytes in force, and then entries
    cdef public Tracker tracker      # of rows that were edited since the last flush
    cdef int64_t[::1] added_memory   # the same
    cdef int64_t* added_at           # time of the last row, and edits in place, for other processes; or NULL
    cdef int64_t[::1] times          # of rows, by slot; or None
    cdef bint has_times
    cdef intp_t used                 # bytes of entries that were saved since

    cdef void c_save(self, intp_t offset, intp_t nbytes) noexcept nogil
    cdef void c_begin(self) noexcept nogil
    cdef void c_note_times(self, int64_t written, intp_t n) noexcept nogil
    cdef void c_end(self) noexcept nogil
