"""C signatures of reading rows of several steps."""

from cpprb_like._column cimport Column
from cpprb_like._core cimport ABSENT, Ring
from cpprb_like._typedefs cimport float64_t, int64_t, intp_t, uint8_t


cdef struct Walk:            # through the rows of a ring, as it is at one time
    const uint8_t* flags     # of slot 0
    intp_t stride            # of the flags
    intp_t capacity
    intp_t n_envs
    intp_t head              # the slot of the next row to be written
    int64_t written


cdef inline int64_t c_row_of(const Walk* walk, intp_t slot) noexcept nogil:
    """The row id of the row in a slot in use."""
    return walk.written - walk.head + slot - (0 if slot < walk.head else walk.capacity)


cdef inline intp_t c_step(const Walk* walk, intp_t slot, int64_t* row) noexcept nogil:
    """The slot of the next row of the stream that holds a step, -1 if there is none."""
    while True:
        row[0] += walk.n_envs
        if row[0] >= walk.written:
            return -1
        slot += walk.n_envs
        slot = slot - walk.capacity if slot >= walk.capacity else slot
        if not walk.flags[slot * walk.stride] & ABSENT:
            return slot


cdef Walk c_walk_of(Ring ring) noexcept nogil
cdef void c_find_last(
    const Walk* walk, const intp_t* slots, const intp_t* wanted, intp_t n, intp_t* last,
    intp_t* lengths, uint8_t* flags,
) noexcept nogil
cdef void c_sum_column(
    const Walk* walk, const char* base, Column column, const intp_t* slots, const intp_t* lengths,
    const float64_t* powers, intp_t n, char* out,
) noexcept
