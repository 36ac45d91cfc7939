"""Uniform sampling of slots, with or without replacement.

Compiled because the random numbers come straight from the bit generator, and because the records
are prefetched while the next numbers are drawn. Not here: reading the rows (``_rows.gather``), and
sampling by weight (``_segment_tree``).
"""

cimport numpy as cnp
from cpython.pycapsule cimport PyCapsule_GetPointer
from numpy.random cimport bitgen_t

from cpprb_like._machine.aligned cimport c_numbers
from cpprb_like._c.copying cimport c_prefetch_rows
from cpprb_like._core cimport Ring, c_fetch, c_window_rows
from cpprb_like._c.random_integers cimport Bits, c_bits_of, c_bounded, c_bounded_each
from cpprb_like._c.shuffle cimport Shuffle
from cpprb_like._c.typedefs cimport intp_t

from cpprb_like.errors import NotEnoughDataError

cnp.import_array()

cdef extern from "Python.h":
    const intp_t PY_SSIZE_T_MAX

cdef enum:
    FETCHED_ROWS = 512       # batches whose records stay in a cache until they are copied
    SPARE_DRAWS = 64         # for draws of rows that are rejected, as they cannot be drawn
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
        Whether a slot may be drawn more than once. If not, they are in random order.
    newest : int, optional
        Draw from so many newest rows that can be drawn; by default from all.

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
    cdef cnp.ndarray slots = c_numbers(1, &n, cnp.NPY_INTP)
    cdef intp_t least = PY_SSIZE_T_MAX if newest is None else min(newest, PY_SSIZE_T_MAX)
    cdef intp_t spare = 1
    cdef bint is_drawn = False
    cdef Bits bits = c_bits_of(source)
    cdef Plan plan
    cdef Shuffle shuffle = None
    if least < 1:
        raise ValueError(f"newest: expected at least 1, got {newest}")
    lock = bit_generator.lock
    # While the lock is held nothing is allocated and nothing raised: the garbage collector could
    # run a finalizer that draws, which would wait for the lock for ever.
    while not is_drawn:
        plan = c_plan(ring, least)
        if plan.among == 0:
            raise NotEnoughDataError("cannot sample: the buffer is empty")
        if not replace and n > plan.drawable:
            raise NotEnoughDataError(
                f"cannot sample {n} distinct rows: the buffer holds {plan.drawable}"
            )
        if not replace:
            shuffle = Shuffle(plan.among, c_most(&plan, n, spare))
            spare = min(4 * spare, plan.among)
        lock.acquire()
        is_drawn = c_is(&plan, c_plan(ring, least)) and c_draw(ring, slots, &bits, &plan, shuffle)
        lock.release()
    return slots


cdef Plan c_plan(Ring ring, intp_t newest) noexcept:
    """How to draw from so many newest rows."""
    cdef Plan plan
    cdef intp_t drawable = ring.c_drawable()
    cdef intp_t width = <intp_t> (ring.c_stop() - ring.c_first())
    plan.oldest = ring.c_first()
    plan.drawable = plan.among = min(drawable, newest)
    plan.passed = drawable - plan.drawable
    plan.skips = False
    if drawable == width:
        plan.first = <intp_t> ((ring.c_stop() - plan.among) % ring.capacity)
    elif plan.passed == 0 and 2 * drawable >= width:
        plan.first = <intp_t> (plan.oldest % ring.capacity)
        plan.among = width
        plan.skips = True
    else:
        plan.first = NUMBERS
    return plan


cdef bint c_is(const Plan* plan, Plan other) noexcept:
    """Whether two plans are equal: no rows came or went while a thread waited for the lock."""
    return (
        plan.first == other.first and plan.among == other.among and plan.skips == other.skips
        and plan.drawable == other.drawable and plan.passed == other.passed
        and plan.oldest == other.oldest
    )


cdef intp_t c_most(const Plan* plan, intp_t n, intp_t times) noexcept:
    """The most numbers that a shuffle is asked for, to find n distinct slots.

    At least half of the numbers are slots that can be drawn, so four times as many are enough but
    for very rare cases.
    """
    return min(plan.among, times * (4 * n + SPARE_DRAWS)) if plan.skips else n


cdef bint c_draw(
    Ring ring, cnp.ndarray slots, Bits* bits, const Plan* plan, Shuffle shuffle
) noexcept:
    """Fill ``slots``, with distinct ones if there is a shuffle; false if that gave too few."""
    cdef intp_t* values = <intp_t*> cnp.PyArray_DATA(slots)
    cdef intp_t k = 0, n = cnp.PyArray_DIM(slots, 0)
    cdef intp_t among = plan.among, slot, capacity = ring.capacity
    cdef const char* records = <const char*> ring.c_record(0)
    cdef intp_t stride = ring.record_stride
    cdef intp_t size = stride * (c_window_rows(ring) if ring.n_envs == 1 else 1)
    cdef bint fetches = n <= FETCHED_ROWS and plan.first != NUMBERS
    cdef intp_t first = 0 if plan.first == NUMBERS else plan.first
    if shuffle is not None and not plan.skips:
        shuffle.c_take(bits, values, n)
        for k in range(n):
            slot = first + values[k]
            values[k] = slot if slot < capacity else slot - capacity
        k = n
    elif shuffle is not None:
        while k < n and shuffle.drawn < shuffle.most:
            slot = first + shuffle.c_next(bits)
            values[k] = slot if slot < capacity else slot - capacity
            k += ring.c_can_draw(values[k])
    elif not plan.skips:
        c_bounded_each(bits, among, values, n)
        for k in range(n):
            slot = first + values[k]
            values[k] = slot if slot < capacity else slot - capacity
            if fetches:
                c_prefetch_rows(records, stride, size, values + k, 1)
        k = n
    else:
        while k < n:
            slot = first + <intp_t> c_bounded(bits, among)
            slot = slot if slot < capacity else slot - capacity
            if not ring.c_can_draw(slot):
                continue
            values[k] = slot
            k += 1
            if fetches:
                c_prefetch_rows(records, stride, size, values + k - 1, 1)
    if plan.first == NUMBERS:
        for slot in range(k):
            values[slot] = ring.c_slot_of_nth(plan.passed + values[slot], plan.oldest)
        if n <= FETCHED_ROWS:
            c_fetch(ring, values, k)
    return k == n
