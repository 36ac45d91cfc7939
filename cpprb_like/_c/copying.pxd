"""Copy loops between strided columns and dense arrays.

A column is a start address, a stride and a row size in bytes. Row sizes of numbers and pairs of
numbers get a loop of their own, because a copy of constant size is one load and one store and not a
call.
"""

from libc.stdint cimport uintptr_t
from libc.string cimport memcpy

from cpprb_like._c.typedefs cimport intp_t


cdef extern from *:
    """
    /* Into the second cache: of three lines at each of 256 random places in 64 MB the processor had
       all in 1.9 us, into the first cache in 4.9 us, as that waits for few lines at a time. */
    static inline void cpprb_prefetch(const void *address)
    {
    #if defined(__GNUC__)
        __builtin_prefetch(address, 0, 2);
        __asm__ volatile("");  /* GCC drops calls of functions that do nothing but prefetch */
    #else
        (void)address;
    #endif
    }

    /* A cache line written past the caches: the processor need not read it first, nor throw out
       another for it. ``to`` is aligned to cache lines. */
    #if defined(__SSE2__) || defined(_M_X64)
    #include <emmintrin.h>
    #define CPPRB_STREAMS 1
    static inline void cpprb_stream_line(char *to, const char *line)
    {
        __m128i a = _mm_loadu_si128((const __m128i *)line);
        __m128i b = _mm_loadu_si128((const __m128i *)line + 1);
        __m128i c = _mm_loadu_si128((const __m128i *)line + 2);
        __m128i d = _mm_loadu_si128((const __m128i *)line + 3);
        _mm_stream_si128((__m128i *)to, a);
        _mm_stream_si128((__m128i *)to + 1, b);
        _mm_stream_si128((__m128i *)to + 2, c);
        _mm_stream_si128((__m128i *)to + 3, d);
    }
    #define CPPRB_END_STREAM() _mm_sfence()
    #else
    #define CPPRB_STREAMS 0
    #define cpprb_stream_line(to, line) ((void)(to), (void)(line))
    #define CPPRB_END_STREAM() ((void)0)
    #endif
    """
    const bint STREAMS "CPPRB_STREAMS"  # whether there are such writes
    void c_prefetch "cpprb_prefetch"(const void* address) noexcept nogil
    void c_stream_line "cpprb_stream_line"(char* to, const char* line) noexcept nogil
    void c_end_stream "CPPRB_END_STREAM"() noexcept nogil  # other threads may read what was written


cdef enum:
    CACHE_LINE = 64
    # How far prefetches go, of all modules. FETCHED: rows, or nodes, whose lines are prefetched at a time.
    FETCHED = 64
    FETCHED_STEPS = 16        # most rows of an n-step window: the processor prefetches the rest
    FETCHED_FLAGS = 32        # flags of rows, before the first is read
    UNLOCKED_NBYTES = 32768   # smaller copies keep the interpreter lock: taking it back costs more
    INTERLEAVE_NBYTES = 4096  # bytes that stay in the first cache while parts are interleaved
    STREAMED_NBYTES = 512     # shorter values are never written past the caches
    CACHED_NBYTES = 1 << 23   # bytes of a batch that a cache holds until the batch is read


cdef inline void c_prefetch_rows(
    const char* rows, intp_t stride, intp_t size, const intp_t* slots, intp_t n
) noexcept nogil:
    """Prefetch the cache lines of the rows at n slots."""
    cdef intp_t k
    cdef const char* line
    cdef const char* last
    if size <= CACHE_LINE and (<uintptr_t> rows | stride) % CACHE_LINE == 0:
        for k in range(n):  # each row lies in one line
            c_prefetch(rows + slots[k] * stride)
        return
    for k in range(n):
        line = rows + slots[k] * stride
        last = line + size - 1
        c_prefetch(line)
        line += CACHE_LINE
        while line < last:
            c_prefetch(line)
            line += CACHE_LINE
        c_prefetch(last)


cdef inline void c_copy(char* to, const char* row, intp_t size) noexcept nogil:
    """Copy one row."""
    if size == 4:
        memcpy(to, row, 4)
    elif size == 8:
        memcpy(to, row, 8)
    elif size == 16:
        memcpy(to, row, 16)
    elif size == 1:
        to[0] = row[0]
    else:
        memcpy(to, row, size)


cdef inline void c_gather_strided(
    char* out, const char* column, intp_t stride, intp_t size, const intp_t* slots, intp_t n
) noexcept nogil:
    """out[k] = column[slots[k]] for k in range(n)."""
    cdef intp_t k
    if size == 4:
        for k in range(n):
            memcpy(out + 4 * k, column + slots[k] * stride, 4)
    elif size == 8:
        for k in range(n):
            memcpy(out + 8 * k, column + slots[k] * stride, 8)
    elif size == 16:
        for k in range(n):
            memcpy(out + 16 * k, column + slots[k] * stride, 16)
    elif size == 1:
        for k in range(n):
            out[k] = column[slots[k] * stride]
    elif size == 2:
        for k in range(n):
            memcpy(out + 2 * k, column + slots[k] * stride, 2)
    else:
        for k in range(n):
            memcpy(out + size * k, column + slots[k] * stride, size)


