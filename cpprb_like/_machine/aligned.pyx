"""Memory of batch arrays: aligned to cache lines, and reused.

Libraries that take a batch by DLPack or by its address need no copy of aligned memory: JAX copies
memory that is not aligned to 64 bytes. Rows of 64 bytes lie in one cache line. A small array owns
memory of this module, by NumPy's interface for allocators (NEP 49). Its freed memory is reused for
the next array of its size, as programs draw many batches of one size.

The memory of a large array is lent by a ``Pool``, and returns to the pool with the array. New
memory would cost a page fault for every 4 KiB, as the allocator returns large memory to the system.

Compiled because this module is called for each array of each batch, and because memory returns by a
C destructor. Not here: which arrays use memory of a pool (``_rows.gather``).
"""

cimport cython
cimport numpy as cnp
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_New
from cpython.ref cimport Py_INCREF
from libc.stdint cimport uint8_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memmove

from cpprb_like._c.typedefs cimport intp_t

import weakref

import numpy as np

from cpprb_like._machine.byte_order import native

cnp.import_array()

cdef extern from "Python.h":
    """
    #ifdef Py_GIL_DISABLED
    #define CPPRB_KEEPS_MEMORY 0   /* several threads may run this code at once */
    #else
    #define CPPRB_KEEPS_MEMORY 1
    #endif
    """
    bint KEEPS_MEMORY "CPPRB_KEEPS_MEMORY"
    int PyTraceMalloc_Track(unsigned int domain, uintptr_t address, size_t nbytes)

cdef extern from "numpy/arrayobject.h":
    ctypedef struct PyTypeObject:
        pass
    PyTypeObject PyArray_Type
    cnp.ndarray PyArray_NewFromDescr(
        PyTypeObject* subtype, cnp.PyArray_Descr* descr, int ndim, intp_t* dims, intp_t* strides,
        void* data, int flags, PyObject* obj
    )
    ctypedef struct PyDataMemAllocator:
        void* ctx
        void* (*malloc)(void* ctx, size_t nbytes) noexcept nogil
        void* (*calloc)(void* ctx, size_t n, size_t nbytes) noexcept nogil
        void* (*realloc)(void* ctx, void* start, size_t nbytes) noexcept nogil
        void (*free)(void* ctx, void* start, size_t nbytes) noexcept nogil
    ctypedef struct PyDataMem_Handler:
        char name[127]
        uint8_t version
        PyDataMemAllocator allocator
    ctypedef struct PyArrayObject_fields:
        char* data
        int flags
        PyObject* mem_handler

cdef enum:
    LINE = SLACK + 1             # bytes of a cache line
    PIECES = 8                   # most pieces of freed memory of each size
    SMALL_LINES = 64             # cache lines of the largest small array (4 kB); 1.1 MB in all at most
    TRACED = 389047              # NumPy's domain in ``tracemalloc``

cdef struct Spare:               # freed memory for arrays of one size
    intp_t count
    void* starts[PIECES]

cdef Spare[SMALL_LINES + 1] spare   # by cache lines; guarded by the interpreter lock
cdef PyDataMem_Handler HANDLER
HANDLER.name[:] = b"cpprb_like" + bytes(117)
HANDLER.version = 1
HANDLER.allocator.ctx = NULL
HANDLER.allocator.malloc = c_malloc
HANDLER.allocator.calloc = c_calloc
HANDLER.allocator.realloc = c_realloc
HANDLER.allocator.free = c_free
cdef object capsule = PyCapsule_New(&HANDLER, "mem_handler", NULL)
cdef PyObject* handler = <PyObject*> capsule


def empty(tuple shape not None, cnp.dtype dtype not None):
    """An uninitialised, aligned C-contiguous array. Arrays of Python objects have None values."""
    cdef intp_t[cnp.NPY_MAXDIMS] dims
    cdef intp_t k, ndim = len(shape)
    if dtype.hasobject or ndim > cnp.NPY_MAXDIMS:
        return np.empty(shape, dtype)
    for k in range(ndim):
        dims[k] = shape[k]
        if dims[k] < 0:
            raise ValueError(f"shape: expected no negative length, got {shape}")
    return c_empty(dtype, ndim, dims)


