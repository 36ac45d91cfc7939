"""``add`` and ``sample``: the calls that a program makes at every step, compiled.

``BufferBase`` resolves the keyword arguments of ``add`` to addresses for the ring, and gathers the
rows that a sampler draws. Compiled because storing a step of five numbers takes less time than one
Python statement. Not here: numbers of other dtypes than declared (``_rows.column``), values that
need Python to convert them (``_fields.schema``, ``_fields.casting``), and all other methods
(``_replay``).
"""

cimport cython
cimport numpy as cnp
from cpython.number cimport PyNumber_AsSsize_t
from cpython.object cimport PyObject, PyObject_GenericSetAttr
from cpython.unicode cimport (
    PyUnicode_CheckExact, PyUnicode_Compare, PyUnicode_FromObject, PyUnicode_GET_LENGTH
)
from libc.string cimport memcpy

from cpprb_like._machine.aligned cimport c_aligned
from cpprb_like._rows.chained cimport Chain
from cpprb_like._rows.column cimport Column
from cpprb_like.buffers._draw_counts cimport DrawCounts
from cpprb_like._core cimport (
    CLEARS, EPISODES, WRITTEN, Beside, Moment, Ring, c_begin_edit, c_end_edit, c_living, c_sync_open, c_walk_of,
)
from cpprb_like._rows.changes cimport c_clear_rows, c_end_episode, c_make_room, c_mark_disk, c_rewind
from cpprb_like._rows.item_ring cimport Entry, ItemRing, Living, c_unpack
from cpprb_like._rows.new_items cimport NewItems
from cpprb_like._rows.walk cimport Walk
from cpprb_like._c.copying cimport CACHE_LINE
from cpprb_like._c.number_casts cimport NO_NUMBER
from cpprb_like._rows.gather cimport c_find_arrays, c_gather_columns, c_take_rows, c_write_columns
from cpprb_like._rows.row_handles cimport c_find_rows
from cpprb_like._c.typedefs cimport int64_t, intp_t, uint8_t

import sys
from functools import partial

import numpy as np

from cpprb_like.errors import NotEnoughDataError
from cpprb_like._arguments.foreign_arrays import read_array
from cpprb_like.buffers._draw_counts import WORDS
from cpprb_like._machine.machine_memory import require
from cpprb_like.samplers._base import as_drawn

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
        PyObject* tp_dict
    int METH_FASTCALL
    int METH_KEYWORDS
    object PyDescr_NewMethod(PyTypeObject* type, PyMethodDef* method)
    void PyType_Modified(PyTypeObject* type)
    PyObject** c_items "CPPRB_ITEMS"(PyObject* tuple)
    Py_ssize_t c_length "PyTuple_GET_SIZE"(PyObject* tuple)
    PyObject** c_list_items "PySequence_Fast_ITEMS"(PyObject* items)
    PyObject* c_look_up "PyDict_GetItemWithError"(PyObject* items, PyObject* name) noexcept
    intp_t c_as_ssize_t "PyLong_AsSsize_t"(PyObject* number) noexcept

cdef enum:
    SCRATCH_NBYTES = 8               # bytes of the widest number
    FEW_NAMES = 8                    # up to so many names, comparing them is faster than a dict
    PRIORITIES_LENGTH = 10
    MOST_ROOM = 1 << 20              # bytes of reused memory for casts of a field
    BATCH_CHECK_NBYTES = 1 << 26     # least batch that is compared with the memory left
    MOST_ATTEMPTS = 8                # attempts to read while writers wait
    NEVER = -2                       # no call has so many fields
    WATCHED_VALUES = 1000            # values of a chained field that are counted before a warning

cdef int64_t NO_LIMIT = 0x7FFFFFFFFFFFFFFF  # row ids are below it
cdef str PRIORITIES = "priorities"   # keyword of ``add``
cdef object MISSING = object()
cdef object NOT_READY = object()
cdef tuple OPTIONS = ("beta", "replace", "out", "indexes", "fields")   # options of ``sample``
# Types that NumPy reads without a protocol of foreign arrays; masked arrays are among them.
cdef tuple PLAIN_TYPES = (np.ndarray, np.generic, list, tuple, str, bytes, int, float, complex)


@cython.final
cdef class SampleOptions:
    """Options of ``sample`` beside the number of items, under the names of its arguments.

    ``Source.sample`` makes the object, and each source passes it on unchanged. Compiled because a named
    tuple of Python takes as long to make as a draw of 32 rows.
    """

    def __cinit__(
        self, beta=None, bint replace=True, out=None, bint indexes=False, fields=None
    ):
        self.beta = beta
        self.replace = replace
        self.out = out
        self.indexes = indexes
        self.fields = fields

    def but(self, **changes):
        """These options with some changes."""
        return SampleOptions(**{**self.keywords, **changes})

    @property
    def keywords(self):
        """The options that differ from the defaults: keyword arguments of ``sample``."""
        found = {name: getattr(self, name) for name in OPTIONS}
        return {name: one for name, one in found.items() if one is not getattr(DEFAULTS, name)}

    @property
    def further(self):
        """Keyword arguments of ``Sampler.draw`` that only some samplers take."""
        return {} if self.beta is None else {"beta": self.beta}

    @property
    def of_sampler(self):
        """Keyword arguments of ``Sampler.draw``."""
        return {"replace": self.replace, **self.further}

    cdef bint c_is_plain(self) noexcept:
        """Whether draws and reads are those of a call without options."""
        return self.beta is None and self.fields is None and not self.indexes


DEFAULTS = SampleOptions()  # compared by identity: a call without options makes no object


