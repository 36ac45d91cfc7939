"""A pool of memory for large batches: memory of a batch that was freed is used for the next.

Without it each new array costs a page fault for every 4 KiB, where the allocator gives freed memory
back to the system. Compiled because memory comes back from a C destructor.
"""

cimport cython
cimport numpy as cnp

from cpprb_like._machine.aligned cimport SLACK, c_memory
from cpprb_like._c.typedefs cimport intp_t

import weakref

cnp.import_array()

cdef enum:
    MOST_KEPT = 1 << 30              # bytes
    PATIENCE = 256                   # arrays after which memory that nobody asked for is freed


@cython.final
cdef class Pool:
    """Pieces of memory by size.

    With what is on loan it never holds more than was on loan at a time, and it forgets what has not
    been asked for in a while: one huge batch does not stay.
    """

    def __cinit__(self):
        self.spare = []
        self.reference = weakref.ref(self)

    cdef Lease c_lease(self, intp_t nbytes):
        """Uninitialised memory, as that of ``c_memory``, that returns here when the lease dies."""
        cdef Lease lease = Lease.__new__(Lease)
        cdef intp_t place, size = nbytes + SLACK
        self.arrays += 1
        for place in range(len(self.spare) - 1, -1, -1):
            if cnp.PyArray_NBYTES(<cnp.ndarray> self.spare[place][0]) == size:
                lease.memory = self.spare.pop(place)[0]
                self.spare_nbytes -= size
                break
        else:
            lease.memory = c_memory(nbytes)
        lease.home = self.reference
        self.lent += size
        self.peak = max(self.peak, self.lent)
        return lease

    cdef int c_give_back(self, memory) except -1:
        cdef intp_t nbytes = cnp.PyArray_NBYTES(<cnp.ndarray> memory)
        self.lent -= nbytes
        self.spare_nbytes += nbytes
        self.spare.append((memory, self.arrays))
        return self.c_forget()

    cdef int c_pass(self) except -1:
        """An array was made that needed no memory from here, and what is kept here grows older."""
        self.arrays += 1
        return self.c_forget()

    cdef int c_forget(self) except -1:
        """Free what is too much, or has not been asked for in a while."""
        while self.spare and (
            self.spare_nbytes + self.lent > self.peak
            or self.spare_nbytes > MOST_KEPT
            or self.spare[0][1] + PATIENCE < self.arrays
        ):
            self.spare_nbytes -= cnp.PyArray_NBYTES(<cnp.ndarray> self.spare.pop(0)[0])
        return 0


@cython.final
@cython.no_gc
cdef class Lease:
    """Keeps memory with the array that uses it, and gives it back when that array dies."""

    def __dealloc__(self):
        cdef Pool pool = None if self.home is None else self.home()
        if pool is not None:
            pool.c_give_back(self.memory)
