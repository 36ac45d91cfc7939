"""Python objects in a ring, by reference.

Compiled because a call costs less than a statement of Python, and because the objects of a batch
are fetched from memory together. The references are those of a list of full length, so that
Python's garbage collector finds them. Not here: what the objects mean (``buffers._replay_memory``).
"""

cimport cython
cimport numpy as cnp
from cpython.list cimport PyList_GET_SIZE
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_GetPointer
from numpy.random cimport bitgen_t

from cpprb_like._c.arrays cimport c_index
from cpprb_like._c.copying cimport c_prefetch, c_swap
from cpprb_like._c.random_integers cimport Bits, c_bits_of, c_bounded, c_mask
from cpprb_like._c.typedefs cimport intp_t, uint64_t

import sys
from copy import deepcopy
from math import prod

import numpy as np

from cpprb_like.errors import NotEnoughDataError
from cpprb_like._machine import forks
from cpprb_like._machine.machine_memory import require

cnp.import_array()

cdef enum:
    FETCHED_OBJECTS = 128    # that are on their way from memory together
    CHECKED_OBJECTS = 1 << 25  # batches from here on are compared with the memory that is left

cdef extern from "Python.h":
    """
    /* Of a borrowed reference: nothing is counted. */
    #define CPPRB_ITEMS(list) (((PyListObject *)(list))->ob_item)
    #define CPPRB_METHOD(descriptor) (((PyMethodDescrObject *)(descriptor))->d_method)
    #define CPPRB_NEW_METHOD(cls, method) PyDescr_NewMethod((PyTypeObject *)(cls), method)
    """
    PyObject** c_items "CPPRB_ITEMS"(PyObject* items)
    intp_t c_n_items "PyList_GET_SIZE"(PyObject* items)
    ctypedef struct PyMethodDef:
        pass
    PyMethodDef* c_method_of "CPPRB_METHOD"(object descriptor)
    object PyDescr_NewMethod "CPPRB_NEW_METHOD"(object cls, PyMethodDef* method)
    void c_incref "Py_INCREF"(PyObject* obj)
    void c_xdecref "Py_XDECREF"(PyObject* obj)

cdef object global_bits = np.random.get_bit_generator


cdef inline PyObject* c_or_none(PyObject* obj) noexcept:
    """NULL is NumPy's other ``None``, and programs may write to ``buffer``."""
    return <PyObject*> None if obj == NULL else obj


cdef intp_t c_length(number) except -1:
    """A length of a result."""
    cdef intp_t length = -1
    try:
        length = c_index(number)
    except OverflowError:
        pass
    except TypeError:
        raise TypeError(
            f"batch_size: expected an integer or a tuple of integers, got {number!r}"
        ) from None
    if length < 0:
        raise ValueError(f"batch_size: expected 0 to {sys.maxsize}, got {number}")
    return length


cdef inline intp_t c_masked(bitgen_t* source, uint64_t most) noexcept nogil:
    """A uniform integer up to ``most``, as NumPy's ``RandomState`` draws it.

    Masked bits, drawn anew while they are too large: 32 where they are enough, and none for 0.
    """
    cdef uint64_t mask = c_mask(most), value = most + 1
    if most == 0:
        return 0
    while value > most:
        if most <= <uint64_t> 0xFFFFFFFF:
            value = source.next_uint32(source.state) & mask
        else:
            value = source.next_uint64(source.state) & mask
    return <intp_t> value


