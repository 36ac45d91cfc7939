"""Undo log: old bytes, kept in a file while new ones are written over them.

A process can be killed between any two stores. Rows that are added need no log: they are not alive
before the last of their bytes is written. Rows that are changed where they are, and several words
of the header that belong together, do. Compiled because it stands between the stores of a compiled
loop. Not here: who writes (``_core``, ``replace``), and what is undone when a file is opened
(``recovery``).
"""

cimport cython
from libc.string cimport memcpy

from cpprb_like._machine.clock cimport c_clock, c_fine_clock
from cpprb_like._c.fences cimport c_fence
from cpprb_like._rows.tracker cimport Tracker
from cpprb_like._c.typedefs cimport int64_t, intp_t, uint8_t


@cython.final
cdef class Undo:
    """Log of old bytes of an arena that lies in a file.

    Parameters
    ----------
    arena : ndarray of uint8
        What is written to.
    lens : ndarray of int64, shape (n_envs,)
        Memory for the lengths of episodes before the rows that are being added.
    log : ndarray of uint8
        Memory. The first word says how many bytes of entries are in force: 0 most of the time. An
        entry is the offset of bytes in the arena, how many there are, and what they were, padded to
        words.
    tracker : Tracker
        Is told which rows are edited.
    added_at : ndarray of int64, shape (2,), optional
        Memory for the time of the last row, as ``clock`` gives it, and for a word that is raised when
        old bytes come into force, and again when they no longer are.
    times : ndarray of int64, shape (capacity,), optional
        Memory for the time at which each row was added, by slot. Later calls of all processes of a
        machine have later times.
    """

    def __cinit__(
        self, uint8_t[::1] arena not None, int64_t[::1] lens not None, uint8_t[::1] log not None,
        Tracker tracker not None, int64_t[::1] added_at=None, int64_t[::1] times=None,
    ):
        self.arena = arena
        self.lens = lens
        self.log = log
        self.tracker = tracker
        self.added_memory = added_at
        self.added_at = NULL if added_at is None else &added_at[0]
        self.times = times
        self.has_times = times is not None

    cdef void c_save(self, intp_t offset, intp_t nbytes) noexcept nogil:
        """Note bytes that are about to change; whoever made the log gave it room."""
        cdef int64_t* entry = <int64_t*> &self.log[8 + self.used]
        entry[0] = offset
        entry[1] = nbytes
        memcpy(entry + 2, &self.arena[0] + offset, nbytes)
        self.used += 16 + (nbytes + 7) // 8 * 8

    cdef void c_begin(self) noexcept nogil:
        """From here on what was saved is restored when the file is opened."""
        if self.added_at != NULL:
            self.added_at[1] += 1
        c_fence()
        (<int64_t*> &self.log[0])[0] = self.used
        c_fence()

    cdef void c_note_times(self, int64_t written, intp_t n) noexcept nogil:
        """Write the time of n rows behind ``written``, whose slots are reserved already."""
        cdef intp_t k, capacity = self.times.shape[0]
        cdef int64_t now = c_fine_clock()
        c_fence()  # readers of the row before see the reservation first
        for k in range(min(n, capacity)):
            self.times[<intp_t> ((written + n - 1 - k) % capacity)] = now

    cdef void c_end(self) noexcept nogil:
        """The new bytes are there."""
        c_fence()
        (<int64_t*> &self.log[0])[0] = 0
        c_fence()
        self.used = 0
        if self.added_at != NULL:
            self.added_at[1] += 1


def clock():
    """The time now, in nanoseconds from some moment on; the same in all processes of a machine."""
    return c_clock()
