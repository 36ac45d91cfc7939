"""Which rows sequences can start at.

Compiled because starts are found by trying rows. Not here: how sequences are read (``_windows``),
what they are good for (``sequences``), and starts by priority (``priorities``).
"""

cimport cython
cimport numpy as cnp
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int8_t
from numpy.random cimport bitgen_t

from cpprb_like._copy cimport c_prefetch
from cpprb_like._core cimport ABSENT, END, WRITTEN, Ring
from cpprb_like._random cimport Bits, c_bits_of, c_bounded
from cpprb_like._typedefs cimport int64_t, intp_t, uint8_t

import numpy as np

from cpprb_like.errors import NotEnoughDataError

cnp.import_array()

cdef enum:
    TRIES = 32               # for each start, and for each row from one to the next
    SPARE_TRIES = 256
    FETCHED = 32             # flags that are fetched before the first of them is looked at

cdef enum:  # what a row is
    NEVER = -1               # no sequence will ever start there
    WAITS = 0                # rows have to follow
    STARTS = 1


def choose(intp_t n, intp_t among, rng):
    """n numbers below ``among``, each with the same probability: an array of intp.

    The randomness comes from ``rng``, a ``numpy.random.Generator``.
    """
    if among < 1:
        raise ValueError(f"among: expected at least 1, got {among}")
    bit_generator = rng.bit_generator
    cdef bitgen_t* source = <bitgen_t*> PyCapsule_GetPointer(
        bit_generator.capsule, "BitGenerator"
    )
    cdef cnp.ndarray numbers = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_INTP)
    cdef Bits bits = c_bits_of(source)
    cdef intp_t k
    with bit_generator.lock:
        for k in range(n):
            (<intp_t*> cnp.PyArray_DATA(numbers))[k] = <intp_t> c_bounded(&bits, among)
    return numbers


