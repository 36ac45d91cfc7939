"""Copy loops between strided columns and dense arrays.

A column is a start address, a stride and a row size in bytes. Row sizes of numbers and pairs of
numbers get a loop of their own, because a copy of constant size is one load and one store and not a
call.
"""

from libc.string cimport memcpy

from cpprb_like._typedefs cimport intp_t


cdef extern from *:
    """
    #if defined(__GNUC__)
    #define CPPRB_PREFETCH(address) __builtin_prefetch(address)
    #else
    #define CPPRB_PREFETCH(address) ((void)(address))
    #endif
    """
    void c_prefetch "CPPRB_PREFETCH"(const void* address) noexcept nogil


cdef enum:
    CACHE_LINE = 64


cdef inline void c_prefetch_rows(
    const char* rows, intp_t stride, intp_t size, const intp_t* slots, intp_t n
) noexcept nogil:
    """Ask for the cache lines of the rows at n slots."""
    cdef intp_t k
    cdef const char* line
    cdef const char* last
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


cdef inline void c_gather(
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


cdef inline void c_scatter(
    char* column, intp_t stride, intp_t size, const char* rows, intp_t n
) noexcept nogil:
    """column[k] = rows[k] for k in range(n)."""
    cdef intp_t k
    if size == 4:
        for k in range(n):
            memcpy(column + k * stride, rows + 4 * k, 4)
    elif size == 8:
        for k in range(n):
            memcpy(column + k * stride, rows + 8 * k, 8)
    elif size == 16:
        for k in range(n):
            memcpy(column + k * stride, rows + 16 * k, 16)
    elif size == 1:
        for k in range(n):
            column[k * stride] = rows[k]
    elif size == 2:
        for k in range(n):
            memcpy(column + k * stride, rows + 2 * k, 2)
    else:
        for k in range(n):
            memcpy(column + k * stride, rows + size * k, size)


cdef inline void c_swap(char* left, char* right, intp_t size) noexcept nogil:
    """Exchange two runs of bytes: moves references to Python objects without counting them."""
    cdef intp_t k
    cdef char byte
    for k in range(size):
        byte = left[k]
        left[k] = right[k]
        right[k] = byte
