"""Choice of the row whose achieved goal becomes the new goal of another row.

Compiled because it runs for each row of a batch. Not here: where episodes begin and end
(``_rows.episode_index``), and what the rows found are good for (``_hindsight``).
"""

cimport numpy as cnp
from libc.math cimport sqrt

from cpprb_like._machine.aligned cimport c_numbers
from cpprb_like._core cimport CLEARS, WRITTEN, Ring
from cpprb_like._rows.episode_index cimport Bounds, EpisodeIndex
from cpprb_like._c.random_integers cimport Bits, c_bits_of, c_bounded
from cpprb_like._segment_tree cimport c_bit_generator
from cpprb_like._c.typedefs cimport float64_t, int64_t, intp_t

cnp.import_array()

cdef enum:
    TRIES = 32               # draws that may hit an absent row, before rows are counted

cdef enum:  # strategies: which row
    C_FUTURE = 0
    C_FINAL = 1
    C_EPISODE = 2
    C_RANDOM = 3

FUTURE = C_FUTURE
FINAL = C_FINAL
EPISODE = C_EPISODE
RANDOM = C_RANDOM


def choose_rows(EpisodeIndex index not None, cnp.ndarray slots not None, rng, int strategy):
    """For each of the slots another one, that of a row of the same episode.

    Of an episode whose first rows were overwritten, those that are left count; of one that has not
    ended, the rows so far. Other threads may call it and add rows at the same time.

    ``FUTURE`` chooses from the row itself to the last of its episode, ``EPISODE`` any row of it,
    ``FINAL`` the last one, ``RANDOM`` any row of the ring. All slots are of rows that hold a step.
    Cost: ``Hindsight``.
    """
    index.ring.c_check_slots(slots)
    index.c_sync_rows()
    bit_generator = rng.bit_generator
    cdef Bits bits = c_bits_of(c_bit_generator(bit_generator))
    cdef intp_t n = cnp.PyArray_DIM(slots, 0)
    cdef cnp.ndarray chosen = c_numbers(1, &n, cnp.NPY_INTP)
    cdef bint there
    # While the lock is held nothing is allocated and nothing raised: see ``draw_uniform``.
    lock = bit_generator.lock
    lock.acquire()
    there = c_choose(
        index, <const intp_t*> cnp.PyArray_DATA(slots), <intp_t*> cnp.PyArray_DATA(chosen), n,
        &bits, strategy,
    )
    lock.release()
    if not there:
        raise IndexError("slots: rows went away while their goals were chosen")
    return chosen


cdef bint c_choose(
    EpisodeIndex index, const intp_t* given, intp_t* chosen, intp_t n, Bits* bits, int strategy
) noexcept:
    """As ``choose_rows``, with the lock of the generator; false if a slot is not in use any more.

    Rows that were added while the caller waited for the lock are not considered. A row that was
    overwritten in that time is returned as its own choice.
    """
    cdef Ring ring = index.ring
    cdef Bounds bounds
    cdef int64_t row
    cdef intp_t k, stored = ring.c_stored()
    for k in range(n):
        if given[k] >= stored:
            return False
    if strategy != C_RANDOM:
        index.c_fetch_rows(given, n)
    for k in range(n):
        row = ring.c_row_at(given[k])
        if strategy == C_RANDOM:
            row = c_pick_any(ring, bits, row)
        elif index.clears == ring.state[CLEARS] and index.c_find_row(row, &bounds):
            if strategy == C_FINAL:
                row = bounds.last
            else:
                row = c_pick(ring, bits, row if strategy == C_FUTURE else bounds.first, bounds.last)
        chosen[k] = <intp_t> (row % ring.capacity)
    return True


cdef int64_t c_pick(Ring ring, Bits* bits, int64_t first, int64_t last) noexcept:
    """A random row of a stream from ``first`` to ``last`` that holds a step, each equally likely.
    ``first`` and ``last`` hold one.

    The more rows there are, the more are tried before those that hold a step are counted; and then
    these are few, or nearly no call comes so far.
    """
    cdef int64_t n = (last - first) // ring.n_envs + 1, row = last, present = 0, number
    cdef intp_t _, tries = 1
    if ring.c_absent():
        tries = TRIES + <intp_t> sqrt(<float64_t> n)
    for _ in range(tries):
        row = first + ring.n_envs * <int64_t> c_bounded(bits, n)
        if not ring.c_absent() or not ring.c_is_absent(<intp_t> (row % ring.capacity)):
            return row
    row = first
    while row >= 0:
        present += 1
        row = ring.c_next(row, last + 1)
    number = <int64_t> c_bounded(bits, present)
    row = first
    for _ in range(number):
        row = ring.c_next(row, last + 1)
    return row


cdef int64_t c_pick_any(Ring ring, Bits* bits, int64_t otherwise) noexcept:
    """One of the rows of the ring that can be drawn, each equally likely."""
    cdef intp_t _, slot, stored = ring.c_stored()
    cdef int64_t oldest = ring.state[WRITTEN] - stored
    for _ in range(TRIES):
        slot = <intp_t> ((oldest + <int64_t> c_bounded(bits, stored)) % ring.capacity)
        if ring.c_can_draw(slot):
            return ring.c_row_at(slot)
    if ring.c_drawable() == 0:
        return otherwise
    return ring.c_row_at(
        ring.c_slot_of_nth(<intp_t> c_bounded(bits, ring.c_drawable()), ring.c_first())
    )
