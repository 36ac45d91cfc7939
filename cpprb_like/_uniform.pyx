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
from cpprb_like._typedefs cimport intp_t

from cpprb_like.errors import NotEnoughDataError

cnp.import_array()

cdef enum:
    FETCHED_ROWS = 512       # batches whose records stay in a cache until they are copied
    SPARE_DRAWS = 64         # for the rows that are passed over


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
    Cost: proportional to n. If there are rows that cannot be drawn, also to ``newest``, or to the
    rows stored when more than half of these cannot.
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
    cdef intp_t stored = ring.c_stored(), n = cnp.PyArray_DIM(slots, 0)
    cdef intp_t drawable = ring.c_drawable(), among = drawable
    cdef cnp.ndarray choice
    if among == 0:
        raise NotEnoughDataError("cannot sample: the buffer is empty")
    if newest is not None:
        if newest < 1:
            raise ValueError(f"newest: expected at least 1, got {newest}")
        among = min(among, newest)
    if not replace and n > among:
        raise NotEnoughDataError(f"cannot sample {n} distinct rows: the buffer holds {among}")
    if ring.c_absent() == 0 and ring.n_envs == 1:
        stored = drawable  # only the newest rows, if any, cannot be drawn
    if drawable == stored:
        c_draw(ring, slots, &bits, ring.c_newest_from(among), among, replace, False)
    elif among == drawable and 2 * drawable >= stored:
        c_draw(ring, slots, &bits, 0, stored, replace, True)
    else:
        choice = ring.newest_slots(among)
        c_draw(ring, slots, &bits, 0, among, replace, False)
        return choice[slots]
    return slots


cdef int c_draw(
    Ring ring, cnp.ndarray slots, Bits* bits, intp_t first, intp_t among, bint replace,
    bint skip,
) except -1:
    """Fill ``slots`` with some of the ``among`` slots from ``first`` on; if ``skip``, those that
    cannot be drawn are passed over, which are at most half of them.
    """
    cdef intp_t* values = <intp_t*> cnp.PyArray_DATA(slots)
    cdef intp_t k = 0, drawn, n = cnp.PyArray_DIM(slots, 0), slot, capacity = ring.capacity
    cdef const char* records = <const char*> ring.c_record(0)
    cdef intp_t stride = ring.record_stride
    cdef intp_t size = stride * (c_window_rows(ring) if ring.n_envs == 1 else 1)
    if replace:
        while k < n:
            for drawn in range(k, n):
                slot = first + <intp_t> c_bounded(bits, among)
                values[drawn] = slot if slot < capacity else slot - capacity
                if n <= FETCHED_ROWS:
                    c_prefetch_rows(records, stride, size, values + drawn, 1)
            if not skip:
                break
            c_fetch(ring, values + k, n - k)
            for drawn in range(k, n):  # now that their flags come
                values[k] = values[drawn]
                k += ring.c_can_draw(values[k])
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
