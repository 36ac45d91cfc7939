"""Uniform draws of slots.

Compiled because the random numbers come straight from the bit generator, and because the records
are fetched while the next numbers are drawn. Not here: what is done with the slots (``_core``), and
draws by weight (``_segment_tree``).
"""

cimport numpy as cnp
from cpython.pycapsule cimport PyCapsule_GetPointer
from numpy.random cimport bitgen_t

from cpprb_like._copy cimport c_prefetch_rows
from cpprb_like._core cimport Ring, c_fetch, c_window_rows
from cpprb_like._random cimport Bits, c_bits_of, c_bounded
from cpprb_like._shuffle cimport Shuffle
from cpprb_like._typedefs cimport int64_t, intp_t

from cpprb_like.errors import NotEnoughDataError

cnp.import_array()

cdef enum:
    FETCHED_ROWS = 512       # batches whose records stay in a cache until they are copied
    SPARE_DRAWS = 64         # for the rows that are passed over
    NUMBERS = -1             # in place of a slot


def draw_uniform(Ring ring not None, intp_t n, rng, bint replace=True, newest=None):
    """Draw n slots whose rows can be drawn, each with the same probability.

    Parameters
    ----------
    ring : Ring
        The rows.
    n : int
        How many slots, at least 0.
    rng : numpy.random.Generator
        Where the randomness comes from: 32 bits for a slot, or a little more.
    replace : bool
        Whether a slot may come more than once. If not, they are in random order.
    newest : int, optional
        Draw among so many newest rows that can be drawn; among all.

    Returns
    -------
    ndarray of intp, shape (n,)

    Raises
    ------
    ValueError
        ``newest`` is below 1.
    NotEnoughDataError
        There is no row, or fewer than n without replacement.

    Notes
    -----
    Cost: proportional to n; times the logarithm of the rows stored, if over half of these cannot be
    drawn, or if there are such rows and ``newest`` is given.
    """
    bit_generator = rng.bit_generator
    cdef bitgen_t* source = <bitgen_t*> PyCapsule_GetPointer(
        bit_generator.capsule, "BitGenerator"
    )
    cdef cnp.ndarray slots = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_INTP)
    lock = bit_generator.lock
    lock.acquire()
    try:
        return c_draw_slots(ring, slots, source, replace, newest)
    finally:
        lock.release()


cdef cnp.ndarray c_draw_slots(
    Ring ring, cnp.ndarray slots, bitgen_t* source, bint replace, newest
):
    cdef Bits bits = c_bits_of(source)
    cdef intp_t* values = <intp_t*> cnp.PyArray_DATA(slots)
    cdef intp_t k, n = cnp.PyArray_DIM(slots, 0)
    cdef intp_t drawable = ring.c_drawable(), among = drawable
    cdef int64_t first = ring.c_first()
    if among == 0:
        raise NotEnoughDataError("cannot sample: the buffer is empty")
    if newest is not None:
        if newest < 1:
            raise ValueError(f"newest: expected at least 1, got {newest}")
        among = min(among, newest)
    if not replace and n > among:
        raise NotEnoughDataError(f"cannot sample {n} distinct rows: the buffer holds {among}")
    cdef intp_t width = <intp_t> (ring.c_stop() - first)
    if drawable == width:
        first = ring.c_stop() - among
        c_draw(ring, slots, &bits, <intp_t> (first % ring.capacity), among, replace, False)
    elif among == drawable and 2 * drawable >= width:
        c_draw(ring, slots, &bits, <intp_t> (first % ring.capacity), width, replace, True)
    else:
        c_draw(ring, slots, &bits, NUMBERS, among, replace, False)
        for k in range(n):
            values[k] = ring.c_slot_of_nth(drawable - among + values[k], first)
        if n <= FETCHED_ROWS:
            c_fetch(ring, values, n)
    return slots


cdef int c_draw(
    Ring ring, cnp.ndarray slots, Bits* bits, intp_t first, intp_t among, bint replace,
    bint skip,
) except -1:
    """Fill ``slots`` with some of the ``among`` slots from ``first`` on; if ``skip``, those that
    cannot be drawn are passed over, which are at most half of them. ``NUMBERS`` as ``first`` asks
    for numbers below ``among``.
    """
    cdef intp_t* values = <intp_t*> cnp.PyArray_DATA(slots)
    cdef intp_t k = 0, n = cnp.PyArray_DIM(slots, 0), slot, capacity = ring.capacity
    cdef const char* records = <const char*> ring.c_record(0)
    cdef intp_t stride = ring.record_stride
    cdef intp_t size = stride * (c_window_rows(ring) if ring.n_envs == 1 else 1)
    cdef bint fetches = n <= FETCHED_ROWS and first != NUMBERS
    first = 0 if first == NUMBERS else first
    if replace and not skip:
        for k in range(n):
            slot = first + <intp_t> c_bounded(bits, among)
            values[k] = slot if slot < capacity else slot - capacity
            if fetches:
                c_prefetch_rows(records, stride, size, values + k, 1)
        return 0
    if replace:
        while k < n:
            slot = first + <intp_t> c_bounded(bits, among)
            slot = slot if slot < capacity else slot - capacity
            if not ring.c_can_draw(slot):
                continue
            values[k] = slot
            k += 1
            if fetches:
                c_prefetch_rows(records, stride, size, values + k - 1, 1)
        return 0
    # Half of what the shuffle gives can be drawn: four times as many are enough but for once in a
    # long while.
    cdef intp_t most = min(among, 4 * n + SPARE_DRAWS) if skip else n
    cdef Shuffle shuffle
    while k < n:
        k = 0
        shuffle = Shuffle(among, most)
        while k < n and shuffle.drawn < most:
            slot = first + shuffle.c_next(bits)
            values[k] = slot if slot < capacity else slot - capacity
            k += not skip or ring.c_can_draw(values[k])
        most = min(among, 4 * most)
    return 0