def aligned(array):
    """As ``c_aligned``."""
    return c_aligned(array)


cdef object c_aligned(array):
    """The array if it is C-contiguous, aligned, writeable and in the machine's byte order.

    Otherwise a copy with these properties. Other objects than arrays of numbers are returned
    unchanged.
    """
    if not cnp.PyArray_CheckExact(array):
        return array
    cdef bint is_placed = (
        cnp.PyArray_IS_C_CONTIGUOUS(array)
        and cnp.PyArray_ISWRITEABLE(array)
        and <uintptr_t> cnp.PyArray_DATA(array) % LINE == 0
    )
    cdef bint is_structured = cnp.PyArray_TYPE(array) == cnp.NPY_VOID
    if is_placed and cnp.PyArray_ISNOTSWAPPED(array) and not is_structured:
        return array
    kind = native(array.dtype)
    if kind.hasobject or (is_placed and kind is array.dtype):
        return array
    copy = c_empty(kind, cnp.PyArray_NDIM(array), cnp.PyArray_DIMS(array))
    copy[...] = array
    return copy


cdef cnp.ndarray c_numbers(intp_t ndim, intp_t* dims, int typenum):
    """An uninitialised array of numbers: ``PyArray_SimpleNew``, aligned."""
    return c_empty(cnp.PyArray_DescrFromType(typenum), ndim, dims)


cdef cnp.ndarray c_empty(cnp.dtype kind, intp_t ndim, intp_t* dims):
    """An uninitialised array of a dtype without Python objects."""
    cdef intp_t k, nbytes = kind.itemsize
    cdef void* data
    cdef cnp.ndarray array
    cdef PyArrayObject_fields* fields
    for k in range(ndim):
        nbytes *= dims[k]
    if nbytes >= LARGE_NBYTES:
        memory = c_memory(nbytes)
        return c_over(kind, ndim, dims, c_start(memory), memory)
    array = c_wrap(kind, ndim, dims, <void*> LINE)  # raises for impossible shapes; the address is replaced below
    data = c_malloc(NULL, nbytes)
    if data == NULL:
        raise MemoryError(f"no memory left for an array of {nbytes} bytes")
    PyTraceMalloc_Track(TRACED, <uintptr_t> data, nbytes)
    fields = <PyArrayObject_fields*> array
    fields.data, fields.mem_handler = <char*> data, handler
    fields.flags |= cnp.NPY_ARRAY_OWNDATA
    Py_INCREF(<object> handler)
    return array


cdef cnp.ndarray c_over(cnp.dtype kind, intp_t ndim, intp_t* dims, void* data, owner):
    """An array over memory, with a reference to the owner of the memory."""
    array = c_wrap(kind, ndim, dims, data)
    cnp.set_array_base(array, owner)
    return array


cdef cnp.ndarray c_wrap(cnp.dtype kind, intp_t ndim, intp_t* dims, void* data):
    Py_INCREF(kind)
    return PyArray_NewFromDescr(
        &PyArray_Type, <cnp.PyArray_Descr*> kind, <int> ndim, dims, NULL, data,
        cnp.NPY_ARRAY_CARRAY, NULL,
    )


cdef cnp.ndarray c_memory(intp_t nbytes):
    """An array of bytes, with room to start at a cache line. NumPy asks for huge pages."""
    nbytes += SLACK
    return cnp.PyArray_SimpleNew(1, &nbytes, cnp.NPY_UINT8)


