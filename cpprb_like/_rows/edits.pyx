"""Edits of stored rows: which rows were edited (``Tracker``), and the bytes before (``Undo``).

A ``Tracker`` marks the slots of edited rows, for the next save. An ``Undo`` log lies in a
file and restores rows after a process was killed between two stores. Added rows need neither: row
ids tell which rows are new, and rows are not visible before their last byte is written. Compiled
because both run between the stores of a compiled loop. ``clock`` and ``fence`` are for Python code
that shares memory with other processes. Not here: the edits (``_core``, ``gather``), and the
recovery of a file that is opened (``_files.recovery``).
"""

cimport cython
cimport numpy as cnp
from libc.string cimport memcpy

from cpprb_like._c.arrays cimport c_check_array
from cpprb_like._c.fences cimport c_fence, c_full_fence
from cpprb_like._c.typedefs cimport int64_t, intp_t, uint8_t
from cpprb_like._machine.clock cimport c_clock, c_fine_clock

import numpy as np

cnp.import_array()

cdef enum:
    C_REWINDING = -1         # in place of the number of bytes

REWINDING = C_REWINDING


@cython.final
cdef class Tracker:
    """Set of the slots of edited rows: values replaced, row hidden, or episode ended."""

    def __cinit__(self, intp_t capacity):
        self.capacity = capacity
        self.bits = np.zeros((capacity + 7) >> 3, np.uint8)

    cdef void c_mark_row(self, intp_t slot) noexcept nogil:
        """Mark the row in a slot as edited."""
        self.bits[slot >> 3] |= <uint8_t> (1 << (slot & 7))

    def mark(self, slots):
        """Mark the rows in these slots, an array of intp. Raises ``IndexError`` for another slot."""
        c_check_array(slots, "slots", cnp.NPY_INTP, -1)
        cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(slots)
        cdef intp_t k, n = cnp.PyArray_DIM(slots, 0)
        if n and not 0 <= slots.min() <= slots.max() < self.capacity:
            raise IndexError(f"slots: expected 0 to {self.capacity - 1}")
        for k in range(n):
            self.c_mark_row(values[k])

    def slots(self):
        """The marked slots, ascending. Cost: proportional to all slots, a bit each."""
        cdef object bits = np.asarray(self.bits)
        used = np.flatnonzero(bits)
        marked = np.unpackbits(bits[used], bitorder="little").reshape(-1, 8)
        places, within = np.nonzero(marked)
        return (8 * used[places] + within).astype(np.intp)


@cython.final
cdef class Undo:
    """Log of old bytes of an arena that lies in a file.

    ``log`` begins with the number of bytes of entries in force, 0 most of the time. An entry is the
    offset of bytes in the arena, their number, and the old bytes, padded to words. Or it begins with
    ``REWINDING``, and has the first row that a rewind forgets, and the word EPISODES after it: a
    rewind is not undone but finished. ``lens`` has the
    episode lengths before the ``add`` in progress. ``added_at`` has two words: the ``clock`` of the last
    row, and a counter, +1 when entries come into force and +1 when they are dropped. ``times`` has the
    time of each row by slot; a later call of any process has a later time. ``chunks`` marks rows on a
    disk before they change, and limits which rows may be added; see ``_files.dirty_chunks``.
    """

    def __cinit__(
        self, uint8_t[::1] arena not None, int64_t[::1] lens not None, uint8_t[::1] log not None,
        int64_t[::1] added_at=None, int64_t[::1] times=None, chunks=None,
    ):
        self.arena = arena
        self.lens = lens
        self.log = log
        self.added_memory = added_at
        self.added_at = NULL if added_at is None else &added_at[0]
        self.times = times
        self.has_times = times is not None
        self.chunks = chunks
        self.limit_memory = np.array([2 ** 63 - 1]) if chunks is None else chunks.limit
        self.limit = &self.limit_memory[0]

    cdef void c_save(self, intp_t offset, intp_t nbytes) noexcept nogil:
        """Write an entry for bytes that are about to change. The log has room for all entries."""
        cdef int64_t* entry = <int64_t*> &self.log[8 + self.used]
        entry[0] = offset
        entry[1] = nbytes
        memcpy(entry + 2, &self.arena[0] + offset, nbytes)
        self.used += 16 + (nbytes + 7) // 8 * 8

    cdef void c_begin_change(self) noexcept nogil:
        """Put the entries in force: an opened file is restored from them."""
        if self.added_at != NULL:
            self.added_at[1] += 1
        c_fence()
        (<int64_t*> &self.log[0])[0] = self.used
        c_fence()

    cdef void c_begin_rewind(self, int64_t row, int64_t episodes) noexcept nogil:
        """Put a rewind in force, which an opened file finishes: see ``_rows.changes.c_rewind``."""
        cdef int64_t* words = <int64_t*> &self.log[0]
        words[1], words[2] = row, episodes
        self.used = C_REWINDING
        self.c_begin_change()

    cdef void c_note_times(self, int64_t written, intp_t n) noexcept nogil:
        """Write the time of n rows behind ``written``, after their slots were reserved."""
        cdef intp_t k, capacity = self.times.shape[0]
        cdef int64_t now = c_fine_clock()
        c_fence()  # readers of the row before see the reservation first
        for k in range(min(n, capacity)):
            self.times[<intp_t> ((written + n - 1 - k) % capacity)] = now

    cdef void c_end(self) noexcept nogil:
        """Drop all entries: the new bytes are written."""
        c_fence()
        (<int64_t*> &self.log[0])[0] = 0
        c_fence()
        self.used = 0
        if self.added_at != NULL:
            self.added_at[1] += 1


def clock():
    """The present time in nanoseconds, on a clock that all processes of a machine share."""
    return c_clock()


def fence():
    """Order the loads and stores of Python code in shared memory before and after this call."""
    c_full_fence()
