"""``IncompleteRows``: the rows of a buffer whose n-step window is not complete yet.

A row can be drawn when n - 1 rows of its episode follow it, or the episode has ended. With
``lookahead`` of n - 1, ``lookahead * n_envs`` slots of a ring are for incomplete rows. Complete rows
beyond the other slots are left out. All of it follows from the lengths of the open episodes, so it
is derived lazily, and the rows of a file need no more than their flags. Compiled because draws ask
for each row. Not here: when it is derived anew (``_core.c_sync_open``), and weights of incomplete
rows (``samplers._row_weights``).
"""

cimport cython
from libc.string cimport memcpy, memset

from cpprb_like._c.typedefs cimport int64_t, intp_t
from cpprb_like._rows.slot_set cimport SlotSet
from cpprb_like._rows.walk cimport END, Cursor, Walk, c_backward, c_forward

import numpy as np


cdef void c_sort_rows(int64_t* rows, intp_t n, int64_t first, int64_t stop) noexcept nogil:
    """Sort n rows from ``first`` to ``stop``, byte by byte. Behind them is memory for n more.

    With ``qsort``, ``newest_slots`` took four times as long with 4,096 environments that pause.
    """
    cdef int64_t* source = rows
    cdef int64_t* target = rows + n
    cdef intp_t[256] places
    cdef intp_t k, place, count
    cdef int shift = 0
    while (stop - first) >> shift:
        memset(places, 0, sizeof(places))
        for k in range(n):
            places[((source[k] - first) >> shift) & 255] += 1
        place = 0
        for k in range(256):
            count, places[k] = places[k], place
            place += count
        for k in range(n):
            count = ((source[k] - first) >> shift) & 255
            target[places[count]] = source[k]
            places[count] += 1
        source, target = target, source
        shift += 8
    if source != rows:
        memcpy(rows, source, n * sizeof(int64_t))


