"""``DrawLog``: records of draws, 4 bytes for each row, 12 with priorities, and 136 for each draw.

A record is a head, the ages of the drawn rows in rows written since, and of a source with
priorities their probabilities and importance-sampling weights. The head has the version of the rows
and the state of the generator before and after the choice of rows, as NumPy keeps it in memory: a
Python dict of it takes as long to make as a draw. Not here: the file, and reading it
(``buffers._logged``).
"""

cimport cython
cimport numpy as cnp
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.string cimport memcpy, memset

from cpprb_like._core cimport Moment, Ring
from cpprb_like._c.typedefs cimport (
    float32_t, float64_t, int32_t, int64_t, intp_t, uint8_t, uint32_t
)
from cpprb_like._c.random_integers cimport c_bit_generator

import numpy as np

cnp.import_array()

cdef enum:
    STATE_NBYTES = 40
    CHUNK = 1 << 18                  # bytes of the records that are written together

cdef struct PCG:                     # what ``bitgen_t.state`` points to, of PCG64 and PCG64DXSM
    const uint8_t* state             # the state and the increment, 16 bytes each
    int32_t has_uint32
    uint32_t uinteger

cdef packed struct Head:
    int64_t n                        # drawn rows
    int64_t written                  # rows written since the last clear
    int64_t clears
    int64_t edits
    int64_t base                     # handle of row 0
    int64_t number                   # batches that the view had drawn; 0 of a buffer
    int64_t has_weights              # 1 if probabilities and weights follow the ages
    uint8_t[STATE_NBYTES] before     # the generator before the choice of rows; zeros: not known
    uint8_t[STATE_NBYTES] after      # and after it

HEAD = np.dtype(
    [(name, np.int64) for name in ("n", "written", "clears", "edits", "base", "number", "has_weights")]
    + [("before", f"V{STATE_NBYTES}"), ("after", f"V{STATE_NBYTES}")]
)


def state_of(bytes state not None, kind):
    """The ``state`` of a bit generator of this kind from the bytes in a record; None if unknown."""
    words = np.frombuffer(state, "<u8", 4).tolist()
    has_uint32, uinteger = np.frombuffer(state, "<u4", 2, 32).tolist()
    if not any(words):
        return None
    return {
        "bit_generator": kind,
        "state": {"state": words[0] | words[1] << 64, "inc": words[2] | words[3] << 64},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }


@cython.final
cdef class DrawLog:
    """Records of the draws of a buffer.

    ``write`` is called with a list of arrays of bytes, many records in each. It empties the list, to
    which other threads may append meanwhile.
    """

    def __cinit__(self, write, rng):
        self.write = write
        self.chunk = np.empty(CHUNK, np.uint8)
        self.full = []
        bit_generator = rng.bit_generator
        # Where NumPy keeps the state in another way, it is not recorded.
        if type(bit_generator) in (np.random.PCG64, np.random.PCG64DXSM):
            self.kind = type(bit_generator)
            found = state_of(self.c_state(rng), self.kind.__name__)
            if found != bit_generator.state:
                self.kind = None

    cdef bytes c_state(self, rng):
        """The state of a generator, as in a record."""
        cdef bytes found = PyBytes_FromStringAndSize(NULL, STATE_NBYTES)
        cdef char* out = PyBytes_AS_STRING(found)
        cdef const PCG* pcg
        bit_generator = rng.bit_generator
        if type(bit_generator) is not self.kind:  # the buffer may have got another generator
            memset(out, 0, STATE_NBYTES)
            return found
        pcg = <const PCG*> c_bit_generator(bit_generator).state
        memcpy(out, pcg.state, 32)
        memcpy(out + 32, &pcg.has_uint32, 4)
        memcpy(out + 36, &pcg.uinteger, 4)
        return found

    def state(self, rng):
        """``c_state``."""
        return self.c_state(rng)

    cdef int c_append(
        self, Ring ring, Moment moment, int64_t base, cnp.ndarray slots, sampler, weights,
        int64_t number, bytes before, bytes after,
    ) except -1:
        """Record a draw of the rows that were in these slots, dense and of intp, at that moment.

        ``base`` was ``HANDLE_BASE`` then. ``weights`` are the importance-sampling weights of the batch,
        or None.
        """
        cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(slots)
        cdef intp_t k, n = cnp.PyArray_DIM(slots, 0), nbytes
        cdef int64_t back, newest, capacity = ring.capacity
        cdef const float64_t* drawn
        cdef bint is_full
        cdef Head head
        cdef char* out
        cdef cnp.ndarray masses = None, factors = None
        cdef float64_t total = 0.0
        rows = None if weights is None else getattr(sampler, "rows", None)
        if rows is not None:
            masses, total = rows.get(slots), rows.total
            factors = np.ascontiguousarray(weights, np.float32)
        nbytes = sizeof(Head) + n * (4 if masses is None else 12)
        is_full = self.used + nbytes > cnp.PyArray_SIZE(self.chunk)
        if is_full:  # written at the end, as other threads run then
            self.c_next(max(CHUNK, nbytes))
        head.n, head.written, head.clears = n, moment.written, moment.clears
        head.edits, head.base = moment.edits, base + ring.span
        head.number, head.has_weights = number, masses is not None
        memcpy(head.before, PyBytes_AS_STRING(before), STATE_NBYTES)
        memcpy(head.after, PyBytes_AS_STRING(after), STATE_NBYTES)
        out = <char*> cnp.PyArray_DATA(self.chunk) + self.used
        memcpy(out, &head, sizeof(Head))
        out += sizeof(Head)
        newest = (moment.written - 1) % capacity  # its slot; -1 without a row
        for k in range(n):
            back = newest - values[k]
            (<uint32_t*> out)[k] = <uint32_t> (back + capacity if back < 0 else back)
        if masses is not None:
            out += 4 * n
            drawn = <const float64_t*> cnp.PyArray_DATA(masses)
            for k in range(n):
                (<float32_t*> out)[k] = <float32_t> (drawn[k] / total if total > 0 else 0)
            memcpy(out + 4 * n, cnp.PyArray_DATA(factors), 4 * n)
        self.used += nbytes
        if is_full:
            self.write(self.full)
        return 0

    cdef int c_next(self, intp_t nbytes) except -1:
        """Begin a chunk of so many bytes."""
        chunk = np.empty(nbytes, np.uint8)
        self.full.append(self.chunk[:self.used])
        self.chunk, self.used = chunk, 0
        return 0

    def append(
        self, Ring ring not None, Moment moment not None, int64_t base, cnp.ndarray slots not None,
        sampler, weights, int64_t number, bytes before not None, bytes after not None,
    ):
        """``c_append``."""
        self.c_append(ring, moment, base, slots, sampler, weights, number, before, after)

    def flush(self):
        """Hand the records so far to ``write``."""
        self.c_next(CHUNK)
        self.write(self.full)