cdef inline void c_gather_at(
    char* out, const char** records, intp_t offset, intp_t size, intp_t n
) noexcept nogil:
    """out[k] = the value at an offset in records[k] for k in range(n).

    ``c_gather_strided`` computes the addresses. Unlike ``c_copy``, each size has a loop of its own.
    """
    cdef intp_t k
    if size == 4:
        for k in range(n):
            memcpy(out + 4 * k, records[k] + offset, 4)
    elif size == 8:
        for k in range(n):
            memcpy(out + 8 * k, records[k] + offset, 8)
    elif size == 16:
        for k in range(n):
            memcpy(out + 16 * k, records[k] + offset, 16)
    elif size == 1:
        for k in range(n):
            out[k] = (records[k] + offset)[0]
    else:
        for k in range(n):
            memcpy(out + size * k, records[k] + offset, size)


cdef inline void c_stream_ahead(
    char* to, const char* row, const char* following, intp_t size
) noexcept nogil:
    """Copy a row past the caches, if ``STREAMS``, and prefetch as many bytes of the following row.

    The caller calls ``c_end_stream`` after the last row. This pays for batches that no cache keeps.
    1024 pairs of rows of 28 kB take 2.8 ms instead of 5.4; with a read of the batch, 5.9 instead of 8.6.
    7 MB, if other programs use the same cache of 32 MB, take 0.37 ms instead of 0.66; with a read, 0.63
    instead of 0.82. If no other program runs, 10 MB lose more in the read than the copy saves, and 15 MB
    lose as much.
    """
    cdef intp_t o = <intp_t> (-<uintptr_t> to % CACHE_LINE)
    memcpy(to, row, o)
    while o + CACHE_LINE <= size:
        c_prefetch(following + o)
        c_stream_line(to + o, row + o)
        o += CACHE_LINE
    memcpy(to + o, row + o, size - o)


cdef inline void c_move(
    char* to, intp_t to_stride, const char* rows, intp_t stride, intp_t size, intp_t n
) noexcept nogil:
    """to[k] = rows[k] for k in range(n): both lie at even distances."""
    cdef intp_t k
    if stride == size and to_stride == size:
        memcpy(to, rows, n * size)
    elif size == 4:
        for k in range(n):
            memcpy(to + k * to_stride, rows + k * stride, 4)
    elif size == 8:
        for k in range(n):
            memcpy(to + k * to_stride, rows + k * stride, 8)
    elif size == 16:
        for k in range(n):
            memcpy(to + k * to_stride, rows + k * stride, 16)
    elif size == 1:
        for k in range(n):
            to[k * to_stride] = rows[k * stride]
    elif size == 2:
        for k in range(n):
            memcpy(to + k * to_stride, rows + k * stride, 2)
    elif size == 3:
        for k in range(n):
            memcpy(to + k * to_stride, rows + k * stride, 3)
    else:
        for k in range(n):
            memcpy(to + k * to_stride, rows + k * stride, size)


cdef inline void c_pick(char* to, const char* items, intp_t depth, intp_t n) noexcept nogil:
    """to[o] = items[depth * o] for o in range(n): bytes of one frame out of a stack.

    With a constant depth the compiler moves many bytes at a time: 7,056 bytes of one frame out of four
    take 0.4 us instead of 2.4 us.
    """
    cdef intp_t o
    if depth == 4:
        for o in range(n):
            to[o] = items[4 * o]
    elif depth == 3:
        for o in range(n):
            to[o] = items[3 * o]
    elif depth == 2:
        for o in range(n):
            to[o] = items[2 * o]
    else:
        for o in range(n):
            to[o] = items[depth * o]


cdef inline void c_interleave(
    char* to, const char** parts, intp_t depth, intp_t outer, intp_t inner
) noexcept nogil:
    """to[o, i] = parts[i][o] for o in range(outer) and i in range(depth); items of inner bytes."""
    cdef intp_t i, count, o = 0
    cdef const char* a
    cdef const char* b
    cdef const char* c
    cdef const char* d
    if inner == 1 and depth == 4:  # stacked frames of bytes: one pass over ``to`` and not four
        a, b, c, d = parts[0], parts[1], parts[2], parts[3]
        for o in range(outer):
            to[4 * o] = a[o]
            to[4 * o + 1] = b[o]
            to[4 * o + 2] = c[o]
            to[4 * o + 3] = d[o]
        return
    while o < outer and inner:
        count = min(outer - o, INTERLEAVE_NBYTES // (depth * inner) + 1)
        for i in range(depth):
            c_move(
                to + (o * depth + i) * inner, depth * inner, parts[i] + o * inner, inner, inner,
                count,
            )
        o += count


cdef inline void c_swap(char* left, char* right, intp_t size) noexcept nogil:
    """Exchange two runs of bytes: moves references to Python objects without counting them."""
    cdef intp_t k
    cdef char byte
    for k in range(size):
        byte = left[k]
        left[k] = right[k]
        right[k] = byte