@cython.final
cdef class IncompleteRows:
    """The incomplete rows of a ring, and the oldest of its rows that is not left out."""

    def __cinit__(self, intp_t lookahead, intp_t size, intp_t n_envs, SlotSet out not None):
        self.lookahead, self.size, self.n_envs = lookahead, size, n_envs
        self.out = out
        self.written = -1
        self.open_from = np.zeros(n_envs, np.int64)
        self.open_rows = np.empty(2 * lookahead * n_envs, np.int64)

    cdef void c_find_open(
        self, const Walk* walk, const int64_t* lens, int64_t clears, int64_t edits
    ) noexcept nogil:
        """Find the incomplete rows, and the oldest row that is not left out.

        The incomplete rows of a stream are its newest ``lookahead`` steps of the open episode. Rows
        are left out while more than ``size`` others are in the ring. Cost: proportional to
        ``n_envs`` for each change of the ring; with absent rows, to the incomplete rows.

        ``lens`` are the lengths of the open episodes, ``clears`` and ``edits`` words of the header.
        """
        cdef Cursor at
        cdef intp_t stream, count, most, start = <intp_t> (walk.stop % self.n_envs)
        cdef int64_t row
        self.n_open, self.oldest_open, self.lists_open = 0, walk.stop, False
        for stream in range(self.n_envs):
            most = <intp_t> min(<int64_t> self.lookahead, lens[stream])
            row = walk.stop + stream - start + (self.n_envs if stream < start else 0)
            if walk.any_absent:
                at = Cursor(row, <intp_t> (row % walk.capacity))
                count = 0
                while count < most and c_backward(walk, &at):
                    if walk.flags[at.slot * walk.stride] & END:
                        break
                    row = at.row
                    count += 1
            else:
                count = most
                row -= count * self.n_envs
                while row < walk.first:
                    row += self.n_envs
                    count -= 1
            self.open_rows[stream] = self.open_from[stream]  # for ``c_first_completed``
            self.open_from[stream] = row
            self.n_open += count
            self.oldest_open = min(self.oldest_open, row)
        self.kept_from = max(walk.first, walk.stop - self.size - self.n_open)
        while self.oldest_open < self.kept_from:
            self.c_leave_out(walk)
        self.n_complete = self.out.c_free_rows(self.kept_from, walk.stop) - self.n_open
        self.head, self.lap = walk.head, walk.stop - walk.head
        self.written, self.clears, self.edits = walk.stop, clears, edits

    cdef void c_leave_out(self, const Walk* walk) noexcept nogil:
        """Leave out the incomplete rows before ``kept_from``, and compute ``kept_from`` again."""
        cdef Cursor at
        cdef intp_t stream
        self.oldest_open = walk.stop
        for stream in range(self.n_envs):
            at.row = self.open_from[stream]
            at.slot = <intp_t> (at.row % walk.capacity)
            while at.row < self.kept_from:
                self.n_open -= 1
                c_forward(walk, &at)
            self.open_from[stream] = at.row
            self.oldest_open = min(self.oldest_open, at.row)
        self.kept_from = max(self.kept_from, walk.stop - self.size - self.n_open)

    cdef int64_t c_first_completed(self, const Walk* walk) noexcept nogil:
        """The oldest of the rows that the last change of the ring completed, -1 if there is none.

        Rows that the same change has overwritten do not count. With one environment and no absent row
        they do: slots then follow from the number of steps, as in cpprb.
        """
        cdef Cursor at
        cdef int64_t first = -1, row
        cdef intp_t stream, n = self.n_envs
        for stream in range(n):
            row = self.open_rows[stream]  # the oldest incomplete row before the change
            if row < self.kept_from and (n > 1 or walk.any_absent):
                row += (self.kept_from - row + n - 1) // n * n
            if row < self.open_from[stream] and walk.any_absent:  # the row may be absent
                at = Cursor(row - n, <intp_t> ((row - n + walk.capacity) % walk.capacity))
                row = at.row if c_forward(walk, &at) else self.open_from[stream]
            if row < self.open_from[stream] and (first < 0 or row < first):
                first = row
        return first

    cdef bint c_is_complete(self, intp_t slot) noexcept nogil:
        """Whether the row in a slot in use, which holds a step, can be drawn."""
        cdef int64_t row = self.lap + slot if slot < self.head else self.lap + slot - self.out.capacity
        if row >= self.oldest_open:
            return self.n_envs > 1 and row < self.open_from[row % self.n_envs]
        return row >= self.kept_from

    cdef intp_t c_count_open(self, const Walk* walk, int64_t row, intp_t place) noexcept nogil:
        """Number of incomplete rows older than a row, and than the ``place``-th that can be drawn."""
        cdef intp_t low = 0, high = self.n_open, middle
        cdef int64_t other
        if row <= self.oldest_open or place < self.out.c_free_rows(self.kept_from, self.oldest_open):
            return 0
        self.c_list_open(walk)
        while low < high:
            middle = (low + high) // 2
            other = self.open_rows[middle]
            if other < row and self.out.c_free_rows(self.kept_from, other) - middle <= place:
                low = middle + 1
            else:
                high = middle
        return low

    cdef void c_list_open(self, const Walk* walk) noexcept nogil:
        """List the incomplete rows, ascending, unless they are listed."""
        cdef Cursor at
        cdef intp_t stream, count = 0
        cdef int64_t row
        if self.lists_open:
            return
        self.lists_open = True
        if not walk.any_absent:  # a sort took 20 times as long
            stream = <intp_t> (self.oldest_open % self.n_envs)
            for row in range(self.oldest_open, walk.stop):
                if row >= self.open_from[stream]:
                    self.open_rows[count] = row
                    count += 1
                stream = stream + 1 if stream + 1 < self.n_envs else 0
            return
        for stream in range(self.n_envs):
            at.row = self.open_from[stream]
            at.slot = <intp_t> (at.row % walk.capacity)
            while at.row < walk.stop:
                self.open_rows[count] = at.row
                count += 1
                c_forward(walk, &at)
        c_sort_rows(&self.open_rows[0], count, self.oldest_open, walk.stop)
