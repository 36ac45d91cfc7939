"""The ``indexes`` of a batch: made when rows are drawn, resolved when priorities come back.

An index is a public slot, or a handle: a number that names one row and no other that is ever in the
ring. The handle of a row is its row id plus the ring's span plus a
base, which ``clear`` increases beyond all handles so far. Modulo the span it is the public slot of
the row; it is never a slot itself. Compiled because it looks at every row that is updated. Not
here: priorities (``samplers._row_weights``), and new values (``replace``).
"""

cimport cython
cimport numpy as cnp

from cpprb_like._machine.aligned cimport c_numbers
from cpprb_like._core cimport CLEARS, HANDLE_BASE, WRITTEN, Ring
from cpprb_like._c.typedefs cimport int64_t, intp_t

cnp.import_array()


def handles(Ring ring not None, slots):
    """The handles of the rows in the given slots, a dense 1-d array of intp: int64, shape (n,).

    Raises ``IndexError`` if a slot is not in use.
    """
    ring.c_check_slots(slots)
    return c_handles(ring, slots)


cdef cnp.ndarray c_handles(Ring ring, cnp.ndarray slots):
    """As ``handles``, for slots that are in use."""
    cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(slots)
    cdef intp_t k, n = cnp.PyArray_DIM(slots, 0)
    cdef cnp.ndarray found = c_numbers(1, &n, cnp.NPY_INT64)
    cdef int64_t* out = <int64_t*> cnp.PyArray_DATA(found)
    for k in range(n):
        out[k] = ring.state[HANDLE_BASE] + ring.span + ring.c_row_at(values[k])
    return found


def without_row(Ring ring not None, const int64_t[::1] indexes, bint as_handles):
    """The positions of the indexes that name no row and never did: an array of intp.

    The indexes are slots, or also handles if ``as_handles``.
    """
    cdef intp_t k, n = indexes.shape[0], count = 0
    cdef cnp.ndarray places = c_numbers(1, &n, cnp.NPY_INTP)
    for k in range(n):
        if c_slot_of(ring, indexes[k], as_handles) == NO_ROW:
            (<intp_t*> cnp.PyArray_DATA(places))[count] = k
            count += 1
    return places[:count]


cdef cnp.ndarray c_find_rows(Ring ring, const int64_t[::1] indexes):
    """The slots of the rows that handles or public slots name: intp; -1 for a row that is gone.

    Raises ``IndexError`` for a slot that holds no step, and for a handle that no row got.
    """
    cdef intp_t k, n = indexes.shape[0]
    cdef cnp.ndarray slots = c_numbers(1, &n, cnp.NPY_INTP)
    cdef intp_t* out = <intp_t*> cnp.PyArray_DATA(slots)
    for k in range(n):
        out[k] = c_slot_of(ring, indexes[k], True)
        if out[k] == NO_ROW:
            c_refuse(ring, indexes[k], k)
    return slots


cdef int c_refuse(Ring ring, int64_t index, intp_t place) except -1:
    raise IndexError(
        f"indexes[{place}]: expected a slot from 0 to {ring.public_stored - 1} that holds a "
        f"step, got {index}"
    )


@cython.final
cdef class RowHandles:
    """The ``indexes`` of the rows that a sampler draws from a ring.

    Parameters
    ----------
    ring : Ring
        The rows.
    """

    def __cinit__(self, Ring ring not None):
        self.ring = ring
        self.clears = ring.state[CLEARS]

    cdef void c_begin(self) noexcept nogil:
        """Forget the last draw if the ring was cleared."""
        if self.clears != self.ring.state[CLEARS]:
            self.clears = self.ring.state[CLEARS]
            self.drawn = 0

    def indexes(self, cnp.ndarray slots, bint as_handles):
        """The public slots as a fresh array of int64, or the handles of the rows if ``as_handles``.

        ``slots`` are a dense 1-d array of intp, and in use.
        """
        return self.c_indexes(slots, as_handles)

    cdef cnp.ndarray c_indexes(self, cnp.ndarray slots, bint as_handles):
        if as_handles:
            return c_handles(self.ring, slots)
        cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(slots)
        cdef intp_t k, n = cnp.PyArray_DIM(slots, 0)
        cdef cnp.ndarray indexes = c_numbers(1, &n, cnp.NPY_INT64)
        cdef int64_t* out = <int64_t*> cnp.PyArray_DATA(indexes)
        if self.ring.span == self.ring.capacity:
            for k in range(n):  # each is public: asked one by one, they took 3 % of a draw's instructions
                out[k] = values[k]
            return indexes
        for k in range(n):
            out[k] = self.ring.c_public_slot(values[k])
        return indexes

    def find(self, cnp.ndarray indexes, bint as_handles):
        """The slots of the rows that are still in the ring, and their positions in ``indexes``.

        ``indexes`` are public slots, as a dense 1-d array of int64. If ``as_handles``, they may be
        handles; then rows that were overwritten or deleted since they were drawn are left out, as are slots
        that were overwritten since the last draw. Raises ``IndexError`` for a slot that holds no
        step.
        """
        cdef intp_t n = cnp.PyArray_DIM(indexes, 0), count
        cdef cnp.ndarray slots = c_numbers(1, &n, cnp.NPY_INTP)
        cdef cnp.ndarray places = c_numbers(1, &n, cnp.NPY_INTP)
        count = self.c_find(
            <const int64_t*> cnp.PyArray_DATA(indexes), n, as_handles,
            <intp_t*> cnp.PyArray_DATA(slots), <intp_t*> cnp.PyArray_DATA(places),
        )
        if count < 0:
            c_refuse(self.ring, indexes[-1 - count], -1 - count)
        return slots[:count], places[:count]

    cdef intp_t c_find(
        self, const int64_t* indexes, intp_t n, bint as_handles, intp_t* slots, intp_t* places
    ) noexcept nogil:
        """As ``find``: how many rows there are. Below 0: -1 less the place of a bad index."""
        self.c_begin()
        cdef intp_t k, slot, count = 0
        cdef int64_t span = self.ring.span
        cdef bint passes_newer = as_handles and self.drawn
        for k in range(n):
            slot = c_slot_of(self.ring, indexes[k], as_handles)
            if slot == NO_ROW:
                return -1 - k
            if slot == GONE:
                continue
            if passes_newer and indexes[k] < span and self.ring.c_row_at(slot) >= self.drawn:
                continue
            slots[count] = slot
            places[count] = k
            count += 1
        return count

    # ------------------------------------------------------------------ saving

    def save(self):
        """The state, for ``load`` of a new object over an equal ring."""
        self.c_begin()
        rows = self.ring.capacity, self.ring.state[WRITTEN], self.ring.state[CLEARS]
        return *rows, self.drawn

    def load(self, saved):
        """Restore a state of ``save``, and return true.

        Over another ring that is empty, nothing is restored, and false is returned. Raises
        ``ValueError`` for another ring that has rows.
        """
        rows = self.ring.capacity, self.ring.state[WRITTEN], self.ring.state[CLEARS]
        *known, drawn = saved
        if rows != tuple(known):
            if len(self.ring):
                raise ValueError("the sampler keeps priorities of the rows of another buffer")
            return False
        if not 0 <= drawn <= self.ring.state[WRITTEN]:
            raise ValueError(
                f"rows at the last draw: expected 0 to {self.ring.state[WRITTEN]}, got {drawn}"
            )
        self.clears, self.drawn = self.ring.state[CLEARS], drawn
        return True
