"""The calls that agent code makes at every step.

``BufferBase`` takes the keywords of ``add`` apart and hands addresses to the ring. It is compiled
because a step of five numbers takes less time to store than one Python statement to run. Not here:
converting the values that do not match their declaration (``schema``, ``casting``), and everything
that is not called at every step (``buffers``).
"""

cimport numpy as cnp
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_CheckExact, PyUnicode_Compare

from cpprb_like._column cimport Column
from cpprb_like._core cimport Ring
from cpprb_like._typedefs cimport intp_t, uint8_t

import numpy as np

cnp.import_array()

cdef extern from "Python.h":
    """
    /* The items of a tuple, without counting a reference to each. */
    #define CPPRB_ITEMS(tuple) (((PyTupleObject *)(tuple))->ob_item)
    """
    ctypedef struct PyMethodDef:
        const char* ml_name
        void* ml_meth
        int ml_flags
        const char* ml_doc
    ctypedef struct PyTypeObject:
        pass
    int METH_FASTCALL
    int METH_KEYWORDS
    object PyDescr_NewMethod(PyTypeObject* type, PyMethodDef* method)
    PyObject** c_items "CPPRB_ITEMS"(PyObject* tuple)
    Py_ssize_t c_length "PyTuple_GET_SIZE"(PyObject* tuple)

cdef enum:
    SCRATCH_NBYTES = 8           # the widest number


cdef class BufferBase:
    """The calls that a buffer gets at every step. ``ReplayBuffer`` is the class to use.

    A subclass gives it a ``Ring`` by ``_attach``, and ``_convert(number, value)`` for the values
    that do not match their declaration.
    """

    def _attach(self, Ring ring not None, gate not None):
        self.ring = ring
        self.n_streams = ring.n_envs
        self._gate = gate
        self.names = tuple([column.name for column in ring.columns])
        self.name_set = frozenset(self.names)
        self.n_fields = len(self.names)
        self.name_items = c_items(<PyObject*> self.names)
        self.column_items = c_items(<PyObject*> ring.columns)
        self.sources = np.zeros(self.n_fields, np.intp)
        self.scratch = np.zeros(self.n_fields * SCRATCH_NBYTES, np.uint8)

    def _read_present(self, present):
        try:
            return np.array(present)
        except ValueError as error:
            raise ValueError(f"present: expected bools, one for each environment: {error}") from None

    cdef int c_wait_for_turn(self) except -1:
        """Wait while a reader needs the rows to stay as they are."""
        with self._gate:
            return 0

    cdef intp_t c_find(self, PyObject* name) noexcept:
        """Number of the field of this name, -1 if there is none."""
        cdef intp_t number
        for number in range(self.n_fields):
            if self.name_items[number] == name:
                return number
        if not PyUnicode_CheckExact(<object> name):  # its own idea of equality could repeat a field
            return -1
        for number in range(self.n_fields):
            if PyUnicode_Compare(<object> self.name_items[number], <object> name) == 0:
                return number
        return -1

    cdef inline intp_t c_resolve(self, intp_t number, PyObject* value, bint converted) except -2:
        """Rows in a value, its address noted in ``sources``; -1 if it needs conversion."""
        cdef PyObject* column = self.column_items[number]
        cdef intp_t rows = (<Column> column).c_locate(
            value,
            converted,
            <char*> &self.scratch[number * SCRATCH_NBYTES],
            &self.sources[(<Column> column).place],
        )
        return -1 if self.n_streams > 1 and rows != self.n_streams else rows

    cdef intp_t c_resolve_call(self, PyObject** values, PyObject* names) except -2:
        """Rows in a call whose values all match their declaration, -1 for any other call."""
        cdef intp_t k, number, rows, n = -1
        cdef PyObject* name
        if names == NULL or c_length(names) != self.n_fields:
            return -1
        for k in range(self.n_fields):
            name = c_items(names)[k]
            number = k if self.name_items[k] == name else self.c_find(name)
            if number < 0:
                return -1
            rows = self.c_resolve(number, values[k], False)
            if rows < 0 or (k > 0 and rows != n):
                return -1
            n = rows
        return n

    cdef object c_convert(self, intp_t number, value):
        """A value as an array that resolves; raises ``ValueError`` if it cannot be one."""
        array = (<Column> self.column_items[number]).c_cast(<PyObject*> value)
        if array is not None and self.c_resolve(number, <PyObject*> array, True) >= 0:
            return array
        return self._convert(number, value)

    cdef object c_add_converted(self, dict fields, const uint8_t* present):
        """Add a call in which some value needs conversion, or report what is wrong with it."""
        if self.ring is None:
            raise RuntimeError(f"{type(self).__name__}.__init__ was not called")
        if fields.keys() != self.name_set:
            self._check_names(fields)
        cdef Ring ring = self.ring
        cdef list values = [fields[name] for name in self.names]
        cdef list counts = []
        cdef intp_t number
        for number in range(len(values)):
            if self.c_resolve(number, <PyObject*> values[number], False) < 0:
                values[number] = self.c_convert(number, values[number])
                if self.ring is not ring:
                    raise RuntimeError("the buffer was initialised anew while a value was read")
        if self._paused:
            self.c_wait_for_turn()
        # From here to the publication no Python code runs that could change a value.
        for number in range(len(values)):
            counts.append(self.c_resolve(number, <PyObject*> values[number], True))
        if counts.count(counts[0]) != len(counts) or counts[0] < 0:
            found = ", ".join(f"{name!r} has {count}" for name, count in zip(self.names, counts))
            raise ValueError(f"fields disagree on the number of steps: {found}")
        if present != NULL and counts[0] != self.ring.n_envs:
            raise ValueError(
                f"expected one step of each of {self.ring.n_envs} environments, got {counts[0]}"
            )
        return self.ring.c_publish(<char**> &self.sources[0], counts[0], present)

    def add_where(self, present, /, **fields):
        """Add one time step of all environments, in which only some environments have a step.

        Parameters
        ----------
        present : array_like of bool, shape (n_envs,)
            Which environments have a step. The rows of the others are kept but absent: never drawn
            and not counted.
        **fields
            As for ``add``, shape ``(n_envs, *shape)``, absent environments included.

        Returns
        -------
        int
            Slot of the first row written.

        Raises
        ------
        TypeError, ValueError
            As ``add``; nothing has changed then.

        Examples
        --------
        >>> from cpprb_like import ReplayBuffer
        >>> rb = ReplayBuffer(100, {"obs": {"shape": 2}}, n_envs=2)
        >>> rb.add_where([True, False], obs=[[1, 2], [3, 4]])
        0
        >>> len(rb)
        1
        """
        if self.ring is None:
            raise RuntimeError(f"{type(self).__name__}.__init__ was not called")
        cdef cnp.ndarray mask = self._read_present(present)
        if mask.dtype != np.bool_ or np.shape(mask) != (self.ring.n_envs,):
            raise ValueError(
                f"present: expected bool of shape ({self.ring.n_envs},), "
                f"got {mask.dtype} of shape {np.shape(mask)}"
            )
        return self.c_add_converted(fields, <const uint8_t*> cnp.PyArray_DATA(mask))