cdef class BufferBase:
    """Compiled base class of ``ReplayBuffer``, which is the class to use.

    A subclass passes it a ``Ring`` by ``_attach``, overrides the methods that raise
    ``NotImplementedError`` here, and has the attributes ``schema``, ``sampler``, ``rng`` and
    ``_take``.
    """

    def _while_writers_wait(self, attempt):
        """Call ``attempt()`` while writers wait, until it returns a result."""
        return self._hold(True, _try_often, attempt)

    def _read_priorities(self, priorities):
        """Priorities as a ``Beside``, for ``c_publish_rows`` of the rows."""
        raise NotImplementedError

    def _add_items(self, given, mask):
        """``add`` of ragged rows whose values need Python, or ``add_where`` with the ``mask``."""
        raise NotImplementedError

    def _prepare_files(self):
        """Prepare the files for the rows of the ``add`` that found them not ready."""
        raise NotImplementedError

    def _attach(
        self, Ring ring not None, lock not None, tuple further not None, dict attributes not None
    ):
        """Use this ring, and set these attributes: all of it or nothing.

        ``further`` are names of columns that batches have beside the fields, whatever the sampler.
        """
        # Replaced objects die at the end of the call, as their finalizers may run any code.
        old = Attachment(self, ring, lock, further, attributes).use()
        del old

    @property
    def ring(self):
        """The ring buffer: rows, their order and their flags. It is read-only."""
        if self.c_ring is None:
            raise RuntimeError(not_initialised(self))
        return self.c_ring

    cdef int c_wait_for_turn(self) except -1:
        """Wait while a reader needs the rows unchanged; raise if the buffer is read-only."""
        if self.c_ring is not None:
            self.c_ring.c_check_writable()
        with self._lock:
            return 0

    def _hold(self, bint pauses, call, *arguments):
        """Return ``call(*arguments)``, while other threads that write wait.

        With ``pauses`` other threads wait before they read any value; calls of this thread do not wait.
        While the lock is held, signal handlers run only inside ``call``, and not where a ``with``
        statement of Python begins and ends. So an interrupt never leaves the lock locked.
        """
        cdef bint outer
        if self.c_ring is None:
            raise RuntimeError(not_initialised(self))
        with self._lock:
            outer = self._paused
            self._paused = outer or pauses
            try:
                return call(*arguments)
            finally:
                self._paused = outer

    def _end_episodes(self, intp_t first, intp_t stop):
        """Truncate the open episodes of the streams from ``first`` to ``stop``."""
        cdef intp_t stream
        with self._lock:
            for stream in range(first, stop):
                c_end_episode(self.c_ring, stream)

    def _clear(self):
        """Remove all rows."""
        if self.c_ring is None:
            raise RuntimeError(not_initialised(self))
        with self._lock:
            c_clear_rows(self.c_ring)

    def _rewind(self, int64_t row):
        """See ``c_rewind``. Other threads that write wait."""
        return c_rewind(self.c_ring, row)

    cdef int c_check_ring(self, Ring ring) except -1:
        """Raise if the buffer has got another ring since a call began."""
        if self.c_ring is not ring:
            raise RuntimeError("the buffer was initialised anew while a value was read")
        return 0

    # ------------------------------------------------------------------ values

    cdef intp_t c_find_field(self, PyObject* name) noexcept:
        """Number of the field of this name, -1 if there is none."""
        cdef intp_t number
        cdef PyObject* found
        if self.n_fields <= FEW_NAMES:
            for number in range(self.n_fields):
                if self.name_items[number] == name:
                    return number
        if not PyUnicode_CheckExact(<object> name):  # its __eq__ could be true for two names
            return -1
        found = c_look_up(<PyObject*> self.numbers, name)
        return -1 if found == NULL else c_as_ssize_t(found)

    cdef inline intp_t c_resolve(self, intp_t number, PyObject* value, bint converted) except -2:
        """Number of rows of a value, its address put into ``sources``; -1 if it needs Python.

        Runs no Python code; numbers of another kind are cast into memory of the field.
        """
        cdef PyObject* column = self.column_items[number]
        cdef intp_t rows = (<Column> column).c_locate(
            value,
            converted,
            self.n_streams,
            <char*> &self.scratch[number * SCRATCH_NBYTES],
            &self.sources[(<Column> column).place],
        )
        return rows if rows >= 0 else self.c_resolve_cast(number, value)

    cdef intp_t c_resolve_cast(self, intp_t number, PyObject* value) except -2:
        """``c_resolve`` for numbers of another kind, with gaps between them, or in lists."""
        cdef PyObject* column = self.column_items[number]
        cdef intp_t rows = (<Column> column).c_measure(value, self.n_streams)
        cdef intp_t nbytes = (<Column> column).nbytes, size
        cdef PyObject* room
        if rows < 0 or rows > MOST_ROOM // max(nbytes, 1):
            return -1
        room = c_list_items(<PyObject*> self.rooms)[number]
        if room == <PyObject*> None or cnp.PyArray_NBYTES(<cnp.ndarray> room) < rows * nbytes:
            size = max(2 * rows * nbytes, CACHE_LINE)
            self.rooms[number] = cnp.PyArray_SimpleNew(1, &size, cnp.NPY_UINT8)
            room = c_list_items(<PyObject*> self.rooms)[number]
        if not (<Column> column).c_fill(value, <char*> cnp.PyArray_DATA(<cnp.ndarray> room)):
            return -1
        self.sources[(<Column> column).place] = <intp_t> cnp.PyArray_DATA(<cnp.ndarray> room)
        return rows

    cdef intp_t c_resolve_call(
        self, PyObject** values, PyObject* names, intp_t other
    ) except -2:
        """Number of rows of a call whose values need no Python; -1 for any other call.

        The argument at place ``other`` is no field; -1 if all are fields.
        """
        cdef intp_t k, number, rows, place = 0, n = -1
        cdef PyObject* name
        if names == NULL or c_length(names) != self.n_resolved + (other >= 0):
            return -1
        for k in range(self.n_fields):
            place += place == other
            name = c_items(names)[place]
            number = k if self.name_items[k] == name else self.c_find_field(name)
            if number < 0:
                return -1
            rows = self.c_resolve(number, values[place], False)
            if rows < 0 or (k > 0 and rows != n):
                return -1
            n = rows
            place += 1
        return n

    cdef bint c_resolve_items(self, PyObject** values, PyObject* names, intp_t other) except -1:
        """Take the values of a call of one row; false for a call that needs Python, or is wrong.

        Runs no Python code. The argument at place ``other`` is no field.
        """
        cdef intp_t k, number, axis, place = 0
        cdef NewItems given = self.new_items
        cdef ItemRing ring
        if self.n_streams > 1 or names == NULL or c_length(names) != self.n_fields + (other >= 0):
            return False
        given.c_hold(1)
        for axis in range(given.n_axes):
            given.counts[axis, 0] = -1
        for k in range(self.n_fields):
            place += place == other
            name = c_items(names)[place]
            number = k if self.name_items[k] == name else self.c_find_field(name)
            if number < 0:
                return False
            if given.c_is_ragged(number):
                if not given.c_take(number, values[place]):
                    return False
            elif self.c_resolve(number, values[place], False) != 1:
                return False
            place += 1
        for axis in range(given.n_axes):
            ring = <ItemRing> given.rings[axis]
            if given.counts[axis, 0] < 0 or given.c_order_items(axis, False) > ring.room:
                return False
            self.sources[ring.entry.place] = <intp_t> given.c_entries(axis)
        return given.c_are_in_range(&self.sources[0])

    def _publish_items(
        self, Ring ring not None, intp_t n, list values not None, list counts not None,
        dict items not None, cnp.ndarray present, Beside beside,
    ):
        """Add n rows whose items fit into the rooms; see ``c_publish_rows`` for the result.

        ``values`` has a dense array for each fixed field, by number; see ``NewItems.load`` for the items.
        """
        cdef intp_t number, axis
        cdef ItemRing memory
        cdef Column column
        cdef cnp.ndarray array
        if beside is not None and beside.ring is not None and beside.ring is not ring:
            raise RuntimeError("the sampler keeps the priorities of another buffer")
        if beside is not None and beside.n != n:
            raise ValueError(f"priorities: expected {n}, one for each step, got {beside.n}")
        while True:
            self.new_items.c_hold(n)  # Python code may run here, but not from the check of turns on
            if present is not None:
                ring.c_expect_absent()
            if self._paused:
                self.c_wait_for_turn()
                continue
            self.c_check_ring(ring)
            self.new_items.load(n, counts, items)
            for number in range(self.n_fields):
                if not self.new_items.c_is_ragged(number):
                    array = <cnp.ndarray> values[number]
                    column = <Column> ring.columns[number]
                    if cnp.PyArray_NBYTES(array) != n * column.nbytes:
                        raise ValueError(f"field {column.name!r}: expected a dense array of {n} rows")
                    self.sources[column.place] = <intp_t> cnp.PyArray_DATA(array)
            for axis in range(self.new_items.n_axes):
                memory = <ItemRing> ring.items[axis]
                self.sources[memory.entry.place] = <intp_t> self.new_items.c_entries(axis)
            if not self.c_is_ready(n):  # before rows leave, as this may fail
                self._prepare_files()
            elif not c_make_room(ring, self.new_items, n, NO_LIMIT):
                return self.c_publish_rows(
                    n, NULL if present is None else <const uint8_t*> cnp.PyArray_DATA(present), beside
                )

    def _move_items(
        self, Ring ring not None, const int64_t[::1] indexes, list columns not None,
        list arrays not None, list counts not None, dict items not None, list moved not None,
        tuple kept not None, const uint8_t[::1] stays,
    ):
        """Update rows by their handles, and place items of the axes ``moved`` anew.

        ``columns`` and ``arrays`` are those of ``gather.write``, and ``kept`` the items of the rows that
        ``stays`` says keep their places. ``counts`` and ``items``, see ``NewItems.load``, are those of the
        others. Raises ``ValueError`` if there is no place for them while all these rows are there.
        """
        cdef intp_t n = indexes.shape[0], axis, k
        cdef int64_t first
        cdef ItemRing memory
        cdef cnp.ndarray found
        cdef const intp_t* slots
        cdef Living living
        cdef list entries = []
        cdef char* entry
        ring.c_check_writable()
        for axis in moved:
            memory = <ItemRing> ring.items[axis]
            memory.c_expect_moved(n)
            entries.append(np.zeros((n, 2), memory.entry.dtype))
        columns, arrays = [*columns, *[ring.items[axis].entry for axis in moved]], [*arrays, *entries]
        c_mark_disk(ring, c_find_rows(ring, indexes))
        while True:
            self.c_check_ring(ring)
            self.new_items.load(n, counts, items)
            found = c_find_rows(ring, indexes)
            slots = <const intp_t*> cnp.PyArray_DATA(found)
            first = NO_LIMIT
            for k in range(n):
                if slots[k] >= 0:
                    first = min(first, ring.c_row_at(slots[k]))
            if not c_make_room(ring, self.new_items, 0, first):
                break
        # No Python code runs from here on, and no object is made: a finalizer might add rows.
        c_begin_edit(ring)  # a forked child finds other items in rows that have left
        self.new_items.c_write(True)
        c_end_edit(ring)
        for k in range(len(moved)):
            memory = <ItemRing> ring.items[<intp_t> moved[k]]
            entry = <char*> cnp.PyArray_DATA(<cnp.ndarray> entries[k])
            living = c_living(ring, memory)
            c_fill_entries(memory, &living, self.new_items.c_entries(<intp_t> moved[k]), slots, n, stays, entry)
        c_write_columns(ring, columns, arrays, kept, slots, n)

    cdef list c_convert_call(
        self, Ring ring, PyObject** values, PyObject* names, intp_t other
    ):
        """The values of a call in the order of the fields; Python converts values that C cannot read.

        Raises for wrong names, and for values that cannot be converted. ``values`` and ``names`` belong
        to the caller, and are not changed.
        """
        cdef intp_t k, number, n_fields = self.n_fields
        cdef list ordered = [MISSING] * n_fields, given = []
        cdef bint sound = True
        for k in range(0 if names == NULL else c_length(names)):
            if k == other:
                continue
            # A name of a subclass of str becomes a str of the same characters.
            name = PyUnicode_FromObject(<object> c_items(names)[k])
            given.append(name)
            number = self.c_find_field(<PyObject*> name)
            if number < 0 or ordered[number] is not MISSING:
                sound = False
            else:
                ordered[number] = <object> values[k]
        if not sound or len(given) != n_fields:
            twice = sorted({name for name in given if given.count(name) > 1})
            if twice:
                raise TypeError(f"fields given more than once: {twice}")
            self.schema.check_names(given)
        for number in range(n_fields):
            self.c_check_ring(ring)  # the last conversion may have run any code
            value = ordered[number]
            if self.c_resolve(number, <PyObject*> value, False) < 0:
                ordered[number] = self.c_convert(<Column> ring.columns[number], number, value)
        return ordered

    cdef object c_convert(self, Column column, intp_t number, value):
        """A value as an array that resolves; raises ``ValueError`` if it cannot be one."""
        cdef intp_t n_envs = self.n_streams
        cdef PyObject* given = <PyObject*> value
        array = column.c_cast(given, n_envs)
        if array is None and column.kind != NO_NUMBER and not isinstance(value, PLAIN_TYPES):
            try:
                read = read_array(value)  # tensors, memoryviews and other objects with a protocol
            except MemoryError:
                raise
            except Exception:
                read = None  # ``Field.convert`` raises the error
            if type(read) is np.ndarray:
                array = column.c_cast(<PyObject*> read, n_envs)
        if array is None:
            array = self.schema.fields[number].convert(value, n_envs)
        return array

    cdef object c_add_otherwise(
        self, PyObject** values, PyObject* names, intp_t other, cnp.ndarray present, Beside beside
    ):
        """Add the rows of a call that is not on the fast path, or raise its error."""
        cdef Ring ring = self.c_ring
        cdef intp_t n
        cdef list ordered = None
        if ring is None:
            raise RuntimeError(not_initialised(self))
        if beside is not None and beside.ring is not None and beside.ring is not ring:
            raise RuntimeError("the sampler keeps the priorities of another buffer")
        n = self.c_resolve_call(values, names, other)
        if n < 0:
            ordered = self.c_convert_call(ring, values, names, other)
        while True:
            slot = self.c_add_resolved(ring, values, names, other, ordered, present, beside)
            if slot is not NOT_READY:
                return slot
            self._prepare_files()

    cdef object c_add_resolved(
        self, Ring ring, PyObject** values, PyObject* names, intp_t other, list ordered,
        cnp.ndarray present, Beside beside,
    ):
        """Add rows whose values are arrays in ``ordered``, or that C can read if it is None.

        Returns ``NOT_READY``, and writes nothing, if ``_prepare_files`` has to come first.
        """
        cdef intp_t number, rows, n
        if self._paused:
            self.c_wait_for_turn()
        self.c_check_ring(ring)
        # From here until the rows are published no Python code runs that could change a value.
        if ordered is None:
            n = self.c_resolve_call(values, names, other)
        else:
            n = -1
            for number in range(self.n_fields):
                rows = self.c_resolve(number, c_list_items(<PyObject*> ordered)[number], True)
                if rows < 0 or (number > 0 and rows != n):
                    self.c_refuse_counts(ordered)
                n = rows
        if n < 0:
            raise RuntimeError("a value changed while it was read")
        if present is not None and cnp.PyArray_SIZE(present) != n:
            raise ValueError(
                f"expected {'one step' if cnp.PyArray_NDIM(present) == 1 else 'a block'} of "
                f"{self.n_streams} environments, {cnp.PyArray_SIZE(present)} rows as in "
                f"present, got {n}"
            )
        if beside is not None and beside.n != n:
            raise ValueError(f"priorities: expected {n}, one for each step, got {beside.n}")
        return self.c_publish_rows(
            n,
            NULL if present is None else <const uint8_t*> cnp.PyArray_DATA(present),
            beside,
        )

    cdef int c_refuse_counts(self, list values) except -1:
        """Raise the error of fields that disagree on the number of steps."""
        cdef intp_t number
        counts = [
            self.c_resolve(number, c_list_items(<PyObject*> values)[number], True)
            for number in range(self.n_fields)
        ]
        found = ", ".join([f"{name!r} has {count}" for name, count in zip(self.names, counts)])
        listed = [
            field.name
            for field, count in zip(self.schema.fields, counts)
            if count > 1 and field.dtype == object and field.shape == ()
        ]
        how = (
            f"; an array or a list for {listed[0]!r} is one object for each step: put the object of "
            f"one step into a list of its own, {listed[0]}=[value]"
            if listed
            else ""
        )
        raise ValueError(f"fields disagree on the number of steps: {found}{how}")

    cdef inline bint c_is_ready(self, intp_t n) except -1:
        """Whether n rows whose values are resolved can be written without ``_prepare_files``."""
        if self.c_ring.lens_before != NULL and self.c_ring.state[WRITTEN] + n > self.c_ring.undo.limit[0]:
            self.c_ring.undo.wanted = self.c_ring.state[WRITTEN] + n
            return False
        return not (self.c_ring.chains and self.c_ring.c_prepare(<char**> &self.sources[0], n))

    cdef object c_publish_rows(self, intp_t n, const uint8_t* present, Beside beside):
        """Write the rows of a resolved call, and publish ``beside``.

        Returns the slot of the first row; in a buffer with ``Nstep``, of the first row whose n-step
        window became complete, or None. Returns ``NOT_READY``, and writes nothing, if
        ``_prepare_files`` has to come first.
        """
        cdef int64_t first = self.c_ring.state[WRITTEN], clears = self.c_ring.state[CLEARS]
        cdef char** rows = <char**> &self.sources[0]
        if present != NULL:
            self.c_ring.c_expect_absent()
        if not self.c_is_ready(n):
            return NOT_READY
        if self.c_ring.lookahead:
            slot = c_publish_ahead(self.c_ring, rows, n, present)
        else:
            slot = self.c_ring.c_publish(rows, n, present)
        if beside is not None:
            beside.c_publish_beside(first, clears, present)
        if self.is_watched:
            self.c_watch()
        return slot

    cdef void c_watch(self) noexcept:
        """Set ``warns`` if, after WATCHED_VALUES values, most of them are stored apart."""
        cdef Chain chain
        if (<Chain> self.c_ring.chains[0]).compared < WATCHED_VALUES:
            return
        self.is_watched = False
        for chain in self.c_ring.chains:
            if 2 * chain.apart > chain.compared:
                self.warns = True

    def _warn_of_values_apart(self):
        """Warn that most values of chained fields are stored apart."""
        raise NotImplementedError

    def add_where(self, present, /, **fields):
        """Add time steps of all environments, in which only some environments have a step.

        Parameters
        ----------
        present : array_like of bool, shape (n_envs,) or (T, n_envs)
            Which environments have a step. The rows of the others are stored but absent: never drawn
            and not counted.
        **fields
            As for ``add``, ``priorities`` too, shape ``(n_envs, *shape)`` or ``(T, n_envs,
            *shape)``, absent environments included.

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
        if self.c_ring is None:
            raise RuntimeError(not_initialised(self))
        if self.warns:
            self.warns = False
            self._warn_of_values_apart()
        cdef Ring ring = self.c_ring
        cdef cnp.ndarray mask = c_read_present(present, ring.n_envs)
        if self.new_items is not None:
            return self._add_items(fields, mask)
        cdef Beside beside = None
        cdef intp_t n
        given = fields.pop(PRIORITIES, None) if self.has_priorities else None
        if given is not None:
            beside = self._read_priorities(given)
        cdef tuple names = tuple(fields)
        cdef list values = list(fields.values())
        cdef PyObject** items = c_list_items(<PyObject*> values)
        if beside is None:
            if self._paused:
                self.c_wait_for_turn()
            self.c_check_ring(ring)
            n = self.c_resolve_call(items, <PyObject*> names, -1)
            if n == cnp.PyArray_SIZE(mask):
                slot = self.c_publish_rows(n, <const uint8_t*> cnp.PyArray_DATA(mask), None)
                if slot is not NOT_READY:
                    return slot
        self.c_check_ring(ring)
        return self.c_add_otherwise(items, <PyObject*> names, -1, mask, beside)

    # ------------------------------------------------------------------ drawing

    cdef intp_t c_read_batch_size(self, batch_size, tuple columns) except -1:
        cdef intp_t n
        try:
            n = PyNumber_AsSsize_t(batch_size, OverflowError)
        except TypeError:
            if isinstance(batch_size, (float, np.floating)) and float(batch_size).is_integer():
                return self.c_read_batch_size(int(batch_size), columns)
            raise TypeError(f"batch_size: expected an integer, got {batch_size!r}") from None
        except OverflowError:
            n = sys.maxsize if batch_size > 0 else -1
        if n < 0:
            raise ValueError(f"batch_size: expected at least 0, got {batch_size}")
        if n >= BATCH_CHECK_NBYTES // (8 + self.c_ring.row_nbytes):
            nbytes = <object> self.c_ring.row_nbytes
            if columns is not None:
                nbytes = sum([column.nbytes for column in columns])
            require(n * (8 + nbytes), f"a batch of {n} rows")
        return n

    def _check_batch_size(self, batch_size, tuple columns=None):
        """``batch_size`` as an int; raises if no batch of these columns, or of all, can have it."""
        return self.c_read_batch_size(batch_size, columns)

    def _draw_by(self, options):
        """How to draw and read a batch: the functions ``draw`` and ``take``, and the columns.

        ``draw(ring, n, rng, replace=replace)`` chooses slots, like ``Sampler.draw``.
        ``take(slots, arrays, None, columns)`` reads a batch, like ``RowReader.take``. A ``take`` of
        None reads stored values of the ring; columns of None are all.
        """
        raise NotImplementedError

    def _sample(self, batch_size, SampleOptions options not None):
        """See ``Source._sample``."""
        cdef bint replace = options.replace
        cdef tuple columns = None
        out = options.out
        if out is not None and self.new_items is not None:
            return self._sample_into(batch_size, options)
        if options.c_is_plain():
            draw, take = self.sampler.draw, self._take
        else:
            draw, take, columns = self._draw_by(options)
        cdef intp_t n = self.c_read_batch_size(batch_size, columns)
        cdef list arrays = None
        cdef bint converted = False
        names = self.names
        if out is not None:
            arrays = c_find_arrays(out, self.c_ring.columns if columns is None else columns, n)
            if arrays is None:
                converted = True
                if columns is not None:
                    names = [column.name for column in columns]
                arrays = self.schema.check_out(out, n, names)
        cdef dict batch = self.c_draw(self.c_ring, draw, n, replace, arrays, take, columns, None)
        if batch is None:
            batch = self._while_writers_wait(
                partial(self._draw_once, self.c_ring, draw, n, replace, arrays, take, columns, None)
            )
        if out is None:
            return batch
        if converted:  # keep the arrays of the caller
            batch.update({name: out[name] for name in names})
        out.update(batch)
        return out

    def _draw_rows(
        self, intp_t n, SampleOptions options not None, starts, take, tuple columns, further
    ):
        """A batch of n rows for a view, drawn among ``starts``, or among all rows if that is None.

        See ``c_draw`` for the other arguments.
        """
        cdef bint replace = options.replace
        rows = self.c_ring if starts is None else starts
        draw = self.sampler.draw if starts is None else self.sampler.draw_starts
        if options.beta is not None:
            draw = partial(draw, beta=options.beta)
        cdef dict batch = self.c_draw(rows, draw, n, replace, None, take, columns, further)
        if batch is None:
            batch = self._while_writers_wait(
                partial(self._draw_once, rows, draw, n, replace, None, take, columns, further)
            )
        return batch

    def _draw_once(
        self, rows, draw, intp_t n, bint replace, list arrays, take, tuple columns, further
    ):
        """Call ``c_draw``."""
        return self.c_draw(rows, draw, n, replace, arrays, take, columns, further)

    def consistently(self, attempt):
        """Read rows by steps of your own, as they were at one moment, while other threads write.

        Parameters
        ----------
        attempt : callable
            Chooses rows, reads them, and returns their slots and what it found; or None if it saw
            that they changed. It is called without arguments. If they did change, or it
            raised ``ValueError`` or ``IndexError`` while rows came or went, it is called again
            while writers wait. It adds no rows itself.

        Returns
        -------
        object
            What ``attempt`` found.

        Raises
        ------
        RuntimeError
            ``attempt`` itself writes to the buffer.
        Exception
            What ``attempt`` raises.

        Notes
        -----
        Cost: one look at each slot, and ``attempt`` twice where a writer overtook it.

        Examples
        --------
        >>> from cpprb_like import ReplayBuffer
        >>> rb = ReplayBuffer(10, {"rew": {"shape": ()}})
        >>> rb.add(rew=[1, 2, 3])
        0
        >>> def newest_two():
        ...     slots = rb.ring.newest_slots(2)
        ...     return slots, rb[slots]["rew"].tolist()
        >>> rb.consistently(newest_two)
        [2.0, 3.0]
        """
        cdef Ring ring = self.ring
        cdef tuple found = at_one_moment(ring, attempt)
        if found is None:
            found = self._while_writers_wait(partial(at_one_moment, ring, attempt))
        return found[0]

    cdef dict c_draw(
        self, rows, draw, intp_t n, bint replace, list arrays, take, tuple columns, further
    ):
        """A batch of the rows that ``draw`` chooses, or None if they changed during the read.

        ``rows`` are the ring or ``Starts`` of it: the first argument of ``draw``. ``further`` are names
        of the columns beside the fields, None for those of the buffer. Like ``consistently``, without a
        Python frame.
        """
        cdef Ring ring = self.c_ring
        cdef Moment moment = ring.c_now()
        cdef dict batch
        cdef str hook = "draw" if rows is ring else "draw_starts"
        slots = None
        try:
            if rows is ring and ring.c_drawable() == 0:
                raise NotEnoughDataError("cannot sample: the buffer is empty")
            sampler = self.sampler
            drawn = draw(rows, n, self.rng, replace=replace)
            # Checked before anything is written to the arrays of the caller.
            slots, extra = take_drawn(sampler, hook, drawn)
            check_drawn(
                sampler, slots, extra, n, self.numbers, self.further if further is None else further
            )
            if take is None and arrays is not None:
                ring.c_check_slots(slots)
                c_gather_columns(ring, arrays, ring.columns if columns is None else columns, slots)
                batch = {}  # the values are in the arrays of the caller
            elif take is None:
                batch = c_take_rows(ring, slots, None, columns)
            else:
                batch = take(slots, arrays, None, columns)
        except (ValueError, IndexError) as error:
            if not ring.c_is_now(moment):
                return None  # rows were overwritten or cleared during the read
            if slots is not None and type(error) is IndexError:
                raise IndexError(f"{sampler!r}.{hook}: {error}") from None
            raise
        if batch is None or not ring.c_holds(moment, slots):
            return None
        for name, values in extra.items():
            batch[name] = c_aligned(values)
        self.c_count_draw(ring, slots, sampler, rows is ring)
        return batch

    def _note_draw(self, cnp.ndarray slots not None, bint of_all):
        """Count a draw of the rows in these slots, for ``stats``; ``of_all``: among all rows."""
        self.c_count_draw(self.c_ring, slots, self.sampler, of_all)

    cdef int c_count_draw(self, Ring ring, cnp.ndarray slots, sampler, bint of_all) except -1:
        if type(sampler) is not self.counted:  # ``sampler`` was set since
            self.counted = type(sampler)
            if not is_uniform_of(sampler):
                self.draw_counts.c_forget_draws()
        return self.draw_counts.c_note_draw(ring, slots, of_all)

    def _stats(self):
        """``Source.stats`` of the rows and of the draws from them."""
        cdef Ring ring = self.ring
        cdef dict found = self.draw_counts.c_stats()
        cdef Chain chain
        cdef intp_t nbytes = self.fixed_nbytes + ring.index_nbytes
        for chain in ring.chains:
            nbytes += chain.overflow_nbytes
        found["rows"] = ring.c_drawable()
        found["capacity"] = ring.size
        found["adds"] = ring.state[WRITTEN]
        found["episodes"] = ring.state[EPISODES]
        found["bytes"] = nbytes
        found.update(self.sampler._stats())
        return found


def is_uniform_of(sampler):
    """Whether a sampler draws each row with the same probability; a subclass may draw otherwise."""
    return vars(type(sampler)).get("_is_uniform", False)


def _try_often(attempt):
    """Call ``attempt()`` until it returns a result, as a sampler or a finalizer may add rows."""
    for _attempt in range(MOST_ATTEMPTS):
        found = attempt()
        if found is not None:
            return found
    raise RuntimeError("rows were overwritten by the very thread that reads them")


cpdef tuple at_one_moment(Ring ring, attempt):
    """The result of ``attempt`` of ``BufferBase.consistently``, or None if its rows changed."""
    cdef Moment moment = ring.c_now()
    try:
        found = attempt()
    except (ValueError, IndexError):
        if ring.c_is_now(moment):
            raise
        return None  # rows were overwritten or cleared
    if found is None or not ring.holds(moment, found[0]):
        return None
    return (found[1],)


cpdef tuple take_drawn(sampler, str hook, drawn):
    """Slots and further columns that a hook of a sampler returned: see ``as_drawn``."""
    if type(drawn) is tuple and len(<tuple> drawn) == 2:
        slots, extra = <tuple> drawn
        if type(extra) is dict and cnp.PyArray_CheckExact(slots):
            if (
                cnp.PyArray_TYPE(<cnp.ndarray> slots) == cnp.NPY_INTP
                and cnp.PyArray_NDIM(<cnp.ndarray> slots) == 1
                and cnp.PyArray_IS_C_CONTIGUOUS(slots) and cnp.PyArray_ISNOTSWAPPED(slots)
            ):
                for values in (<dict> extra).values():
                    if not cnp.PyArray_Check(values) or cnp.PyArray_NDIM(<cnp.ndarray> values) == 0:
                        break
                else:
                    return <tuple> drawn
    return as_drawn(sampler, hook, drawn)


cpdef int check_drawn(sampler, rows, extra, intp_t n, names, further) except -1:
    """Raise ``ValueError`` unless a sampler drew n rows, and columns of n values.

    The columns must have names that are not in ``names``, the fields, or ``further``.
    """
    if len(rows) != n:
        raise ValueError(f"{sampler!r} drew {len(rows)} slots, expected {n}")
    if extra:
        for name, values in extra.items():
            if name in names or name in further or len(values) != n:
                raise ValueError(
                    f"{sampler!r}: expected {n} values under a name that is no field, "
                    f"got {len(values)} as {name!r}"
                )
    return 0


cdef cnp.ndarray c_read_present(present, intp_t n_envs):
    """Which environments have a step, as a fresh array of bools."""
    if (
        cnp.PyArray_CheckExact(present)
        and cnp.PyArray_TYPE(<cnp.ndarray> present) == cnp.NPY_BOOL
        and cnp.PyArray_NDIM(<cnp.ndarray> present) == 1
        and cnp.PyArray_DIMS(<cnp.ndarray> present)[0] == n_envs
    ):
        return <cnp.ndarray> cnp.PyArray_NewCopy(<cnp.ndarray> present, cnp.NPY_CORDER)
    return _read_present(present, n_envs)


def _read_present(present, intp_t n_envs):
    """``c_read_present`` for any array-like; ``ValueError`` for other objects and shapes."""
    try:
        mask = np.array(present)
    except ValueError as error:
        raise ValueError(f"present: expected bools, one for each environment: {error}") from None
    if type(mask) is not np.ndarray or mask.dtype != np.bool_ or (
        mask.shape != (n_envs,) and not (mask.ndim == 2 and mask.shape[1] == n_envs)
    ):
        raise ValueError(
            f"present: expected bool of shape ({n_envs},) or (T, {n_envs}), "
            f"got {mask.dtype} of shape {np.shape(mask)}"
        )
    return np.ascontiguousarray(mask)


def not_initialised(buffer):
    """Message of the error for a buffer without memory."""
    return (
        f"ReplayBuffer.__init__ was not called: does {type(buffer).__name__}.__init__ call "
        "super().__init__(...)?"
    )


cdef object c_publish_ahead(Ring ring, char** rows, intp_t n, const uint8_t* present):
    """Write n rows of a buffer with ``Nstep``.

    Returns the public slot of the first row that became complete, or None.
    """
    c_sync_open(ring)
    ring.c_publish(rows, n, present)
    if n == 0:
        return None
    c_sync_open(ring)
    cdef Walk walk = c_walk_of(ring)
    cdef int64_t row = ring.incomplete.c_first_completed(&walk)
    return None if row < 0 else row % ring.span


cdef object c_buffer_add(PyObject* self, PyObject** values, Py_ssize_t n_positional, PyObject* names):
    """``BufferBase.add`` by vectorcall: keywords come as a tuple of names, no dict is built."""
    cdef BufferBase buffer = <BufferBase> self
    if n_positional:
        raise TypeError(
            f"add() takes fields by name, got {n_positional} positional value(s)"
            + (f"; fields: {', '.join(buffer.names)}" if buffer.c_ring is not None else "")
        )
    if buffer._paused:
        buffer.c_wait_for_turn()
    cdef intp_t n = buffer.c_resolve_call(values, names, -1)
    if n >= 0 and buffer.is_plain:
        return buffer.c_ring.c_publish(<char**> &buffer.sources[0], n, NULL)
    if buffer.new_items is not None:
        return c_add_items(buffer, values, names)
    if buffer.warns:  # before rows are written: a warning may be an error
        buffer.warns = False
        buffer._warn_of_values_apart()
        n = buffer.c_resolve_call(values, names, -1)
    if n >= 0:
        slot = buffer.c_publish_rows(n, NULL, None)
        if slot is not NOT_READY:
            return slot
    if buffer.has_priorities:
        return c_add_with_priorities(buffer, values, names)
    return buffer.c_add_otherwise(values, names, -1, None, None)


cdef object c_add_items(BufferBase buffer, PyObject** values, PyObject* names):
    """``add`` of a buffer with ragged fields: one row whose values C can read, or a call for Python."""
    cdef intp_t place = c_place_of_priorities(names) if buffer.has_priorities else -1, k
    cdef Beside beside = None
    if place >= 0 and <object> values[place] is not None:
        beside = buffer._read_priorities(<object> values[place])
    if buffer.warns:
        buffer.warns = False
        buffer._warn_of_values_apart()
    while True:
        buffer.new_items.c_hold(1)  # Python code may run here, but not from the check of turns on
        if buffer._paused:
            buffer.c_wait_for_turn()
            continue
        if (beside is not None and beside.n != 1) or not buffer.c_resolve_items(values, names, place):
            break
        if beside is not None and beside.ring is not None and beside.ring is not buffer.c_ring:
            raise RuntimeError("the sampler keeps the priorities of another buffer")
        if not buffer.c_is_ready(1):  # before rows leave, as this may fail
            buffer._prepare_files()
        elif not c_make_room(buffer.c_ring, buffer.new_items, 1, NO_LIMIT):
            return buffer.c_publish_rows(1, NULL, beside)
        # The values are read anew, as Python code may have run.
    given = {}
    for k in range(0 if names == NULL else c_length(names)):
        if <object> c_items(names)[k] in given:
            raise TypeError(f"fields given more than once: {[<object> c_items(names)[k]]}")
        given[<object> c_items(names)[k]] = <object> values[k]
    return buffer._add_items(given, None)


cdef object c_add_with_priorities(BufferBase buffer, PyObject** values, PyObject* names):
    """``add`` of a call that may have the keyword ``priorities``."""
    cdef Ring ring = buffer.c_ring
    cdef intp_t place = c_place_of_priorities(names)
    cdef Beside beside = None
    if place >= 0 and ring is not None and <object> values[place] is not None:
        beside = buffer._read_priorities(<object> values[place])
        buffer.c_check_ring(ring)
    return buffer.c_add_otherwise(values, names, place, None, beside)


cdef intp_t c_place_of_priorities(PyObject* names) except -2:
    """Place of ``priorities`` among the keywords of a call, or -1."""
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


cdef int c_set_method(type cls, PyMethodDef* method) except -1:
    """Add a method to a class of this module; a method of Cython takes keywords as a dict."""
    (<dict> (<PyTypeObject*> cls).tp_dict)[method.ml_name.decode()] = PyDescr_NewMethod(
        <PyTypeObject*> cls, method
    )
    PyType_Modified(<PyTypeObject*> cls)
    return 0


cdef PyMethodDef ADD
ADD.ml_name = "add"
ADD.ml_meth = <void*> c_buffer_add
ADD.ml_flags = METH_FASTCALL | METH_KEYWORDS
ADD.ml_doc = """add($self, /, **fields)
--

