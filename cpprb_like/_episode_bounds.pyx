"""Where the episodes of a ring begin and end, and draws of other rows of a row's episode.

A row that is added costs nothing here. The next call looks once at the flags of the rows that have
come, and notes the ends among them; the episode of a row is then found by a binary search. Compiled
because it looks at every new row. Not here: what the rows found are good for (``hindsight``).
"""

cimport cython
cimport numpy as cnp
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.string cimport memcpy, memmove
from numpy.random cimport bitgen_t

from cpprb_like._core cimport ABSENT, END, REVISION, WRITTEN, Ring
from cpprb_like._random cimport Bits, c_bits_of, c_bounded
from cpprb_like._typedefs cimport int64_t, intp_t

import numpy as np

cnp.import_array()

cdef enum:
    FIRST_ROOM = 8           # ends that each stream has room for at first
    TRIES = 32               # draws that may hit an absent row before the rows are counted

cdef enum:  # strategies: which row of the episode
    C_FUTURE = 0
    C_FINAL = 1
    C_EPISODE = 2
    C_RANDOM = 3

FUTURE = C_FUTURE
FINAL = C_FINAL
EPISODE = C_EPISODE
RANDOM = C_RANDOM


@cython.final
cdef class EpisodeBounds:
    """The first and the last row of the episode of each row of a ring.

    Of an episode whose first rows were overwritten, those that are left count; of one that has not
    ended, the rows so far. Calls keep the interpreter lock from the look at the ring to the last
    result, so any number of threads may call, and add to the ring meanwhile.

    Parameters
    ----------
    ring : Ring
        The rows.
    """

    def __cinit__(self, Ring ring not None):
        self.ring = ring
        self.newest = np.empty(ring.n_envs, np.int64)
        self.heads = np.empty(ring.n_envs, np.intp)
        self.counts = np.empty(ring.n_envs, np.intp)
        self.room = FIRST_ROOM
        self.ends = np.empty(ring.n_envs * self.room, np.int64)
        self.c_forget()

    @property
    def nbytes(self):
        """Bytes of memory: in proportion to the most episodes that were there at one time."""
        return self.ends.nbytes + 3 * 8 * self.ring.n_envs

    cdef void c_forget(self) noexcept:
        """Begin anew: the ring was cleared."""
        self.revision = self.ring.state[REVISION]
        self.seen = 0
        self.newest[:] = -1
        self.heads[:] = 0
        self.counts[:] = 0

    # ------------------------------------------------------------------ following the ring

    cdef int c_sync(self) except -1:
        """Look at the rows that have come."""
        cdef Ring ring = self.ring
        if self.revision != ring.state[REVISION]:
            self.c_forget()
        cdef int64_t written = ring.state[WRITTEN]
        cdef int64_t oldest = written - ring.c_stored(), row = max(self.seen, oldest), last
        cdef intp_t stream = <intp_t> (row % ring.n_envs), slot = <intp_t> (row % ring.capacity)
        cdef intp_t place
        while row < written:
            if not ring.c_flags(slot)[0] & ABSENT:
                # The newest step may be marked as an end as long as no other follows, so what it
                # is gets noted only now. If it was overwritten, nothing of its episode is left.
                last = self.newest[stream]
                if last >= oldest:
                    place = slot - <intp_t> (row - last)
                    if place < 0:
                        place += ring.capacity
                    if ring.c_flags(place)[0] & END:
                        self.c_push(stream, last, oldest)
                self.newest[stream] = row
            row += 1
            self.seen = row
            stream = stream + 1 if stream + 1 < ring.n_envs else 0
            slot = slot + 1 if slot + 1 < ring.capacity else 0
        return 0

    cdef int c_push(self, intp_t stream, int64_t row, int64_t oldest) except -1:
        """Note an end, and forget those of the stream that were overwritten."""
        cdef int64_t* ends = <int64_t*> cnp.PyArray_DATA(self.ends) + stream * self.room
        while self.counts[stream] and ends[self.heads[stream]] < oldest:
            self.heads[stream] += 1
            self.counts[stream] -= 1
        if self.heads[stream] + self.counts[stream] == self.room:
            self.c_make_room(stream)
            ends = <int64_t*> cnp.PyArray_DATA(self.ends) + stream * self.room
        ends[self.heads[stream] + self.counts[stream]] = row
        self.counts[stream] += 1
        return 0

    cdef int c_make_room(self, intp_t stream) except -1:
        """Move the ends of a stream to its first places, or give all streams twice as many.

        Without Python code or NumPy's copies, which let other threads run.
        """
        cdef int64_t* ends = <int64_t*> cnp.PyArray_DATA(self.ends)
        cdef intp_t room = 2 * self.room, size = room * self.ring.n_envs, number
        cdef cnp.ndarray wider
        if 2 * self.counts[stream] <= self.room:
            ends += stream * self.room
            memmove(ends, ends + self.heads[stream], self.counts[stream] * sizeof(int64_t))
            self.heads[stream] = 0
            return 0
        wider = cnp.PyArray_SimpleNew(1, &size, cnp.NPY_INT64)
        for number in range(self.ring.n_envs):
            memcpy(
                <int64_t*> cnp.PyArray_DATA(wider) + number * room,
                ends + number * self.room + self.heads[number],
                self.counts[number] * sizeof(int64_t),
            )
            self.heads[number] = 0
        self.ends, self.room = wider, room
        return 0

    # ------------------------------------------------------------------ finding and drawing

    cdef void c_find(self, int64_t row, int64_t* first, int64_t* last) noexcept:
        """The first and the last row of the episode of a row that holds a step."""
        cdef Ring ring = self.ring
        cdef intp_t stream = <intp_t> (row % ring.n_envs)
        cdef const int64_t* ends = (
            <const int64_t*> cnp.PyArray_DATA(self.ends) + stream * self.room + self.heads[stream]
        )
        cdef intp_t low = 0, high = self.counts[stream], middle
        cdef int64_t oldest = ring.state[WRITTEN] - ring.c_stored()
        while low < high:
            middle = (low + high) // 2
            if ends[middle] < row:
                low = middle + 1
            else:
                high = middle
        # The row itself if it is the newest, or if another one came into its slot.
        last[0] = ends[low] if low < self.counts[stream] else max(self.newest[stream], row)
        first[0] = oldest + (stream + ring.n_envs - oldest % ring.n_envs) % ring.n_envs
        if low:
            first[0] = max(first[0], ends[low - 1] + ring.n_envs)

    cdef int64_t c_pick(self, Bits* bits, int64_t first, int64_t last, intp_t step) noexcept:
        """One of the rows from ``first`` to ``last`` that hold a step, each equally likely.

        Cost: constant, unless nearly all of these rows are absent.
        """
        cdef Ring ring = self.ring
        cdef int64_t n = (last - first) // step + 1, row = last, present = 0
        cdef intp_t number, _
        for _ in range(TRIES if ring.c_absent() else 1):
            row = first + step * <int64_t> c_bounded(bits, n)
            if not ring.c_absent() or not ring.c_is_absent(<intp_t> (row % ring.capacity)):
                return row
        for number in range(n):
            present += not ring.c_is_absent(<intp_t> ((first + step * number) % ring.capacity))
        if present == 0:  # other rows came into these slots since they were drawn
            return last
        present = <int64_t> c_bounded(bits, present)
        row = first
        while present or ring.c_is_absent(<intp_t> (row % ring.capacity)):
            present -= not ring.c_is_absent(<intp_t> (row % ring.capacity))
            row += step
        return row

    def choose(self, cnp.ndarray slots not None, rng, int strategy):
        """For each of the slots another one, that of a row of the same episode.

        Parameters
        ----------
        slots : ndarray of intp, shape (n,)
            Slots of rows that hold a step.
        rng : numpy.random.Generator
            Where the randomness comes from.
        strategy : int
            ``FUTURE``: a row from the given one to the last of its episode; ``EPISODE``: any row of
            it; ``FINAL``: the last one; ``RANDOM``: any row of the ring.

        Returns
        -------
        ndarray of intp, shape (n,)
            Slots of rows that hold a step.

        Notes
        -----
        Cost: proportional to the rows that were added since the last call, and to n times the
        logarithm of the number of episodes.
        """
        bit_generator = rng.bit_generator
        cdef bitgen_t* source = <bitgen_t*> PyCapsule_GetPointer(
            bit_generator.capsule, "BitGenerator"
        )
        cdef Bits bits
        lock = bit_generator.lock
        lock.acquire()
        try:
            bits = c_bits_of(source)
            return self.c_choose(slots, &bits, strategy)
        finally:
            lock.release()

    cdef cnp.ndarray c_choose(self, cnp.ndarray slots, Bits* bits, int strategy):
        cdef Ring ring = self.ring
        ring.c_check_slots(slots)
        self.c_sync()
        cdef int64_t written = ring.state[WRITTEN], oldest = written - ring.c_stored()
        cdef int64_t row, first, last
        cdef intp_t k, n = cnp.PyArray_DIM(slots, 0)
        cdef const intp_t* given = <const intp_t*> cnp.PyArray_DATA(slots)
        cdef cnp.ndarray chosen = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_INTP)
        for k in range(n):
            row = ring.c_row_at(given[k])
            self.c_find(row, &first, &last)
            if strategy == C_FUTURE:
                row = self.c_pick(bits, row, last, ring.n_envs)
            elif strategy == C_EPISODE:
                row = self.c_pick(bits, first, last, ring.n_envs)
            elif strategy == C_RANDOM:
                row = self.c_pick(bits, oldest, written - 1, 1)
            else:
                row = last
            (<intp_t*> cnp.PyArray_DATA(chosen))[k] = <intp_t> (row % ring.capacity)
        return chosen