@cython.final
cdef class Starts:
    """The rows of a ring at which a sequence can start.

    A sequence is a row and up to ``rows - 1`` rows that follow it in its stream; absent rows are
    passed over.

    Parameters
    ----------
    ring : Ring
        The rows.
    rows : int
        Of a sequence, at least 1.
    least : int
        Rows that an episode must have from the start on, 1 to ``rows``; it must have ``rows`` if it
        has not ended.
    across : bool
        Whether a sequence runs over the ends of episodes; then all ``rows`` have to be there.
    stride : int
        Starts are the first rows of episodes, and rows whose number in their stream is a multiple.
    """

    def __cinit__(
        self, Ring ring not None, *, intp_t rows, intp_t least, bint across, intp_t stride
    ):
        if not (1 <= least <= rows and stride >= 1):
            raise ValueError(
                f"expected 1 <= least <= rows and 1 <= stride, got {least}, {rows}, {stride}"
            )
        self.ring = ring
        self.rows = rows
        self.least = least
        self.across = across
        self.stride = stride

    # ------------------------------------------------------------------ one row

    cdef bint c_is_first(self, int64_t row) noexcept nogil:
        """Whether an episode begins at a row; not if that row is gone which would tell."""
        cdef int64_t oldest = self.ring.c_first()
        cdef uint8_t flags
        row -= self.ring.n_envs
        while row >= oldest:
            flags = self.ring.c_flags(<intp_t> (row % self.ring.capacity))[0]
            if not flags & ABSENT or flags & END:
                return flags & END
            row -= self.ring.n_envs
        return row < 0

    cdef bint c_is_on_stride(self, int64_t row) noexcept nogil:
        """Whether a row is one of those that may be starts, whatever follows."""
        if self.stride == 1 or row // self.ring.n_envs % self.stride == 0:
            return True
        return self.c_is_first(row)

    cdef intp_t c_looked_at(self, int64_t row) noexcept nogil:
        """How many rows, from this one on, tell whether a sequence can start here."""
        cdef int64_t last = row + (self.rows - 1) * self.ring.n_envs
        if self.ring.c_absent() or last >= self.ring.state[WRITTEN]:
            return self.rows
        # All its rows are there, so only an end that comes too early is in the way.
        return 1 if self.across else self.least

    cdef int c_what(self, intp_t slot) noexcept nogil:
        """What the row in a slot in use is: NEVER, WAITS or STARTS."""
        cdef int64_t row = self.ring.c_row_at(slot)
        cdef intp_t count = 1, most = self.c_looked_at(row)
        if row < self.ring.c_first() or self.ring.c_absent() and self.ring.c_is_absent(slot):
            return NEVER
        if not self.c_is_on_stride(row):
            return NEVER
        while count < most:
            if not self.across and self.ring.c_flags(<intp_t> (row % self.ring.capacity))[0] & END:
                return STARTS if count >= self.least else NEVER
            row = self.ring.c_next(row, self.ring.state[WRITTEN])
            if row < 0:
                return WAITS
            count += 1
        return STARTS

    # ------------------------------------------------------------------ many

    def tell(self, cnp.ndarray slots):
        """For each of the slots, which are in use, an int8.

        1 if a sequence can start there, 0 if rows have to follow first, -1 if none ever can.
        """
        self.ring.c_check_slots(slots)
        cdef intp_t n = cnp.PyArray_DIM(slots, 0)
        cdef cnp.ndarray told = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_INT8)
        self.c_tell(
            <const intp_t*> cnp.PyArray_DATA(slots), n, <int8_t*> cnp.PyArray_DATA(told)
        )
        return told

    cdef void c_tell(self, const intp_t* slots, intp_t n, int8_t* told) noexcept nogil:
        cdef bint looks = self.stride > 1 or self.least > 1 or self.ring.c_absent()
        cdef intp_t k, start = 0, end
        while start < n:
            end = min(n, start + FETCHED)
            if looks:
                for k in range(start, end):
                    c_prefetch(self.ring.c_flags(max(slots[k] - self.ring.n_envs, 0)))
            for k in range(start, end):
                told[k] = <int8_t> self.c_what(slots[k])
            start = end

    def slots(self):
        """All slots at which a sequence can start, newest first. Looks at all rows."""
        cdef Ring ring = self.ring
        cdef intp_t n = <intp_t> (ring.state[WRITTEN] - ring.c_first()), count = 0
        cdef cnp.ndarray found = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_INTP)
        # Of each stream: rows of the sequence from here on, and whether its episode has ended.
        cdef intp_t[::1] following = np.zeros(ring.n_envs, np.intp)
        cdef uint8_t[::1] ended = np.zeros(ring.n_envs, np.uint8)
        cdef intp_t* out = <intp_t*> cnp.PyArray_DATA(found)
        cdef int64_t row = ring.state[WRITTEN], oldest = ring.state[WRITTEN] - n
        cdef intp_t slot, stream
        cdef uint8_t flags
        while row > oldest:
            row -= 1
            slot = <intp_t> (row % ring.capacity)
            flags = ring.c_flags(slot)[0]
            if flags & ABSENT:
                continue
            stream = <intp_t> (row % ring.n_envs)
            if flags & END and not self.across:
                following[stream] = 0
                ended[stream] = True
            following[stream] += 1
            if following[stream] >= (self.least if ended[stream] else self.rows):
                if self.c_is_on_stride(row):
                    out[count] = slot
                    count += 1
        return found[:count].copy()

    def draw(self, intp_t n, rng):
        """Draw n slots at which a sequence can start, each with the same probability.

        Parameters
        ----------
        n : int
            How many, at least 0.
        rng : numpy.random.Generator
            Where the randomness comes from.

        Returns
        -------
        ndarray of intp, shape (n,)

        Raises
        ------
        NotEnoughDataError
            A sequence can start nowhere.

        Notes
        -----
        Slots are tried until a sequence can start there; if that takes some dozens of tries for each
        of them, the rest is drawn from ``slots()``. Both give the same distribution.
        """
        bit_generator = rng.bit_generator
        cdef bitgen_t* source = <bitgen_t*> PyCapsule_GetPointer(
            bit_generator.capsule, "BitGenerator"
        )
        cdef cnp.ndarray drawn = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_INTP)
        cdef cnp.ndarray among
        cdef Bits bits = c_bits_of(source)
        cdef intp_t* out = <intp_t*> cnp.PyArray_DATA(drawn)
        cdef const intp_t* starts
        cdef intp_t k, kinds
        # While the lock is held nothing is allocated and nothing raised: see ``draw_uniform``.
        lock = bit_generator.lock
        lock.acquire()
        k = self.c_try(out, n, &bits)
        lock.release()
        if k == n:
            return drawn
        among = self.slots()
        kinds = cnp.PyArray_DIM(among, 0)
        if kinds == 0:
            self.refuse()
        starts = <const intp_t*> cnp.PyArray_DATA(among)
        lock.acquire()
        while k < n:
            out[k] = starts[c_bounded(&bits, kinds)]
            k += 1
        lock.release()
        return drawn

    cdef intp_t c_try(self, intp_t* out, intp_t n, Bits* bits) noexcept:
        """Try slots until there are n starts, or that takes too long; how many there are."""
        cdef intp_t k = 0, stored = self.ring.c_stored()
        # A look at all rows costs about as much as so many tries.
        cdef intp_t left = SPARE_TRIES + min(stored, TRIES * n * min(stored, self.stride))
        cdef intp_t[FETCHED] tried
        cdef int8_t[FETCHED] told
        cdef intp_t i, count
        while k < n and left and stored:
            # As many as are needed if one in a stride is a start.
            count = min(FETCHED, left, (n - k) * min(self.stride, FETCHED))
            for i in range(count):
                tried[i] = <intp_t> c_bounded(bits, stored)
            self.c_tell(tried, count, told)
            left -= count
            for i in range(count):
                if k < n and told[i] == STARTS:
                    out[k] = tried[i]
                    k += 1
        return k

    def refuse(self):
        """Raise ``NotEnoughDataError``: a sequence can start nowhere."""
        raise NotEnoughDataError(
            f"cannot sample sequences of {self.rows} rows: the buffer holds {len(self.ring)}, "
            + (
                "and no environment has so many"
                if self.across
                else f"and no episode has so many, or ended with at least {self.least}"
            )
        )
