"""The calls that agent code makes at every step.

``BufferBase`` takes the keywords of ``add`` apart and hands addresses to the ring, and has the rows
copied that a sampler draws. It is compiled because a step of five numbers takes less time to store
than one Python statement to run. Not here: converting the values that do not match their
declaration (``schema``, ``casting``), what a batch may be asked for, and everything that is not
called at every step (``buffers``).
"""

cimport numpy as cnp
from cpython.number cimport PyNumber_AsSsize_t
from cpython.object cimport PyObject
from cpython.unicode cimport (
    PyUnicode_CheckExact, PyUnicode_Compare, PyUnicode_GET_LENGTH
)

from cpprb_like._column cimport Column
from cpprb_like._core cimport REVISION, WRITTEN, Moment, Ring
from cpprb_like._take cimport c_fill, c_find_arrays, c_take
from cpprb_like._typedefs cimport int64_t, intp_t, uint8_t

import sys
from functools import partial

import numpy as np

from cpprb_like.errors import NotEnoughDataError
from cpprb_like.memory import require

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
    SCRATCH_NBYTES = 8               # the widest number
    BATCH_CHECK_NBYTES = 1 << 28     # batches from here on are compared with the memory left
    PRIORITIES_LENGTH = 10

cdef str PRIORITIES = "priorities"   # the keyword of those buffers whose rows have them


