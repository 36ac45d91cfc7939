"""The ``indexes`` of a batch: made when rows are drawn, resolved when priorities come back.

An index is a public slot, or a handle: a number that names one row for ever. The handle of a row is
its row id plus the ring's span plus a base. ``clear`` increases the base beyond all handles so far.
Modulo the span a handle is the public slot of the row; it is never a slot itself. Compiled because it
looks at every row that is updated. Not here: priorities (``samplers._row_weights``), and new values
(``gather.write``).
"""

cimport numpy as cnp

from cpprb_like._machine.aligned cimport c_numbers
from cpprb_like._core cimport HANDLE_BASE, Ring
from cpprb_like._c.typedefs cimport int64_t, intp_t

import numpy as np

cnp.import_array()


def handles(ring not None, slots):
    """The handles of the rows in the given slots, a dense 1-d array of intp: int64, shape (n,).

    Raises ``IndexError`` if a slot is not in use. ``ring`` is a ``Ring`` or a ``Rings``.
    """
    if type(ring) is not Ring:
        return ring.handles(slots)
    (<Ring> ring).c_check_slots(slots)
    return c_row_handles(<Ring> ring, slots)


cdef cnp.ndarray c_row_handles(Ring ring, cnp.ndarray slots):
    """``handles`` of slots that are in use."""
    cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(slots)
    cdef intp_t k, n = cnp.PyArray_DIM(slots, 0)
    cdef cnp.ndarray found = c_numbers(1, &n, cnp.NPY_INT64)
    cdef int64_t* out = <int64_t*> cnp.PyArray_DATA(found)
    for k in range(n):
        out[k] = ring.state[HANDLE_BASE] + ring.span + ring.c_row_at(values[k])
    return found


