"""An epoch: each row of a ring once, batch by batch.

Compiled because it looks at every row. The cost of a batch is proportional to its size, that of the
first one too. Not here: reading the rows (``buffers._replay``), and the random order
(``Shuffle`` of ``_uniform_draws``).
"""

cimport cython
cimport numpy as cnp
from cpython.pycapsule cimport PyCapsule_GetPointer
from numpy.random cimport bitgen_t

from cpprb_like._core cimport Ring
from cpprb_like._c.random_integers cimport Bits, c_bits_of
from cpprb_like.samplers._uniform_draws cimport Shuffle
from cpprb_like._c.typedefs cimport intp_t, uint64_t

import numpy as np

cnp.import_array()


@cython.final
cdef class Epoch:
    """The slots whose rows can be drawn when it is created, once each.

    Parameters
    ----------
    ring : Ring
        The rows.
    rng : numpy.random.Generator, optional
        For random order; by default they come in the order of public slots.
    """

    def __cinit__(self, Ring ring not None, rng=None):
        self.ring = ring
        self.rng = rng
        self.first, self.stop = ring.c_first(), ring.c_stop()
        self.base = max(self.stop - self.stop % ring.span, self.first)
        self.n = <intp_t> (self.stop - self.first)
        if 2 * ring.c_drawable() < self.n:
            self.slots = ring.ordered_slots()
            self.n = cnp.PyArray_DIM(self.slots, 0)
        elif ring.out.count:
            self.memory = ring.out.memory[: ring.out.words].copy()
            self.absent = <const uint64_t*> cnp.PyArray_DATA(self.memory)
        if rng is not None:
            self.shuffle = Shuffle(self.n, self.n)

    cdef intp_t c_slot(self, intp_t number) noexcept:
        if self.slots is not None:
            return (<const intp_t*> cnp.PyArray_DATA(self.slots))[number]
        if number < self.stop - self.base:
            return <intp_t> ((self.base + number) % self.ring.capacity)
        return <intp_t> ((self.first + number - (self.stop - self.base)) % self.ring.capacity)

    cdef bint c_can_give(self, intp_t slot) noexcept:
        """Whether the row in a slot can be drawn now, and one could when the epoch began."""
        if self.absent != NULL and self.absent[slot >> 6] >> (slot & 63) & 1:
            return False
        return self.ring.c_can_draw(slot)

    def take(self, intp_t n):
        """The next n slots whose rows can be drawn now, or as many as are left: an array of intp.

        Slots whose rows cannot be drawn now are left out of this epoch.
        """
        cdef cnp.ndarray found = np.empty(min(n, self.n - self.given), np.intp)
        cdef intp_t* slots = <intp_t*> cnp.PyArray_DATA(found)
        cdef intp_t count = 0, most = cnp.PyArray_DIM(found, 0)
        cdef bitgen_t* source
        cdef Bits bits
        if self.rng is None:
            while count < most and self.given < self.n:
                slots[count] = self.c_slot(self.given)
                count += self.c_can_give(slots[count])
                self.given += 1
            return found[:count]
        bit_generator = self.rng.bit_generator
        source = <bitgen_t*> PyCapsule_GetPointer(bit_generator.capsule, "BitGenerator")
        with bit_generator.lock:
            bits = c_bits_of(source)
            while count < most and self.given < self.n:
                slots[count] = self.c_slot(self.shuffle.c_next(&bits))
                count += self.c_can_give(slots[count])
                self.given += 1
        return found[:count]
