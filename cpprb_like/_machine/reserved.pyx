"""Reserved memory: addresses, or the length of a file, of which little is used.

Memory that grows inside of its reservation is never copied, so addresses in it stay valid. What is
not used yet takes no memory and no disk space. An access to it ends the process, or reads zeros from
a file: callers have to make a range usable before its first byte is written.

Compiled because NumPy and ``mmap`` have no memory without access. Not here: which ranges are used
(``_rows.byte_ring``), and messages for users (``_files``).
"""

cimport cython
cimport numpy as cnp

from cpprb_like._c.typedefs cimport intp_t

import mmap
import os
import sys

cnp.import_array()

cdef extern from *:
    """
    #if defined(_WIN32)
    #define WIN32_LEAN_AND_MEAN
    #include <windows.h>
    #include <winioctl.h>
    #include <io.h>

    static void *cpprb_reserve(size_t nbytes)
    {
        return VirtualAlloc(NULL, nbytes, MEM_RESERVE, PAGE_NOACCESS);
    }
    static int cpprb_use(void *start, size_t nbytes)
    {
        return VirtualAlloc(start, nbytes, MEM_COMMIT, PAGE_READWRITE) == NULL;
    }
    #define cpprb_use_huge_pages(start, nbytes) ((void)(start), (void)(nbytes))
    #define cpprb_release(start, nbytes) ((void)(nbytes), (void)VirtualFree(start, 0, MEM_RELEASE))

    /* Elsewhere every file may have holes. A file system without them allocates the whole length. */
    static void cpprb_allow_holes(int descriptor)
    {
        DWORD unused;
        DeviceIoControl((HANDLE)_get_osfhandle(descriptor), FSCTL_SET_SPARSE, NULL, 0, NULL, 0, &unused, NULL);
    }
    #else
    #include <sys/mman.h>
    #if !defined(MAP_ANONYMOUS)
    #define MAP_ANONYMOUS MAP_ANON
    #endif
    #if !defined(MAP_NORESERVE)
    #define MAP_NORESERVE 0
    #endif

    static void *cpprb_reserve(size_t nbytes)
    {
        void *start = mmap(NULL, nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        return start == MAP_FAILED ? NULL : start;
    }
    #define cpprb_use(start, nbytes) mprotect(start, nbytes, PROT_READ | PROT_WRITE)
    #if defined(MADV_HUGEPAGE)
    #define cpprb_use_huge_pages(start, nbytes) ((void)madvise(start, nbytes, MADV_HUGEPAGE))
    #else
    #define cpprb_use_huge_pages(start, nbytes) ((void)(start), (void)(nbytes))
    #endif
    #define cpprb_release(start, nbytes) ((void)munmap(start, nbytes))
    #define cpprb_allow_holes(descriptor) ((void)(descriptor))
    #endif
    """
    void* cpprb_reserve(size_t nbytes) nogil
    int cpprb_use(void* start, size_t nbytes) nogil
    void cpprb_use_huge_pages(void* start, size_t nbytes) nogil
    void cpprb_release(void* start, size_t nbytes) nogil
    void cpprb_allow_holes(int descriptor) nogil

cdef intp_t PAGE = mmap.PAGESIZE
cdef intp_t MOST_NBYTES = sys.maxsize - PAGE


@cython.final
@cython.no_gc
cdef class Reservation:
    """Reserved memory, as long as an array refers to it."""

    cdef void* start
    cdef intp_t nbytes

    def __dealloc__(self):
        if self.start != NULL:
            cpprb_release(self.start, self.nbytes)


def reserve(intp_t nbytes, intp_t used=0):
    """Memory of ``nbytes`` zeros, of which the first ``used`` can be used.

    These have huge pages where the system has them. ``MemoryError`` if the process may not have so
    many addresses, or so much memory.
    """
    cdef Reservation reservation = Reservation.__new__(Reservation)
    cdef intp_t whole = PAGE
    if not 0 <= used <= nbytes:
        raise ValueError(f"expected at most {nbytes} bytes to use, got {used}")
    if nbytes <= MOST_NBYTES:
        whole = max(c_pages(nbytes), PAGE)
        reservation.start = cpprb_reserve(whole)
    if reservation.start == NULL:
        raise MemoryError(
            f"no addresses left for {nbytes:,} bytes; a limit of the process counts reserved memory too (ulimit -v)"
        )
    reservation.nbytes = whole
    cdef cnp.ndarray memory = cnp.PyArray_SimpleNewFromData(1, &nbytes, cnp.NPY_UINT8, reservation.start)
    cnp.set_array_base(memory, reservation)
    cpprb_use_huge_pages(reservation.start, c_pages(used))
    use(memory, 0, used)
    return memory


def use(cnp.ndarray memory not None, intp_t start, intp_t stop):
    """Make the bytes from ``start`` to ``stop`` of reserved memory usable, and the rest of their pages.

    Bytes in use keep their values. ``MemoryError`` if the system has no memory for them: then no byte
    has changed.
    """
    base = cnp.get_array_base(memory)
    if not isinstance(base, Reservation) or cnp.PyArray_NDIM(memory) != 1:
        raise TypeError("expected memory of reserve()")
    if not 0 <= start <= stop <= cnp.PyArray_DIM(memory, 0):
        raise ValueError(f"expected a part of {len(memory)} bytes, got {start} to {stop}")
    start = start // PAGE * PAGE
    if start < stop and cpprb_use(<char*> (<Reservation> base).start + start, c_pages(stop) - start):
        raise MemoryError(f"no memory left for {stop - start:,} bytes")


def reserve_file(int descriptor, intp_t nbytes):
    """Give a new file its length, without disk space where the file system has holes."""
    cpprb_allow_holes(descriptor)
    os.ftruncate(descriptor, nbytes)


def use_file(int descriptor, intp_t start, intp_t stop):
    """Reserve the disk space of the bytes from ``start`` to ``stop``, where the system can.

    The values stay. ``OSError`` if the disk is full. Where the system cannot reserve disk space, a
    write to a full disk ends the process.
    """
    start = start // PAGE * PAGE
    if start < stop and hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, start, stop - start)


cdef intp_t c_pages(intp_t nbytes) noexcept nogil:
    """Bytes of the pages of the first ``nbytes`` bytes."""
    return (nbytes + PAGE - 1) // PAGE * PAGE
