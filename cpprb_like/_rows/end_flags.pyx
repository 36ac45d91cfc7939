"""Do the flags of rows say what the fields that end episodes say?

Compiled because a buffer that is loaded is asked it of every row: of a million, 1 ms and not 6. Not
here: what is said of rows whose flags do not, and of all that has another layout
(``buffers._checking``, which is the slow twin).
"""

from libc.string cimport memcpy, memset

from cpprb_like._core cimport ABSENT, DONE, END, TERMINATED, TRUNCATED
from cpprb_like._c.typedefs cimport intp_t, uint8_t, uint64_t

cdef enum:
    CHUNK = 512              # rows whose records stay in the cache while their fields are looked at
    MOST = 8                 # fields that end episodes


def count_absent(
    const uint8_t[::1] arena not None, intp_t offset, intp_t stride, intp_t n, list fields not None
):
    """How many of the first n slots hold an absent row; -1 if the flags of some slot are wrong.

    ``offset`` is that of the flag of slot 0, ``stride`` leads from slot to slot. ``fields`` are
    those that end episodes: offset of the value of slot 0, stride, bytes of a value (up to 8), byte
    of its sign (-1 for none), and the flags that it sets. Raises ``ValueError`` for places that are
    outside of the arena.
    """
    cdef Ends[MOST] ends
    cdef intp_t number = 0, sign, start = 0, count, k, absent = 0, begin, step, nbytes
    cdef uint8_t[CHUNK] expected
    cdef uint8_t[8] mask
    cdef uint8_t flag
    cdef const uint8_t* flags
    if len(fields) > MOST or not c_is_inside(arena.shape[0], offset, stride, n, 1):
        raise ValueError(f"expected up to {MOST} fields and flags in the arena, got {fields}")
    for begin, step, nbytes, sign, meaning in fields:
        if not (1 <= nbytes <= 8 and c_is_inside(arena.shape[0], begin, step, n, nbytes)):
            raise ValueError(f"expected values of up to 8 bytes in the arena, got {fields}")
        memset(mask, 0, 8)
        memset(mask, 0xFF, nbytes)
        if 0 <= sign < nbytes:
            mask[sign] = 0x7F
        ends[number].values, ends[number].stride = &arena[0] + begin, step
        ends[number].nbytes, ends[number].meaning = nbytes, meaning
        memcpy(&ends[number].mask, mask, 8)
        number += 1
    with nogil:
        while start < n and absent >= 0:
            count = min(n - start, CHUNK)
            memset(expected, 0, count)
            for k in range(number):
                c_add_flags(&ends[k], start, count, expected)
            flags = &arena[0] + offset + start * stride
            for k in range(count):
                flag = flags[k * stride]
                if flag == expected[k] and not flag & (DONE | ABSENT):
                    continue
                if flag & ABSENT:  # one of a deleted episode still says whether this ended there
                    absent += 1
                    flag ^= ABSENT
                    if flag and (not flag & END or flag & ~(END | TERMINATED | TRUNCATED)):
                        absent = -1
                        break
                elif not c_agree(flag, expected[k]):
                    absent = -1
                    break
            start += count
    return absent


cdef bint c_is_inside(
    intp_t size, intp_t offset, intp_t stride, intp_t n, intp_t nbytes
) noexcept nogil:
    """Whether n values lie in an arena of so many bytes."""
    if n <= 0:
        return n == 0
    if offset < 0 or stride < 0 or offset > size - nbytes:
        return False
    return n == 1 or stride <= (size - offset - nbytes) // (n - 1)


cdef bint c_agree(uint8_t flag, uint8_t expected) noexcept nogil:
    """Whether a flag is what the fields say, or that the episode was cut off after the row."""
    if expected & DONE:
        expected ^= DONE
        expected |= END if expected & TRUNCATED else END | TERMINATED
    return flag == expected or (not expected & END and flag == (END | TRUNCATED))


cdef void c_add_flags(const Ends* ends, intp_t first, intp_t n, uint8_t* flags) noexcept nogil:
    """Add what a field says of n rows."""
    cdef const uint8_t* value = ends.values + first * ends.stride
    cdef uint64_t bits
    cdef intp_t k
    if ends.nbytes == 1:
        for k in range(n):
            flags[k] |= ends.meaning * <uint8_t> ((value[k * ends.stride] & ends.mask) != 0)
        return
    for k in range(n):
        bits = 0
        if ends.nbytes == 4:
            memcpy(&bits, value, 4)
        elif ends.nbytes == 8:
            memcpy(&bits, value, 8)
        else:
            memcpy(&bits, value, ends.nbytes)
        flags[k] |= ends.meaning * <uint8_t> ((bits & ends.mask) != 0)
        value += ends.stride
