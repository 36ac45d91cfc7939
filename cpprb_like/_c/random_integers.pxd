"""Bounded integers from NumPy's bit generators: the same on every platform and NumPy version."""

from cpython.pycapsule cimport PyCapsule_GetPointer
from numpy.random cimport bitgen_t

from cpprb_like._c.typedefs cimport intp_t, uint32_t, uint64_t


cdef inline bitgen_t* c_bit_generator(bit_generator) except NULL:
    """The C interface of a bit generator, whose lock the caller holds."""
    return <bitgen_t*> PyCapsule_GetPointer(bit_generator.capsule, "BitGenerator")


cdef struct Bits:
    bitgen_t* source
    uint64_t word            # the last random word
    bint half_left           # whether the high half of ``word`` is unused


cdef inline Bits c_bits_of(bitgen_t* source) noexcept nogil:
    cdef Bits bits
    bits.source = source
    bits.word = 0
    bits.half_left = False
    return bits


cdef inline uint64_t c_half(Bits* bits) noexcept nogil:
    """32 random bits: the low half of a number of 64, then its high half.

    One call of the generator gives two numbers; calls were a third of the time of a draw.
    """
    bits.half_left = not bits.half_left
    if bits.half_left:
        bits.word = bits.source.next_uint64(bits.source.state)
        return <uint32_t> bits.word
    return bits.word >> 32


cdef inline uint64_t c_mask(uint64_t most) noexcept nogil:
    """The bits that numbers up to ``most`` have."""
    cdef uint64_t mask = most
    mask |= mask >> 1
    mask |= mask >> 2
    mask |= mask >> 4
    mask |= mask >> 8
    mask |= mask >> 16
    mask |= mask >> 32
    return mask


cdef inline uint64_t c_bounded(Bits* bits, uint64_t n) noexcept nogil:
    """A uniform integer in [0, n), for n of at least 1, without bias.

    Up to 32 bits: D. Lemire, "Fast Random Integer Generation in an Interval" (2019), algorithm 5.
    Above: masked bits, rejected while too large (under two tries on average).
    """
    cdef uint64_t mask, product
    cdef uint32_t threshold
    if n <= <uint64_t> 0xFFFFFFFF:
        product = c_half(bits) * n
        if <uint32_t> product < <uint32_t> n:
            threshold = (<uint32_t> 0 - <uint32_t> n) % <uint32_t> n
            while <uint32_t> product < threshold:
                product = c_half(bits) * n
        return product >> 32
    mask = c_mask(n - 1)
    product = bits.source.next_uint64(bits.source.state) & mask
    while product >= n:
        product = bits.source.next_uint64(bits.source.state) & mask
    return product


cdef inline void c_bounded_each(Bits* bits, uint64_t n, intp_t* numbers, intp_t count) noexcept nogil:
    """``count`` uniform integers in [0, n), equal to those of ``count`` calls of ``c_bounded``.

    Two numbers are made of one 64-bit word without a branch, in half of the instructions.
    """
    cdef uint64_t word, product
    cdef uint32_t threshold
    cdef Bits own = bits[0]  # in registers
    cdef intp_t k = 0
    if n <= <uint64_t> 0xFFFFFFFF:
        threshold = (<uint32_t> 0 - <uint32_t> n) % <uint32_t> n
        while k + 1 < count and not own.half_left:
            word = own.source.next_uint64(own.source.state)
            product = <uint32_t> word * n
            numbers[k] = <intp_t> (product >> 32)
            k += <uint32_t> product >= threshold
            product = (word >> 32) * n
            numbers[k] = <intp_t> (product >> 32)
            k += <uint32_t> product >= threshold
    while k < count:
        numbers[k] = <intp_t> c_bounded(&own, n)
        k += 1
    bits[0] = own
