"""Steps along the streams of a ring, from row to row: ``Walk`` and ``Cursor``.

A walk passes over absent rows, and ends at the oldest and the newest row, or at an end of the
episode. It reads flags only. In a header, so that loops over rows have the steps inline. Not here:
the state of a ring that a walk begins with (``_core.c_walk_of``).
"""

from cpprb_like._c.typedefs cimport int32_t, int64_t, intp_t, uint8_t


cdef enum:  # bits of the flag byte of a row
    END = 1
    TERMINATED = 2
    TRUNCATED = 4
    ABSENT = 8
    LEFT_OUT = 32    # absent in a follower of another process; the episode continues behind the row


cdef struct Walk:                # state of a ring at one time, for steps along its streams
    const uint8_t* flags         # flag byte of slot 0
    intp_t stride                # bytes from the flags of a slot to those of the next
    intp_t capacity
    intp_t n_envs
    int64_t first                # oldest row in the ring
    int64_t stop                 # id behind the newest row
    intp_t head                  # slot of ``stop``
    bint any_absent
    const int32_t* onward        # ``AbsentRuns.onward``
    const int32_t* back          # ``AbsentRuns.back``


cdef struct Cursor:              # a row on a walk
    int64_t row                  # row id
    intp_t slot


cdef struct Firsts:              # a column that marks first rows of episodes, in place of end flags
    const uint8_t* values        # value of slot 0; NULL: end flags are read
    intp_t stride


cdef inline Cursor c_cursor(const Walk* walk, intp_t slot) noexcept nogil:
    """The row in a slot in use."""
    cdef intp_t newer = walk.head - 1 - slot
    newer = newer + walk.capacity if newer < 0 else newer
    return Cursor(walk.stop - 1 - newer, slot)


cdef inline bint c_forward(const Walk* walk, Cursor* at) noexcept nogil:
    """Step to the next row of the stream that holds a step; false if there is none."""
    cdef intp_t rows = walk.n_envs
    while True:
        at.row += rows
        if at.row >= walk.stop:
            return False
        at.slot += rows
        if at.slot >= walk.capacity:
            at.slot -= walk.capacity
        if not (walk.any_absent and walk.flags[at.slot * walk.stride] & ABSENT):
            return True
        rows = walk.n_envs
        if walk.onward != NULL:  # 0: another thread is about to note the run
            rows *= max(walk.onward[at.slot], 1)


cdef inline bint c_backward(const Walk* walk, Cursor* at) noexcept nogil:
    """Step to the row before in the stream that holds a step; false if there is none."""
    cdef intp_t rows = walk.n_envs
    while True:
        at.row -= rows
        if at.row < walk.first:
            return False
        at.slot -= rows
        if at.slot < 0:
            at.slot += walk.capacity
        if not (walk.any_absent and walk.flags[at.slot * walk.stride] & ABSENT):
            return True
        rows = walk.n_envs
        if walk.back != NULL:
            rows *= max(walk.back[at.slot], 1)


cdef inline bint c_forward_in_episode(const Walk* walk, Cursor* at, Firsts firsts) noexcept nogil:
    """Step to the next row of the episode; false at its end."""
    if firsts.values == NULL:
        return not walk.flags[at.slot * walk.stride] & END and c_forward(walk, at)
    return c_forward(walk, at) and not firsts.values[at.slot * firsts.stride]


cdef inline intp_t c_rows_before(
    const Walk* walk, Cursor at, intp_t most, Firsts firsts, intp_t* out, int bits, intp_t number
) noexcept nogil:
    """Walk back within the episode. Returns the count of rows.

    ``out[-k]`` gets the slot of the k-th row before, with the number of its ring in the low ``bits``.
    """
    cdef intp_t count = 0
    while count < most:
        if firsts.values != NULL and firsts.values[at.slot * firsts.stride]:
            break
        if not c_backward(walk, &at):
            break
        if firsts.values == NULL and walk.flags[at.slot * walk.stride] & END:
            break
        count += 1
        out[-count] = at.slot << bits | number
    return count


cdef inline intp_t c_rows_after(
    const Walk* walk, Cursor at, intp_t most, Firsts firsts, intp_t* out
) noexcept nogil:
    """Walk on within the episode; ``out[k]`` gets the slot of the k-th row behind. Returns the count."""
    cdef intp_t count = 0
    while count < most and c_forward_in_episode(walk, &at, firsts):
        count += 1
        out[count] = at.slot
    return count


cdef inline void c_repeat(intp_t* out, intp_t first, intp_t stop, intp_t slot) noexcept nogil:
    """Write one slot into the places from ``first`` to ``stop``: those outside of a window."""
    cdef intp_t k
    for k in range(first, stop):
        out[k] = slot
