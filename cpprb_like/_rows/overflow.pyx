"""Overflow: values that no neighbouring row holds, e.g. the last ``next_obs`` of an episode.

Values of one length, each with a key, in a byte ring of the arena: appended for new rows, and
removed in the same order when their rows are overwritten. A value is found by a search for its key,
run by run. Other processes follow the values with two words: EXTENT, and RUN, the key of the first
value of the newest run, plus 1. Compiled because every row that is added or drawn may search it. Not
here: the choice of these values (``chained``), and the rule of places (``byte_ring``).
"""

cimport cython
cimport numpy as cnp
from libc.string cimport memcpy

from cpprb_like._c.fences cimport c_fence, c_read_fence
from cpprb_like._c.typedefs cimport int64_t, intp_t, uint8_t
from cpprb_like._rows.byte_ring cimport MOST_RUNS, Places, Run, c_put, c_remove

import numpy as np

cnp.import_array()

cdef enum:                   # words of an overflow
    EXTENT = 0               # units that have been used so far
    RUN = 1                  # key of the first value of the newest run, plus 1
    UNKNOWN = -1             # of a follower: no run
    STEP_NBYTES = 1 << 16    # least memory that is made usable at a time

cdef str DAMAGED = "the rows of values that are stored apart are in no order"


@cython.final
cdef class Overflow:
    """Values of ``nbytes`` bytes, each for a row id.

    Parameters
    ----------
    nbytes : int
        Bytes of a value.
    lag : int
        Number of newest rows without a value.
    words : ndarray of int64
        Memory for EXTENT and RUN.
    keys : ndarray of int64, shape (units,)
        Memory for the keys. At most half as many values are stored at a time.
    values : ndarray of uint8, shape (units * nbytes,)
        Memory for the values.
    use : callable, optional
        ``use(first, stop)`` makes the memory of keys and values in these units usable.
    """

    def __cinit__(
        self, intp_t nbytes, intp_t lag, int64_t[::1] words not None, int64_t[::1] keys not None,
        uint8_t[::1] values not None, use=None,
    ):
        if words.shape[0] < 2 or values.shape[0] != keys.shape[0] * nbytes:
            raise ValueError("words, keys, values: of a wrong length")
        self.nbytes, self.lag, self.use = nbytes, lag, use
        self.word_memory, self.key_memory, self.value_memory = words, keys, values
        self.words = &words[0]
        self.keys = &keys[0]
        self.values = <char*> &values[0] if values.shape[0] else NULL
        self.places.units = keys.shape[0]
        self.newest = -1
        self.run = UNKNOWN

    @property
    def total_nbytes(self):
        """Bytes of memory that have been used so far."""
        return self.places.extent * (self.nbytes + <intp_t> sizeof(int64_t))

    cdef bint c_reserve(self, intp_t n, int64_t before) except -1:
        """Whether ``prepare`` has to come before n values are pushed; nothing else changes.

        The values of the rows before ``before`` leave first. Where it matters, the n values are
        pushed into a copy of the places.
        """
        cdef Places places
        cdef intp_t _k
        self.wanted = 0
        if self.places.n_runs <= MOST_RUNS // 2 and self.places.extent + n <= self.usable or n == 0:
            return False
        places = self.places
        self.c_leave(&places, before)
        for _k in range(n):
            if c_put(&places, 1) < 0:
                raise RuntimeError(f"the values of {places.n_runs} runs of rows are stored apart")
        self.wanted = places.extent
        return self.wanted > self.usable

    def prepare(self):
        """Make the memory usable that the last call of ``add`` needs; ``MemoryError`` without memory.

        A further step is made usable too, if there is memory for it.
        """
        cdef intp_t step, wanted = self.wanted
        self.wanted = 0  # whatever happens: the next call of ``add`` may need none
        if wanted <= self.usable:
            return
        self.c_use(wanted)
        step = max(<intp_t> STEP_NBYTES // (self.nbytes + <intp_t> sizeof(int64_t)), self.places.extent // 8)
        try:
            self.c_use(min(self.places.units, wanted + step))
        except MemoryError:
            pass  # what is needed is there

    cdef int c_use(self, intp_t stop) except -1:
        """Make the units before ``stop`` usable."""
        if stop > self.usable:
            self.use(self.usable, stop)
            self.usable = max(self.usable, stop)  # another thread may have been here
        return 0

    cdef char* c_push(self, int64_t row) noexcept nogil:
        """Address for the value of a row, after ``c_reserve``. The row is newer than all others."""
        cdef intp_t place = c_put(&self.places, 1)
        self.newest = self.base + row
        self.keys[place] = self.newest
        c_fence()  # followers look at no key before EXTENT, and for no run before its first key
        self.words[EXTENT] = self.places.extent
        if self.places.runs[self.places.n_runs - 1].start == place:
            self.words[RUN] = self.newest + 1
        c_fence()
        return self.values + place * self.nbytes

    cdef void c_drop(self, int64_t before) noexcept nogil:
        """Forget the values of the rows before this one, and those that a writer has replaced."""
        self.c_leave(&self.places, before)

    cdef void c_leave(self, Places* places, int64_t before) noexcept nogil:
        """Free the places of these values."""
        cdef int64_t key
        while places.n_runs:
            key = self.keys[places.runs[0].start]
            if self.base + before <= key <= self.newest:
                return
            c_remove(places, 1)

    cdef char* c_find(self, int64_t row) noexcept nogil:
        """Address of the value of a row; NULL if the row has none.

        The oldest values of a follower may have been replaced by newer ones than the newest known.
        """
        cdef int64_t wanted = self.base + row, key
        cdef intp_t k, low, high, middle
        cdef const Run* run
        for k in range(self.places.n_runs - 1, -1, -1):
            run = &self.places.runs[k]
            low, high = run.start, run.stop - 1
            if self.keys[high] < wanted:
                return NULL
            while low < high:
                middle = (low + high) // 2
                key = self.keys[middle]
                if key < wanted or key > self.newest:
                    low = middle + 1
                else:
                    high = middle
            if self.keys[low] == wanted:
                return self.values + low * self.nbytes
            if low > run.start:
                return NULL
        return NULL

    cdef void c_clear(self, int64_t base) noexcept nogil:
        self.places.n_runs = 0
        self.base = base

    # ------------------------------------------------------------------ memory that has values

    cdef int c_derive(self, int64_t base, int64_t oldest, int64_t stop) except -1:
        """Find the values of the rows from ``oldest`` to ``stop`` by their keys.

        Raises ``ValueError`` if the memory was damaged. Cost: proportional to the units that have been
        used so far, times their logarithm.
        """
        cdef int64_t behind = base + stop, run = self.words[RUN]
        c_read_fence()  # all that is read from here on is of that run, or of a newer one
        cdef int64_t extent = self.words[EXTENT]
        cdef Places found
        found.units, found.extent, found.n_runs = self.places.units, extent, 0
        if not 0 <= extent <= found.units:
            raise ValueError(DAMAGED)
        keys = np.array(self.key_memory[:extent])  # each is read once, as a writer may replace it
        places = np.flatnonzero((keys >= 0) & (keys < behind))
        newest = places[keys[places].argmax()] if len(places) else -1
        places = places[keys[places] >= base + max(oldest, 0)]
        places = places[keys[places].argsort(kind="stable")]
        starts = np.flatnonzero(np.diff(places, prepend=-2) != 1)
        if len(starts) > MOST_RUNS or (np.diff(keys[places]) <= 0).any():
            raise ValueError(DAMAGED)
        for part in np.split(places, starts[1:]) if len(places) else ():
            found.runs[found.n_runs] = Run(part[0], part[0] + len(part))
            found.n_runs += 1
        self.places, self.base, self.next_place = found, base, newest + 1
        self.newest = -1 if newest < 0 else keys[newest]
        # Values of a newer run than the newest one that was found here are not behind it.
        self.run = run if run <= behind else UNKNOWN
        return 0

    cdef int c_follow(self, int64_t base, int64_t oldest, int64_t written, bint anew) except -1:
        """Take in the values that another process has stored for the rows from ``oldest`` on.

        With ``anew``, read known values again, too. Raises ``ValueError`` if the memory was damaged.
        """
        cdef int64_t key, behind = base + written - self.lag
        if anew or base != self.base or self.run == UNKNOWN or self.words[RUN] != self.run:
            self.run = UNKNOWN
            return self.c_derive(base, oldest, written - self.lag)
        c_read_fence()
        self.c_drop(oldest)  # first, as later values may have taken these places
        while self.next_place < self.places.units and self.next_place < self.words[EXTENT]:
            c_read_fence()
            key = self.keys[self.next_place]
            if not self.newest < key < behind:
                break
            if self.places.n_runs and self.places.runs[self.places.n_runs - 1].stop == self.next_place:
                self.places.runs[self.places.n_runs - 1].stop += 1
            else:  # all values that are known have left
                self.places.runs[self.places.n_runs] = Run(self.next_place, self.next_place + 1)
                self.places.n_runs += 1
            self.newest = key
            self.next_place += 1
        return 0

    def derive(self, int64_t base, int64_t written):
        """Find the values that the memory has for the newest rows of ``written``.

        Raises ``ValueError`` if the memory was damaged.
        """
        self.c_derive(base, written - self.places.units // 2, written - self.lag)

    @property
    def last(self):
        """The newest row that has a value; -1 without one."""
        cdef intp_t n_runs = self.places.n_runs
        return self.keys[self.places.runs[n_runs - 1].stop - 1] - self.base if n_runs else -1

    def part(self, int64_t first, int64_t stop):
        """Ids and values of the rows from ``first`` to ``stop``, oldest first: fresh arrays."""
        cdef intp_t k
        runs = [
            np.arange(self.places.runs[k].start, self.places.runs[k].stop)
            for k in range(self.places.n_runs)
        ]
        places = np.concatenate([np.empty(0, np.intp), *runs])
        ids = np.asarray(self.key_memory)[places] - self.base
        chosen = slice(*np.searchsorted(ids, [first, max(first, stop)]))
        values = np.asarray(self.value_memory).reshape(self.places.units, self.nbytes)
        return ids[chosen], values[places[chosen]]

    def load(self, int64_t base, cnp.ndarray ids not None, cnp.ndarray values not None):
        """Store the values of these rows in place of all others; ``ValueError`` if they do not fit."""
        cdef intp_t k
        shape = len(ids), self.nbytes
        if (ids.dtype, ids.ndim) != (np.int64, 1) or (values.dtype, (<object> values).shape) != (np.uint8, shape):
            raise ValueError(f"overflow: expected {self.nbytes} bytes for each row")
        if 2 * len(ids) > self.places.units or (len(ids) and (ids[0] < 0 or (np.diff(ids) <= 0).any())):
            raise ValueError(f"overflow: expected ascending rows, at most {self.places.units // 2}")
        rows, dense = np.ascontiguousarray(ids), np.ascontiguousarray(values)
        self.c_clear(base)
        if self.c_reserve(len(ids), 0):
            self.prepare()
        for k in range(len(ids)):
            memcpy(
                self.c_push((<const int64_t*> cnp.PyArray_DATA(rows))[k]),
                <const char*> cnp.PyArray_DATA(dense) + k * self.nbytes,
                self.nbytes,
            )
