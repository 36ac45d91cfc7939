"""Memory of dead batches, kept for the next ones.

Large arrays that are allocated anew for every batch cost a page fault for every 4 KiB, in processes whose allocator gives
freed memory back to the system. Compiled because memory comes back from a C destructor.
"""

cimport cython
cimport numpy as cnp

from cpprb_like._typedefs cimport intp_t

import weakref

import numpy as np

cnp.import_array()

cdef enum:
    LENGTH = 16                      # pieces kept; the oldest goes first


@cython.final
cdef class Pool:
    """Pieces of memory by size. It keeps no more of them than were alive at the same time."""

    def __cinit__(self):
        self.spare = []
        self.reference = weakref.ref(self)

    cdef Lease c_lease(self, intp_t nbytes):
        """Uninitialised memory that returns here when the lease dies."""
        cdef Lease lease = Lease.__new__(Lease)
        cdef intp_t place
        lease.home = self.reference
        for place in range(len(self.spare) - 1, -1, -1):
            if cnp.PyArray_NBYTES(<cnp.ndarray> self.spare[place]) == nbytes:
                lease.memory = self.spare.pop(place)
                return lease
        lease.memory = np.empty(nbytes, np.uint8)
        return lease


@cython.final
@cython.no_gc
cdef class Lease:
    """Keeps memory with the array that uses it, and gives it back when that array dies."""

    def __dealloc__(self):
        cdef Pool pool = self.home()
        if pool is not None:
            if len(pool.spare) >= LENGTH:
                del pool.spare[0]
            pool.spare.append(self.memory)