cdef void* c_start(cnp.ndarray memory) noexcept:
    """The first cache line in memory of ``c_memory``."""
    cdef uintptr_t address = <uintptr_t> cnp.PyArray_DATA(memory)
    return <void*> ((address + SLACK) // LINE * LINE)


# Two bytes precede an array. The first is its distance from the start of the allocated memory. The
# second is its number of cache lines if the memory may be reused, or else 0.


cdef void* c_align(char* raw, intp_t lines) noexcept nogil:
    """The first cache line behind the start of allocated memory."""
    cdef intp_t ahead = LINE - <intp_t> (<uintptr_t> raw % LINE)
    raw[ahead - 2] = <char> ahead
    raw[ahead - 1] = <char> lines
    return raw + ahead


cdef intp_t c_ahead(void* start) noexcept nogil:
    return (<char*> start - 2)[0]


cdef void* c_malloc(void* ctx, size_t nbytes) noexcept nogil:
    cdef intp_t lines = max(<intp_t> ((nbytes + SLACK) // LINE), 1)
    cdef bint is_small = lines <= SMALL_LINES
    if is_small and spare[lines].count:
        spare[lines].count -= 1
        return spare[lines].starts[spare[lines].count]
    cdef char* raw = <char*> malloc((lines + 1) * LINE)
    return NULL if raw == NULL else c_align(raw, lines if is_small else 0)


cdef void* c_calloc(void* ctx, size_t n, size_t nbytes) noexcept nogil:
    if nbytes and n > (<size_t> -1 - LINE) // nbytes:
        return NULL
    cdef char* raw = <char*> calloc(n * nbytes + LINE, 1)
    return NULL if raw == NULL else c_align(raw, 0)


cdef void* c_realloc(void* ctx, void* start, size_t nbytes) noexcept nogil:
    if start == NULL:
        return c_malloc(ctx, nbytes)
    cdef intp_t ahead = c_ahead(start)
    cdef char* raw = <char*> realloc(<char*> start - ahead, nbytes + LINE)
    if raw == NULL:
        return NULL
    cdef intp_t wanted = LINE - <intp_t> (<uintptr_t> raw % LINE)
    if wanted != ahead:
        memmove(raw + wanted, raw + ahead, nbytes)
    return c_align(raw, 0)


cdef void c_free(void* ctx, void* start, size_t nbytes) noexcept nogil:
    if start == NULL:
        return
    cdef intp_t lines = (<char*> start - 1)[0]
    if KEEPS_MEMORY and lines and spare[lines].count < PIECES:
        spare[lines].starts[spare[lines].count] = start
        spare[lines].count += 1
    else:
        free(<char*> start - c_ahead(start))


cdef enum:
    MOST_SPARE = 1 << 30             # bytes of unused memory in a pool
    PATIENCE = 256                   # arrays after which unused memory is freed


@cython.final
cdef class Pool:
    """Pool of large pieces of memory.

    Unused memory and memory on loan never exceed the greatest loan at any time. Memory that is
    unused for PATIENCE arrays is freed, so the memory of one huge batch does not stay.
    """

    def __cinit__(self):
        self.spare = []
        self.reference = weakref.ref(self)

    cdef Lease c_lease(self, intp_t nbytes):
        """Uninitialised memory as of ``c_memory``, which returns here when the lease is deleted."""
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
        return self.c_free_spare()

    cdef int c_pass(self) except -1:
        """Count an array without memory of the pool: the age of spare memory is a number of arrays."""
        self.arrays += 1
        return self.c_free_spare()

    cdef int c_free_spare(self) except -1:
        """Free memory above the limits, and memory that was unused for PATIENCE arrays."""
        while self.spare and (
            self.spare_nbytes + self.lent > self.peak
            or self.spare_nbytes > MOST_SPARE
            or self.spare[0][1] + PATIENCE < self.arrays
        ):
            self.spare_nbytes -= cnp.PyArray_NBYTES(<cnp.ndarray> self.spare.pop(0)[0])
        return 0


@cython.final
@cython.no_gc
cdef class Lease:
    """Loan of memory to an array. The memory returns to the pool when the array is deleted."""

    def __dealloc__(self):
        cdef Pool pool = None if self.home is None else self.home()
        if pool is not None:
            pool.c_give_back(self.memory)