@cython.no_gc_clear  # the list empties itself, and without a list no method would work
cdef class ObjectRing:
    """The newest objects, at most ``max_size``.

    Parameters
    ----------
    max_size : int
        Objects held, at least 1.
    rng : numpy.random.Generator, optional
        Where the randomness comes from; NumPy's global state, as ``np.random.randint`` uses it.
    copy : bool
        Keep deep copies.
    """

    def __cinit__(self, *_args, **_options):
        self.items = []

    def __init__(self, intp_t max_size, rng=None, bint copy=False):
        if max_size < 1:
            raise ValueError(f"max_size: expected at least 1, got {max_size}")
        fresh = [None] * max_size
        if rng is not None:
            self.c_use(rng.bit_generator)
        old = self.items  # dies at the end, when everything else is in place
        self.items = fresh
        self.max_size = max_size
        self.index = 0
        self.size = 0
        self.rng = rng
        self.copies = copy
        del old

    cdef int c_check(self) except -1:
        if not c_has_memory(self):
            raise RuntimeError(f"{type(self).__name__} without memory: was __init__ called?")
        return 0

    cdef PyObject* c_at(self, intp_t age) noexcept:
        """An object, counted from the oldest: a borrowed reference."""
        return c_or_none(c_items(<PyObject*> self.items)[self.c_place(age)])

    cdef intp_t c_place(self, intp_t age) noexcept:
        """Where an object is, counted from the oldest."""
        cdef intp_t place = self.index - self.size + age
        return place if place >= 0 else place + self.max_size

    @cython.binding(False)  # a method as those of Python's own types: a quarter less for the call
    def append(self, obj, /):
        """Store a reference to an object, in place of the oldest one when the memory is full.

        Parameters
        ----------
        obj : object
            Anything. Without ``copy=True`` later changes to it show in the memory.

        Examples
        --------
        >>> from cpprb_like import ReplayMemory
        >>> memory = ReplayMemory(2)
        >>> for x in "abc":
        ...     memory.append(x)
        >>> list(memory)
        ['b', 'c']
        """
        if self.copies or not c_has_memory(self):
            self.c_append_otherwise(obj)
        else:
            c_append(self, <PyObject*> obj)

    cdef int c_append_otherwise(self, obj) except -1:
        """What calls for more registers than the commonest call, which would have to save them."""
        if self.copies:
            obj = deepcopy(obj)
        self.c_check()
        c_append(self, <PyObject*> obj)
        return 0

    @cython.binding(False)
    def sample(self, batch_size):
        """Draw objects, each with the same probability; one may come more than once.

        Parameters
        ----------
        batch_size : int or tuple of int
            How many, or the shape of the result.

        Returns
        -------
        ndarray of object, shape (batch_size,) or the given one
            The objects themselves, by reference.

        Raises
        ------
        NotEnoughDataError
            The memory is empty. It is a ``ValueError``.
        TypeError, ValueError
            ``batch_size`` is neither of the two, or below 0.
        MemoryError
            The batch does not fit into memory.

        Notes
        -----
        Cost proportional to the number of objects drawn. Without a seed they stand where
        ``np.random.randint(memory.size, size=batch_size)`` says, which reads NumPy's global state
        and leaves it behind the draw.

        Examples
        --------
        >>> import numpy as np
        >>> from cpprb_like import ReplayMemory
        >>> memory = ReplayMemory(1000)
        >>> for i in range(10):
        ...     memory.append((i, str(i)))
        >>> np.random.seed(0)
        >>> memory.sample(3).tolist()
        [(5, '5'), (0, '0'), (3, '3')]
        >>> memory.sample((2, 3)).shape
        (2, 3)
        """
        if not isinstance(batch_size, (tuple, list)):
            return self.c_draw(c_length(batch_size))
        shape = [c_length(length) for length in batch_size]
        return self.c_draw(c_length(prod(shape))).reshape(shape)

    cdef cnp.ndarray c_draw(self, intp_t n):
        if n >= CHECKED_OBJECTS:
            require(<object> n * sizeof(PyObject*), f"a batch of {n} objects")
        bits = self.bits if self.rng is not None else global_bits()
        if bits is not self.bits:
            self.c_use(bits)
        acquire, release = self.acquire, self.release  # of the very bits, whatever others do
        cdef bitgen_t* source = self.source
        cdef cnp.ndarray drawn = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_OBJECT)
        acquire()
        # Nothing in between can raise, and no error is made while the lock is held.
        cdef bint is_drawn = self.size > 0 and c_has_memory(self)
        if is_drawn:
            self.c_pick(source, <intp_t*> cnp.PyArray_DATA(drawn), n)
        release()
        if not is_drawn:
            self.c_check()
            raise NotEnoughDataError("cannot sample: the memory is empty")
        return drawn

    cdef int c_use(self, bits) except -1:
        """Draw from a bit generator from now on."""
        acquire, release = bits.lock.acquire, bits.lock.release
        self.source = <bitgen_t*> PyCapsule_GetPointer(bits.capsule, "BitGenerator")
        self.bits, self.acquire, self.release = bits, acquire, release
        forks.watch(bits.lock, forks.GENERATOR)
        return 0

    cdef void c_pick(self, bitgen_t* source, intp_t* out, intp_t n) noexcept:
        """Fill ``out`` with references to objects that are drawn; no Python code runs.

        A piece at a time: first the places of the objects, then the references, while what stands
        there is fetched from memory, as are the counts of references.
        """
        cdef Bits bits = c_bits_of(source)
        cdef bint is_global = self.rng is None
        cdef PyObject** items = c_items(<PyObject*> self.items)
        cdef PyObject* obj
        cdef intp_t k, count, size = self.size
        while n:
            count = min(n, FETCHED_OBJECTS)
            for k in range(count):
                if is_global:
                    out[k] = c_masked(source, size - 1)
                else:
                    out[k] = <intp_t> c_bounded(&bits, size)
                c_prefetch(items + out[k])
            for k in range(count):
                obj = c_or_none(items[out[k]])
                c_prefetch(obj)
                out[k] = <intp_t> obj
            for k in range(count):
                c_incref(<PyObject*> out[k])
            out += count
            n -= count

    def clear(self):
        """Forget all objects, at a cost for each of them. The generator goes on where it is."""
        cdef list old = [None] * self.size  # dies at the end, when the memory is empty
        while PyList_GET_SIZE(old) < self.size:  # more came meanwhile
            old = [None] * self.size
        self.c_check()
        self.c_exchange(old)
        self.index = 0
        self.size = 0

    cdef void c_exchange(self, list items) noexcept:
        """Put the objects of a list in the first places, and those that are there into the list."""
        c_swap(
            <char*> c_items(<PyObject*> items),
            <char*> c_items(<PyObject*> self.items),
            PyList_GET_SIZE(items) * sizeof(PyObject*),
        )

    def hold(self, objects, index):
        """Hold the given objects, oldest first; the next one goes to place ``index``."""
        cdef list given = list(objects), held
        cdef intp_t age, place, n = PyList_GET_SIZE(given), following = index
        if n > self.max_size or not (
            0 <= following < self.max_size if n == self.max_size else following == n
        ):
            raise ValueError(f"expected at most {self.max_size} objects, got {n} up to {index}")
        held = [None] * self.max_size  # with what was there before it dies, at the very end
        self.c_check()
        for age in range(n):
            place = following - n + age
            held[place if place >= 0 else place + self.max_size] = given[age]
        self.c_exchange(held)
        self.index = following
        self.size = n

    @property
    def buffer(self):
        """The memory: ndarray of object, shape (max_size,), ``None`` where no object is.

        It shows what is there now, not a copy.
        """
        cdef intp_t n = c_n_items(<PyObject*> self.items)
        cdef Shelf shelf = Shelf.__new__(Shelf)
        shelf.items = self.items
        cdef cnp.ndarray view = cnp.PyArray_SimpleNewFromData(
            1, &n, cnp.NPY_OBJECT, c_items(<PyObject*> self.items)
        )
        cnp.set_array_base(view, shelf)
        return view

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        """The object at a place counted from the oldest, or from the newest by negative numbers;
        or a list of the objects of a slice.
        """
        if isinstance(index, slice):
            return self.c_slice(index)
        cdef intp_t age
        try:
            age = c_index(index)
        except TypeError:
            raise TypeError(f"index: expected an integer or a slice, got {index!r}") from None
        except OverflowError:
            raise IndexError(f"index: there is no object {index}") from None
        self.c_check()
        if not -self.size <= age < self.size:
            expected = f"{-self.size} to {self.size - 1}" if self.size else "an object to be there"
            raise IndexError(f"index: expected {expected}, got {index}")
        return <object> self.c_at(age if age >= 0 else age + self.size)

    cdef list c_slice(self, index):
        cdef intp_t k, start = 0, step = 1, size = -1
        cdef list found = None
        cdef PyObject* obj
        while size != self.size:  # a new list may start the garbage collector, and that anything
            size = self.size
            start, stop, stride = index.indices(size)
            step = max(-size - 1, min(stride, size + 1))  # further ones lead outside as well
            found = [None] * len(range(start, stop, step))
        self.c_check()
        for k in range(PyList_GET_SIZE(found)):
            obj = self.c_at(start + k * step)
            c_incref(obj)
            c_xdecref(c_items(<PyObject*> found)[k])
            c_items(<PyObject*> found)[k] = obj
        return found

    def __iter__(self):
        """The objects that are there now, oldest first: of a list of them, 10 ns each."""
        return iter(self[:])


cdef inline bint c_has_memory(ObjectRing ring) noexcept:
    """Whether the list is there: not before ``__init__``, nor in garbage being collected."""
    return 0 < ring.max_size == c_n_items(<PyObject*> ring.items)


cdef inline void c_append(ObjectRing ring, PyObject* obj) noexcept:
    """Publish first, let go last: that may run any code, such as another append."""
    cdef PyObject** place = c_items(<PyObject*> ring.items) + ring.index
    cdef PyObject* old = place[0]
    c_incref(obj)
    place[0] = obj
    ring.index = ring.index + 1 if ring.index + 1 < ring.max_size else 0
    if ring.size < ring.max_size:
        ring.size += 1
    c_xdecref(old)


def appending(cls):
    """Give a class that derives from ``ObjectRing`` the method ``append`` as its own.

    CPython calls a compiled method at once where the object is of the very class that the method
    belongs to; otherwise it checks first, for a third of the time of the call.
    """
    cls.append = PyDescr_NewMethod(cls, c_method_of(ObjectRing.append))
    return cls


@cython.final
cdef class Shelf:
    """Keeps the list of a ring for an array that shows it."""
