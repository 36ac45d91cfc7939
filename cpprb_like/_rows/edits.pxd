"""Attributes and C signatures of ``Tracker`` and ``Undo``."""

from cpprb_like._c.typedefs cimport int64_t, intp_t, uint8_t


cdef class Tracker:
    cdef readonly intp_t capacity
    cdef uint8_t[::1] bits           # a bit for each slot: whether its row was edited

    cdef void c_mark_row(self, intp_t slot) noexcept nogil


cdef class Undo:
    cdef uint8_t[::1] arena          # the memory whose old bytes are logged
    cdef readonly int64_t[::1] lens  # episode length of each stream before the ``add`` in progress
    cdef uint8_t[::1] log            # a word with the number of bytes in force, and then entries
    cdef readonly object chunks      # ``DirtyChunks`` of the file; None: rows need no mark
    cdef int64_t[::1] limit_memory   # memory of ``limit``
    cdef int64_t* limit              # id of the first row that may not be added before ``Files.prepare``
    cdef public int64_t wanted       # end of the rows that an ``add`` beyond the limit has asked for
    cdef int64_t[::1] added_memory   # memory of ``added_at``
    cdef int64_t* added_at           # for other processes: time of the last row, edits; or NULL
    cdef int64_t[::1] times          # time of each row, by slot; or None
    cdef bint has_times
    cdef intp_t used                 # bytes of entries that are not in force yet

    cdef void c_save(self, intp_t offset, intp_t nbytes) noexcept nogil
    cdef void c_begin_change(self) noexcept nogil
    cdef void c_begin_rewind(self, int64_t row, int64_t episodes) noexcept nogil
    cdef void c_note_times(self, int64_t written, intp_t n) noexcept nogil
    cdef void c_end(self) noexcept nogil
