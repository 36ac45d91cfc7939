"""Bounded integers from NumPy's bit generators: the same on every platform and NumPy version."""

from numpy.random cimport bitgen_t

from cpprb_like._typedefs cimport uint32_t, uint64_t


cdef inline uint64_t c_bounded(bitgen_t* bitgen, uint64_t n) noexcept nogil:
    """A uniform integer in [0, n), for n of at least 1, without bias.

    Up to 32 bits: D. Lemire, "Fast Random Integer Generation in an Interval" (2019), algorithm 5.
    Above: masked bits, rejected while too large (under two tries on average).
    """
    cdef uint64_t mask, product
    cdef uint32_t threshold
    if n <= <uint64_t> 0xFFFFFFFF:
        product = <uint64_t> bitgen.next_uint32(bitgen.state) * n
        if <uint32_t> product < <uint32_t> n:
            threshold = (<uint32_t> 0 - <uint32_t> n) % <uint32_t> n
            while <uint32_t> product < threshold:
                product = <uint64_t> bitgen.next_uint32(bitgen.state) * n
        return product >> 32
    mask = n - 1
    mask |= mask >> 1
    mask |= mask >> 2
    mask |= mask >> 4
    mask |= mask >> 8
    mask |= mask >> 16
    mask |= mask >> 32
    product = bitgen.next_uint64(bitgen.state) & mask
    while product >= n:
        product = bitgen.next_uint64(bitgen.state) & mask
    return product