def without_row(Ring ring not None, const int64_t[::1] indexes, bint as_handles):
    """Positions of the indexes that never named a row: an array of intp.

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
        f"indexes[{place}]: expected a slot from 0 to {public_stored(ring) - 1} that holds a "
        f"step, got {index}"
    )


cdef cnp.ndarray c_indexes(Ring ring, cnp.ndarray slots, bint as_handles):
    """The public slots as a fresh array of int64, or the handles of the rows if ``as_handles``.

    ``slots`` are a dense 1-d array of intp, and in use.
    """
    if as_handles:
        return c_row_handles(ring, slots)
    cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(slots)
    cdef intp_t k, n = cnp.PyArray_DIM(slots, 0)
    cdef cnp.ndarray indexes = c_numbers(1, &n, cnp.NPY_INT64)
    cdef int64_t* out = <int64_t*> cnp.PyArray_DATA(indexes)
    if ring.span == ring.capacity:
        for k in range(n):  # slots are public: a division for each took 3 % of a draw's instructions
            out[k] = values[k]
        return indexes
    for k in range(n):
        out[k] = ring.c_row_at(values[k]) % ring.span
    return indexes


def public_slots(Ring ring not None, cnp.ndarray slots):
    """The public slots of the given slots, which are in use: a fresh array of intp."""
    ring.c_check_slots(slots)
    return c_indexes(ring, slots, False).astype(np.intp)


def public_stored(Ring ring not None):
    """Number of public slots in use; with ``lookahead`` and one environment, of complete rows."""
    return min(ring.c_stop(), ring.span)


def slots_of(Ring ring not None, cnp.ndarray public):
    """The slots of public slots, an array of intp: -1 for one that holds no row.

    Raises ``IndexError`` unless they are below ``public_stored``.
    """
    cdef cnp.ndarray slots = np.array(public, np.intp, order="C")
    cdef intp_t* values = <intp_t*> cnp.PyArray_DATA(slots)
    cdef intp_t k, stored = public_stored(ring)
    cdef int64_t row
    if slots.size and not 0 <= slots.min() <= slots.max() < stored:
        raise IndexError(
            f"slots: expected 0 to {stored - 1}, got {slots.min()} to {slots.max()}"
        )
    if ring.span == ring.capacity:
        return slots
    for k in range(cnp.PyArray_SIZE(slots)):
        row = c_row_of_public(ring, values[k])
        values[k] = -1 if row < ring.c_first() else <intp_t> (row % ring.capacity)
    return slots


def ordered_slots(Ring ring not None):
    """``Ring.present_slots`` in the order of public slots."""
    slots = ring.present_slots()
    if ring.span == ring.capacity or len(slots) == 0:
        return slots
    return np.roll(slots, -slots.searchsorted(c_base(ring) % ring.capacity))


cdef int64_t c_base(Ring ring) noexcept nogil:
    """The first row in the order of public slots."""
    cdef int64_t stop = ring.c_stop()
    return max(stop - stop % ring.span, ring.c_first())


def ordered_at(Ring ring not None, cnp.ndarray places):
    """The slots at the given places of ``ordered_slots``: a fresh array of intp.

    ``places`` are integers from 0 on, below the number of rows that can be drawn. Cost: in
    proportion to them, times the logarithm of the slots if there are rows that cannot be drawn.
    """
    cdef cnp.ndarray slots = np.array(places, np.intp, order="C")
    cdef intp_t* values = <intp_t*> cnp.PyArray_DATA(slots)
    cdef intp_t k, among = ring.c_drawable()
    cdef int64_t base = c_base(ring)
    if slots.size and not 0 <= slots.min() <= slots.max() < among:
        raise IndexError(f"places: expected 0 to {among - 1}, got {places}")
    for k in range(cnp.PyArray_SIZE(slots)):
        values[k] = ring.c_slot_of_nth(values[k], base)
    return slots


def at_or_before(Ring ring not None, cnp.ndarray slots not None):
    """Each of the slots, which are in use, or the nearest one before it whose row can be drawn.

    Before the first slot comes the last. At least one row can be drawn. Cost: as ``ordered_at``.
    """
    ring.c_check_slots(slots)
    cdef cnp.ndarray found = slots.copy()
    cdef intp_t* values = <intp_t*> cnp.PyArray_DATA(found)
    cdef intp_t k, last = ring.c_drawable() - 1
    if last < 0:
        raise IndexError("slots: no row can be drawn")
    for k in range(cnp.PyArray_SIZE(found)):
        if not ring.c_can_draw(values[k]):
            values[k] = ring.c_slot_of_nth(last, ring.c_row_at(values[k]))
    return found


def find_rows(Ring ring not None, const int64_t[::1] indexes):
    """The slots of the rows that are still in the ring, and their positions in ``indexes``.

    The indexes are public slots or handles. Raises ``IndexError`` for a slot that holds no step.
    """
    cdef intp_t n = indexes.shape[0], count
    cdef cnp.ndarray slots = c_numbers(1, &n, cnp.NPY_INTP)
    cdef cnp.ndarray places = c_numbers(1, &n, cnp.NPY_INTP)
    count = c_find_indexes(
        ring, &indexes[0] if n else NULL, n, True, 0,
        <intp_t*> cnp.PyArray_DATA(slots), <intp_t*> cnp.PyArray_DATA(places),
    )
    if count < 0:
        c_refuse(ring, indexes[-1 - count], -1 - count)
    return slots[:count], places[:count]


cdef intp_t c_find_indexes(
    Ring ring, const int64_t* indexes, intp_t n, bint as_handles, int64_t drawn, intp_t* slots,
    intp_t* places,
) noexcept nogil:
    """``find_rows`` in C: returns the number of rows found, or -1 less the place of a bad index.

    With ``as_handles``, ``drawn`` is the number of rows that had been written at the last draw, or 0.
    Slots that were overwritten since are passed over.
    """
    cdef intp_t k, slot, count = 0
    cdef int64_t span = ring.span
    cdef bint passes_newer = as_handles and drawn
    for k in range(n):
        slot = c_slot_of(ring, indexes[k], as_handles)
        if slot == NO_ROW:
            return -1 - k
        if slot == GONE:
            continue
        if passes_newer and indexes[k] < span and ring.c_row_at(slot) >= drawn:
            continue
        slots[count] = slot
        places[count] = k
        count += 1
    return count


def find_handles(Ring ring not None, const int64_t[::1] indexes):
    """``find_rows``, with the handles of the rows of the same moment: slots, handles, positions."""
    cdef intp_t n = indexes.shape[0], count, k
    cdef cnp.ndarray slots = c_numbers(1, &n, cnp.NPY_INTP)
    cdef cnp.ndarray places = c_numbers(1, &n, cnp.NPY_INTP)
    cdef cnp.ndarray handles = c_numbers(1, &n, cnp.NPY_INT64)
    cdef intp_t* found = <intp_t*> cnp.PyArray_DATA(slots)
    # From here on no Python code runs until all are known.
    count = c_find_indexes(
        ring, &indexes[0] if n else NULL, n, True, 0, found, <intp_t*> cnp.PyArray_DATA(places)
    )
    for k in range(count):
        (<int64_t*> cnp.PyArray_DATA(handles))[k] = (
            ring.state[HANDLE_BASE] + ring.span + ring.c_row_at(found[k])
        )
    if count < 0:
        c_refuse(ring, indexes[-1 - count], -1 - count)
    return slots[:count], handles[:count], places[:count]
