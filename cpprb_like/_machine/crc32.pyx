"""CRC-32, the checksum of zlib, at the speed of memory on processors with carry-less products.

zlib sums 1 to 2 GB/s, which is slower than reading a file. Here the remainder of a long polynomial is
computed by folding: 64 bytes are multiplied into the next 64 by two constants, powers of x modulo the
polynomial, so four products run in parallel. The last 16 bytes are reduced after Barrett. On other
machines, and for less than 64 bytes, zlib is used. CRC-32C, the checksum of TFRecord, is computed
byte by byte.

Source: Gopal, Ozturk, Guilford et al. (2009), "Fast CRC Computation for Generic Polynomials Using
PCLMULQDQ Instruction", for bits in reflected order.
"""

from libc.stdint cimport uint8_t, uint32_t

import zlib

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>

    #if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    #include <immintrin.h>

    static int crc_can_fold(void)
    {
        __builtin_cpu_init();
        return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    }

    #define CRC_TARGET __attribute__((target("pclmul,sse4.1")))

    CRC_TARGET static inline __m128i crc_load(const uint8_t *from)
    {
        return _mm_loadu_si128((const __m128i *)from);
    }

    /* Both halves of 16 bytes, multiplied by the powers of x in the constants, and added to the next. */
    CRC_TARGET static inline __m128i crc_fold_into(__m128i value, __m128i constants, __m128i next)
    {
        __m128i low = _mm_clmulepi64_si128(value, constants, 0x00);
        __m128i high = _mm_clmulepi64_si128(value, constants, 0x11);
        return _mm_xor_si128(_mm_xor_si128(low, high), next);
    }

    /* The register of the CRC after n more bytes: a multiple of 16, at least 64. */
    CRC_TARGET static uint32_t crc_fold(uint32_t crc, const uint8_t *from, size_t n)
    {
        const __m128i by_512 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
        const __m128i by_128 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
        const __m128i by_64 = _mm_set_epi64x(0, 0x0163cd6124);
        const __m128i barrett = _mm_set_epi64x(0x01f7011641, 0x01db710641);
        const __m128i low_words = _mm_setr_epi32(-1, 0, -1, 0);
        __m128i lane[4], rest;
        int k;
        for (k = 0; k < 4; k++)
            lane[k] = crc_load(from + 16 * k);
        lane[0] = _mm_xor_si128(lane[0], _mm_cvtsi32_si128((int)crc));
        for (from += 64, n -= 64; n >= 64; from += 64, n -= 64)
            for (k = 0; k < 4; k++)
                lane[k] = crc_fold_into(lane[k], by_512, crc_load(from + 16 * k));
        for (k = 1; k < 4; k++)
            lane[0] = crc_fold_into(lane[0], by_128, lane[k]);
        for (; n >= 16; from += 16, n -= 16)
            lane[0] = crc_fold_into(lane[0], by_128, crc_load(from));
        /* 128 bits to 96, to 64, to the 32 of the remainder. */
        rest = _mm_xor_si128(_mm_srli_si128(lane[0], 8), _mm_clmulepi64_si128(lane[0], by_128, 0x10));
        rest = _mm_xor_si128(
            _mm_srli_si128(rest, 4), _mm_clmulepi64_si128(_mm_and_si128(rest, low_words), by_64, 0x00));
        lane[1] = _mm_clmulepi64_si128(_mm_and_si128(rest, low_words), barrett, 0x10);
        lane[1] = _mm_clmulepi64_si128(_mm_and_si128(lane[1], low_words), barrett, 0x00);
        return (uint32_t)_mm_extract_epi32(_mm_xor_si128(rest, lane[1]), 1);
    }
    #else
    static int crc_can_fold(void) { return 0; }
    static uint32_t crc_fold(uint32_t crc, const uint8_t *from, size_t n)
    {
        (void)from; (void)n;
        return crc;
    }
    #endif
    """
    bint crc_can_fold()
    uint32_t crc_fold(uint32_t crc, const uint8_t* source, size_t n) noexcept nogil

cdef enum:
    LEAST = 64               # bytes that can be folded

cdef bint FOLDS = crc_can_fold()


def crc32(const uint8_t[::1] data not None, uint32_t value=0):
    """``zlib.crc32(data, value)``, computed without the interpreter lock."""
    cdef size_t n = <size_t> data.shape[0]
    cdef size_t folded = n & ~<size_t> 15
    if not FOLDS or n < LEAST:
        return zlib.crc32(data, value)
    with nogil:
        value = ~crc_fold(~value, &data[0], folded)
    return zlib.crc32(data[<Py_ssize_t> folded:], value) if folded < n else value


cdef uint32_t[256] CASTAGNOLI


cdef void c_fill_table() noexcept nogil:
    """The register after each byte, for the polynomial of Castagnoli in reflected order."""
    cdef uint32_t byte, value
    cdef int _bit
    for byte in range(256):
        value = byte
        for _bit in range(8):
            value = (value >> 1) ^ (<uint32_t> 0x82F63B78 * (value & 1))
        CASTAGNOLI[byte] = value


c_fill_table()


def crc32c(const uint8_t[::1] data not None):
    """The checksum CRC-32C of bytes, which Python's modules lack. Cost: about 2 ns a byte.

    Examples
    --------
    >>> from cpprb_like._machine.crc32 import crc32c
    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    cdef uint32_t value = <uint32_t> 0xFFFFFFFF
    cdef Py_ssize_t k
    with nogil:
        for k in range(data.shape[0]):
            value = (value >> 8) ^ CASTAGNOLI[(value ^ data[k]) & 0xFF]
    return value ^ <uint32_t> 0xFFFFFFFF