Add one step (transition), or several.

Parameters
----------
**fields
    A value for each field of ``env_dict``: one step (the field's shape), or N steps, with a leading
    axis of the same length N in every field. With ``n_envs=k`` above 1 there is always a leading
    axis k, one step of each environment, or two, ``(T, k)``, for a block of T time steps. A field of
    shape ``(1,)`` also takes scalars, and ``(N,)`` for N steps.
priorities : float or array_like, shape () or (N,) or (N, 1) or (T, n_envs), optional
    Of a buffer with priorities: the priority of each step, most often its absolute TD error. It is
    finite and at least 0. By default new steps get the greatest priority so far, at least 1.0.

Returns
-------
int or None
    Slot of the first row written, also if the call itself overwrites it. With ``Nstep``, slot of the
    first row whose n-step window this call completed; with several environments, of those that can
    be drawn now. None if there is none.

Raises
------
TypeError
    A field is missing, unknown or given by position. For names it is a ``KeyError`` too.
ValueError
    A value has the wrong shape, or the declared dtype cannot represent it, or fields disagree on N;
    or the priorities are no such numbers, or not one for each step.
MemoryError
    The disk of ``mmap_prefix`` has no room for what fields of ``next_of`` and ``stack_compress`` keep
    aside. Whatever is raised, the buffer is unchanged, with one exception: a call with more rows or
    items than the buffer has room for, of which some are of any length, is written in parts. Values
    are checked before the first part; if memory or the disk fail later, earlier parts stay.
OSError
    The disk of ``mmap_prefix`` failed or is full. ``add`` marks there, once a 256th of the buffer, rows
    of the last ``flush`` that it is about to overwrite.

Notes
-----
Cost: a copy of the bytes if values have the declared dtype and are C-contiguous. Python and NumPy
numbers, arrays of other numbers (float64 for float32), and lists and tuples of them, are cast in C,
in a few nanoseconds each; NumPy converts any other value first. N may exceed the capacity: the
newest rows stay.

Examples
--------
>>> from cpprb_like import ReplayBuffer
>>> rb = ReplayBuffer(100, {"obs": {"shape": 3}, "rew": {"shape": ()}})
>>> rb.add(obs=[1, 2, 3], rew=0.5)
0
>>> rb.add(obs=[[1, 2, 3], [4, 5, 6]], rew=[0.5, 1])
1
>>> from cpprb_like.samplers import Prioritized
>>> rb = ReplayBuffer(100, {"rew": {"shape": ()}}, sampler=Prioritized())
>>> rb.add(rew=[0.5, 1], priorities=[3, 0.1])
0
"""

c_set_method(BufferBase, &ADD)


cdef void c_fill_entries(
    ItemRing memory, const Living* living, const char* fresh, const intp_t* slots, intp_t n,
    const uint8_t[::1] stays, char* out,
) noexcept:
    """The entries of updated rows: those of before, or ``fresh`` ones, which are noted as moved."""
    cdef intp_t k, nbytes = memory.entry.nbytes
    cdef int64_t row
    cdef Entry entry
    for k in range(n):
        if slots[k] < 0:
            continue
        if stays[k]:
            memcpy(out + k * nbytes, living.entries + slots[k] * living.stride, nbytes)
            continue
        memcpy(out + k * nbytes, fresh + k * nbytes, nbytes)
        entry = c_unpack(fresh + k * nbytes, nbytes)
        row = living.written - 1
        row -= (row - slots[k]) % living.capacity
        if entry.count:
            memory.c_push_moved(memory.c_virtual(entry.place), row)


@cython.final
cdef class Attachment:
    """A ring for a buffer, and the attributes that go with it; all that can fail has been done."""

    def __cinit__(
        self,
        BufferBase buffer not None,
        Ring ring not None,
        lock not None,
        tuple further not None,
        dict attributes not None,
    ):
        sampler = attributes["sampler"]
        self.buffer = buffer
        self.ring = ring
        self.lock = lock
        self.further = further
        self.attributes = attributes
        self.names = tuple([column.name for column in ring.columns if not column.is_entry])
        self.numbers = {name: number for number, name in enumerate(self.names)}
        self.sources = np.zeros(len(ring.columns), np.intp)
        self.new_items = None
        if ring.items:
            fields = attributes["_layout"].schema.fields
            self.new_items = NewItems(fields, ring.columns, ring.items)
        self.scratch = np.zeros(len(self.names) * SCRATCH_NBYTES, np.uint8)
        self.rooms = [None] * len(self.names)
        self.draw_counts = DrawCounts(np.zeros(WORDS, np.int64), is_uniform_of(sampler))
        self.counted = type(sampler)
        self.fixed_nbytes = attributes["_layout"].total_nbytes
        self.has_priorities = sampler.has_priorities or buffer._takes_priorities

    def use(self):
        """Change the buffer, and return what was replaced. No Python code runs in between."""
        cdef BufferBase buffer = self.buffer
        before = [] if buffer.c_ring is None else [
            getattr(buffer, name, None) for name in self.attributes
        ]
        old = buffer.c_ring, buffer._lock, buffer.rooms, buffer.names, before
        buffer.draw_counts = self.draw_counts
        buffer.counted = self.counted
        buffer.fixed_nbytes = self.fixed_nbytes
        buffer.c_ring = self.ring
        buffer.n_streams = self.ring.n_envs
        buffer._lock = self.lock
        buffer.is_plain = not (self.ring.chains or self.ring.lookahead) and (
            self.ring.undo is None or self.ring.undo.chunks is None
        )
        buffer.is_watched = len(self.ring.chains) > 0
        buffer.warns = False
        buffer.has_priorities = self.has_priorities
        buffer.names = self.names
        buffer.numbers = self.numbers
        buffer.further = self.further
        buffer.n_fields = len(self.names)
        buffer.n_resolved = len(self.names) if self.new_items is None else NEVER
        buffer.name_items = c_items(<PyObject*> self.names)
        buffer.column_items = c_items(<PyObject*> self.ring.columns)
        buffer.sources = self.sources
        buffer.scratch = self.scratch
        buffer.rooms = self.rooms
        buffer.new_items = self.ring.new_items = self.new_items
        # One by one: methods of an object whose __dict__ was read are found more slowly.
        for name, value in self.attributes.items():
            PyObject_GenericSetAttr(buffer, name, value)
        return old