cdef class BufferBase:
    """The calls that a buffer gets at every step. ``ReplayBuffer`` is the class to use.

    A subclass gives it a ``Ring`` by ``_attach``, and has the methods ``_convert(number, value)``
    for the values that do not match their declaration, and ``_check_names(given)``. One whose rows
    have priorities has ``_read_priorities(values)`` too, which gives an array with a number for
    each row, and ``_stage(first, revision, numbers)``, which gets it when the rows from row id
    ``first`` on have been written to a ring of that revision; it cannot fail.
    """

    def _attach(self, Ring ring not None, gate not None):
        self.ring = ring
        self.n_streams = ring.n_envs
        self._gate = gate
        self.is_plain = not (ring.chains or ring.ahead)
        self.has_priorities = hasattr(self, "_read_priorities")
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

    cdef intp_t c_resolve_call(
        self, PyObject** values, PyObject* names, intp_t other
    ) except -2:
        """Rows in a call whose values all match their declaration, -1 for any other call.

        The argument at place ``other`` is no field, unless that is -1.
        """
        cdef intp_t k, number, rows, place = 0, n = -1
        cdef PyObject* name
        if names == NULL or c_length(names) != self.n_fields + (other >= 0):
            return -1
        for k in range(self.n_fields):
            place += place == other
            name = c_items(names)[place]
            number = k if self.name_items[k] == name else self.c_find(name)
            if number < 0:
                return -1
            rows = self.c_resolve(number, values[place], False)
            if rows < 0 or (k > 0 and rows != n):
                return -1
            n = rows
            place += 1
        return n

    cdef object c_convert(self, intp_t number, value):
        """A value as an array that resolves; raises ``ValueError`` if it cannot be one."""
        array = (<Column> self.column_items[number]).c_cast(<PyObject*> value)
        if array is not None and self.c_resolve(number, <PyObject*> array, True) >= 0:
            return array
        return self._convert(number, value)

    cdef object c_add_converted(self, dict fields, const uint8_t* present, priorities):
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
        if priorities is not None and len(priorities) != counts[0]:
            raise ValueError(
                f"priorities: expected {counts[0]}, one for each step, got {len(priorities)}"
            )
        return self.c_publish(counts[0], present, priorities)

    cdef object c_publish(self, intp_t n, const uint8_t* present, priorities):
        """Write the rows of a call that has been resolved.

        Returns the slot of the first of them; in a buffer whose rows wait for others, that of the
        first that can be drawn now, or None.
        """
        cdef int64_t first = self.ring.state[WRITTEN], revision = self.ring.state[REVISION]
        cdef char** rows = <char**> &self.sources[0]
        if self.ring.chains:
            self.ring.c_prepare(rows, n)
        if self.ring.ahead:
            slot = self.ring.c_publish_ahead(rows, n, present)
        else:
            slot = self.ring.c_publish(rows, n, present)
        if priorities is not None:
            self._stage(first, revision, priorities)
        return slot

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
        int or None
            As ``add``.

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
        priorities = fields.pop(PRIORITIES, None) if self.has_priorities else None
        if priorities is not None:
            priorities = self._read_priorities(priorities)
        return self.c_add_converted(
            fields, <const uint8_t*> cnp.PyArray_DATA(mask), priorities
        )

    # ------------------------------------------------------------------ drawing

    cdef intp_t c_read_batch_size(self, batch_size) except -1:
        cdef intp_t n
        try:
            n = PyNumber_AsSsize_t(batch_size, OverflowError)
        except TypeError:
            raise TypeError(f"batch_size: expected an integer, got {batch_size!r}") from None
        except OverflowError:
            n = sys.maxsize if batch_size > 0 else -1
        if n < 0:
            raise ValueError(f"batch_size: expected at least 0, got {batch_size}")
        if n >= BATCH_CHECK_NBYTES // (8 + self.ring.row_nbytes):
            require(n * (8 + <object> self.ring.row_nbytes), f"a batch of {n} rows")
        return n

    def _check_batch_size(self, batch_size):
        """A number of rows that can be drawn at once."""
        return self.c_read_batch_size(batch_size)

    def _sample(self, draw, batch_size, bint replace, out, take=None, tuple columns=None):
        """A batch of the rows that ``draw`` chooses, in fresh arrays or in those of ``out``.

        ``take(slots, arrays)`` reads the columns, by default all of the ring, and may give None to
        be called again, with other slots; by default the ring reads them.
        """
        cdef intp_t n = self.c_read_batch_size(batch_size)
        cdef list arrays = None
        cdef bint converted = False
        names = self.names
        if out is not None:
            arrays = c_find_arrays(out, self.ring.columns if columns is None else columns, n)
            if arrays is None:
                if columns is not None:
                    names = [column.name for column in columns]
                arrays = self.schema.check_out(out, n, names)
                converted = True
        cdef dict batch = self.c_draw(draw, n, replace, arrays, take, columns)
        if batch is None:
            batch = self._while_writers_wait(
                partial(self._draw, draw, n, replace, arrays, take, columns)
            )
        if out is None:
            return batch
        if converted:  # what the caller gave stays in its place
            batch.update({name: out[name] for name in names})
        out.update(batch)
        return out

    def _draw(self, draw, intp_t n, bint replace, list arrays, take, tuple columns):
        """As ``c_draw``."""
        return self.c_draw(draw, n, replace, arrays, take, columns)

    cdef dict c_draw(self, draw, intp_t n, bint replace, list arrays, take, tuple columns):
        """A batch of the rows that ``draw`` chooses, or None if they changed before all was read.

        As ``ReplayBuffer._consistently``, without a Python frame.
        """
        cdef Ring ring = self.ring
        cdef Moment moment = ring.c_now()
        cdef dict batch
        try:
            if ring.c_drawable() == 0:
                raise NotEnoughDataError("cannot sample: the buffer is empty")
            slots, extra = draw(ring, n, self.rng, replace=replace)
            if len(slots) != n:
                raise ValueError(f"{self.sampler!r} drew {len(slots)} slots, expected {n}")
            if take is None and arrays is not None:
                ring.c_check_slots(slots)
                c_fill(ring, arrays, ring.columns if columns is None else columns, slots)
                batch = {}  # they are in the batch of the caller
            elif take is None:
                batch = c_take(ring, slots, None, columns)
            else:
                batch = take(slots, arrays)
        except (ValueError, IndexError):
            if ring.c_is_now(moment):
                raise
            return None  # rows went away meanwhile
        if batch is None or not ring.c_holds(moment, slots):
            return None
        for name, values in extra.items():
            if name in self.name_set or name in batch or len(values) != n:
                raise ValueError(
                    f"{self.sampler!r}: expected {n} values under a name that is no field, "
                    f"got {len(values)} as {name!r}"
                )
            batch[name] = values
        return batch


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
    cdef intp_t n = buffer.c_resolve_call(values, names, -1)
    if n >= 0 and buffer.is_plain:
        return buffer.ring.c_publish(<char**> &buffer.sources[0], n, NULL)
    if n >= 0:
        return buffer.c_publish(n, NULL, None)
    return buffer.c_add_converted(c_as_dict(values, names), NULL, None)