cdef object c_add(PyObject* self, PyObject** values, Py_ssize_t n_positional, PyObject* names):
    """``BufferBase.add`` by vectorcall: keywords come as a tuple of names, no dict is built."""
    cdef BufferBase buffer = <BufferBase> self
    if n_positional:
        raise TypeError(
            f"add() takes fields by name, got {n_positional} positional value(s); "
            f"fields: {', '.join(buffer.names)}"
        )
    if buffer._paused:
        buffer.c_wait_for_turn()
    cdef intp_t k, n = buffer.c_resolve_call(values, names)
    if n >= 0:
        return buffer.ring.c_publish(<char**> &buffer.sources[0], n, NULL)
    cdef dict fields = {}
    if names != NULL:
        for k in range(c_length(names)):
            fields[<object> c_items(names)[k]] = <object> values[k]
    return buffer.c_add_converted(fields, NULL)


cdef PyMethodDef ADD
ADD.ml_name = "add"
ADD.ml_meth = <void*> c_add
ADD.ml_flags = METH_FASTCALL | METH_KEYWORDS
ADD.ml_doc = """add($self, /, **fields)
--

Add one step, or several.

Parameters
----------
**fields
    A value for each field of ``env_dict``: one step (the field's shape), or N steps with a leading
    axis of the same length N in every field. With ``n_envs=k`` above 1 the leading axis is always
    k, one step of each environment. A field of shape ``(1,)`` also takes scalars, and ``(N,)`` for
    N steps.

Returns
-------
int
    Slot of the first row written.

Raises
------
TypeError
    A field is missing, unknown or given by position.
ValueError
    A value has the wrong shape or no faithful value of the declared dtype, or fields disagree on N.
    Whatever is raised, the buffer is as it was.

Notes
-----
A copy of the bytes when values have the declared dtype and are C-contiguous, or are Python or NumPy
scalars; any other value of the call is converted by NumPy first. N may exceed the capacity: the
newest rows stay.

Examples
--------
>>> from cpprb_like import ReplayBuffer
>>> rb = ReplayBuffer(100, {"obs": {"shape": 3}, "rew": {}})
>>> rb.add(obs=[1, 2, 3], rew=0.5)
0
>>> rb.add(obs=[[1, 2, 3], [4, 5, 6]], rew=[0.5, 1])
1
"""

fast_add = PyDescr_NewMethod(<PyTypeObject*> BufferBase, &ADD)
