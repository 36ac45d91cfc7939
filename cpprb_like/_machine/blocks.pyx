"""Large values, copied into a batch: by several cores, and past the caches, where it is worth it.

Rows of columns that lie in a block of their own, and values that are found one by one or put
together of frames. Compiled because it is what a batch of images costs. Not here: columns of
records (``_rows.gather``), and the loops over bytes (``copying``).
"""

from cpprb_like._c.copying cimport (
    CACHED_NBYTES, LONGEST, PIECE, STREAMS, c_copy, c_copy_ahead, c_end_stream, c_gather, c_interleave,
    c_stream_ahead,
)
from cpprb_like._machine.cores cimport c_share, c_was_asked
from cpprb_like._c.typedefs cimport intp_t

cdef intp_t past_caches = CACHED_NBYTES  # batches that are larger are written so


cdef struct Gathering:       # of blocks
    const Block* blocks
    intp_t count
    bint streams


cdef struct Placing:         # of values
    const Values* values
    intp_t n
    bint streams


def stream_from(intp_t nbytes):
    """Set which batches are written past the caches, for tests; the number before."""
    global past_caches
    before, past_caches = past_caches, nbytes
    return before


cdef bint c_is_past_caches(intp_t nbytes) noexcept nogil:
    """Whether a batch of so many bytes is written past the caches."""
    return STREAMS and nbytes > past_caches


cdef void c_gather_blocks(const Block* blocks, intp_t count, intp_t n) noexcept nogil:
    """Copy n rows of each block."""
    cdef Gathering work
    cdef intp_t k, nbytes = 0
    for k in range(count):
        nbytes += n * blocks[k].nbytes
    work.blocks, work.count, work.streams = blocks, count, c_is_past_caches(nbytes)
    c_share(c_gather_part, &work, n, nbytes)


cdef void c_gather_part(const void* work, intp_t start, intp_t stop) noexcept nogil:
    cdef const Gathering* gathering = <const Gathering*> work
    cdef const Block* block
    cdef const char* row
    cdef const char* following
    cdef intp_t number, k
    for number in range(gathering.count):
        block = gathering.blocks + number
        if not gathering.streams or block.nbytes < PIECE:
            c_gather(
                block.out + start * block.nbytes, block.column, block.stride, block.nbytes,
                block.slots + start, stop - start,
            )
            continue
        for k in range(start, stop):
            row = block.column + block.slots[k] * block.stride
            following = block.column + block.slots[min(k + 1, stop - 1)] * block.stride
            c_stream_ahead(block.out + k * block.nbytes, row, following, block.nbytes)
    if gathering.streams:
        c_end_stream()


cdef void c_gather_values(const Values* values, intp_t n) noexcept nogil:
    """Copy n values, or put them together."""
    cdef Placing work
    work.values, work.n, work.streams = values, n, c_is_past_caches(n * values.nbytes)
    c_share(c_place_part, &work, n, n * values.nbytes)


cdef void c_gather_values_beside_actors(const Values* values, intp_t n) noexcept nogil:
    """As ``c_gather_values``; by this thread alone unless the program has chosen a number of threads.

    Actors need the other cores. A second thread waits for one of them, and takes a third more of
    processor time.
    """
    cdef Placing work
    if c_was_asked():
        c_gather_values(values, n)
        return
    work.values, work.n, work.streams = values, n, c_is_past_caches(n * values.nbytes)
    c_place_part(&work, 0, n)


cdef void c_place_part(const void* work, intp_t start, intp_t stop) noexcept nogil:
    cdef const Placing* placing = <const Placing*> work
    cdef const Values* values = placing.values
    cdef const char** frames
    cdef const char* whole = NULL
    cdef const char* following
    cdef char* to
    cdef intp_t i, k
    for k in range(start, stop):
        to = values.out + k * values.nbytes
        if values.wholes != NULL:
            whole = values.wholes[k]
        frames = values.frames + k * values.depth
        if whole == to:
            continue
        if whole != NULL:
            following = values.wholes[min(k + 1, stop - 1)]
            if following == NULL:
                following = whole
            c_place(to, whole, following, values.nbytes, placing.streams)
        elif values.outer != 1:
            c_interleave(to, frames, values.depth, values.outer, values.inner)
        else:
            for i in range(values.depth):  # mostly of rows that follow one another
                if placing.streams and values.inner >= PIECE:
                    c_stream_ahead(to + i * values.inner, frames[i], frames[i], values.inner)
                else:
                    c_copy(to + i * values.inner, frames[i], values.inner)
    if placing.streams:
        c_end_stream()


cdef inline void c_place(
    char* to, const char* value, const char* following, intp_t nbytes, bint streams
) noexcept nogil:
    """Copy a value while the following one is fetched."""
    if nbytes < PIECE or nbytes > LONGEST and not streams:
        c_copy(to, value, nbytes)
    elif streams:
        c_stream_ahead(to, value, following, nbytes)
    else:
        c_copy_ahead(to, value, following, nbytes)