cdef object c_add_with_priorities(
    PyObject* self, PyObject** values, Py_ssize_t n_positional, PyObject* names
):
    """``add`` of a buffer whose rows have priorities."""
    cdef BufferBase buffer = <BufferBase> self
    cdef intp_t place = c_place_of_priorities(names)
    if place < 0 or n_positional or buffer.ring is None:
        return c_add(self, values, n_positional, names)
    priorities = <object> values[place]
    if priorities is not None:
        priorities = buffer._read_priorities(priorities)
    if buffer._paused:
        buffer.c_wait_for_turn()
    cdef intp_t n = buffer.c_resolve_call(values, names, place)
    if n >= 0 and (priorities is None or len(priorities) == n):
        return buffer.c_publish(n, NULL, priorities)
    cdef dict fields = c_as_dict(values, names)
    del fields[PRIORITIES]
    return buffer.c_add_converted(fields, NULL, priorities)


cdef intp_t c_place_of_priorities(PyObject* names) except -2:
    """Where ``priorities`` is among the keywords of a call, or -1."""
    cdef intp_t k, n = 0 if names == NULL else c_length(names)
    for k in range(n - 1, -1, -1):
        if c_items(names)[k] == <PyObject*> PRIORITIES:
            return k
    for k in range(n):
        if PyUnicode_GET_LENGTH(<object> c_items(names)[k]) == PRIORITIES_LENGTH and (
            PyUnicode_Compare(<object> c_items(names)[k], PRIORITIES) == 0
        ):
            return k
    return -1


cdef dict c_as_dict(PyObject** values, PyObject* names):
    """The keywords of a call."""
    cdef dict fields = {}
    cdef intp_t k
    if names != NULL:
        for k in range(c_length(names)):
            fields[<object> c_items(names)[k]] = <object> values[k]
    return fields


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
int or None
    Slot of the first row written. With ``Nstep`` the slot of the first row that has all its steps
    now, None if there is none.

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
>>> rb = ReplayBuffer(100, {"obs": {"shape": 3}, "rew": {"shape": ()}})
>>> rb.add(obs=[1, 2, 3], rew=0.5)
0
>>> rb.add(obs=[[1, 2, 3], [4, 5, 6]], rew=[0.5, 1])
1
"""

fast_add = PyDescr_NewMethod(<PyTypeObject*> BufferBase, &ADD)

cdef PyMethodDef ADD_WITH_PRIORITIES
ADD_WITH_PRIORITIES.ml_name = "add"
ADD_WITH_PRIORITIES.ml_meth = <void*> c_add_with_priorities
ADD_WITH_PRIORITIES.ml_flags = METH_FASTCALL | METH_KEYWORDS
ADD_WITH_PRIORITIES.ml_doc = """add($self, /, *, priorities=None, **fields)
--

Add one step, or several, as ``ReplayBuffer.add`` does.

Parameters
----------
priorities : float or array_like, shape () or (N,) or (N, 1), optional
    How important each step is: finite, at least 0. By default new steps get the greatest priority
    so far, so that each is likely to be drawn soon.
**fields
    See ``ReplayBuffer.add``.

Returns
-------
int or None
    Slot of the first row written. With ``Nstep`` the slot of the first row that has all its steps
    now, None if there is none.

Raises
------
TypeError, ValueError
    See ``ReplayBuffer.add``; or the priorities are no such numbers, or not one for each step.
    Whatever is raised, the buffer is as it was.

Notes
-----
Without ``priorities`` it costs what it costs in a uniform buffer.

Examples
--------
>>> from cpprb_like import PrioritizedReplayBuffer
>>> rb = PrioritizedReplayBuffer(100, {"obs": {"shape": 3}, "rew": {"shape": ()}})
>>> rb.add(obs=[1, 2, 3], rew=0.5)
0
>>> rb.add(obs=[[1, 2, 3], [4, 5, 6]], rew=[0.5, 1], priorities=[3, 0.1])
1
"""

fast_add_with_priorities = PyDescr_NewMethod(<PyTypeObject*> BufferBase, &ADD_WITH_PRIORITIES)
