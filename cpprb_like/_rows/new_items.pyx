"""``NewItems``: the items that a call of ``add`` has for its rows, from the caller's values to memory.

Values of one row that are dense arrays of the declared dtype, and texts, are used without a copy.
Compiled because a graph is added in less time than a Python statement takes. Not here: other values
(``_fields.entries``), their places (``item_ring``), and the rows that leave for them (``changes``).
"""

cimport cython
cimport numpy as cnp
from cpython.object cimport PyObject
from libc.stdint cimport int8_t, int16_t, int32_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy

from cpprb_like._c.copying cimport c_move
from cpprb_like._c.number_casts cimport (
    INT8, INT16, INT32, INT64, UINT16, UINT32, UINT64, c_kind_of,
)
from cpprb_like._c.typedefs cimport int64_t, intp_t, uint8_t
from cpprb_like._rows.column cimport Column
from cpprb_like._rows.item_ring cimport Entry, ItemRing, Living

import numpy as np

cnp.import_array()

cdef extern from "Python.h":
    bint PyUnicode_CheckExact(PyObject* value)
    const char* PyUnicode_AsUTF8AndSize(PyObject* value, Py_ssize_t* size)
    void PyErr_Clear()

cdef extern from "numpy/arrayobject.h":
    bint c_is_array "PyArray_CheckExact"(PyObject* value)

cdef enum:
    KEPT_ROWS = 1 << 12          # most rows of a call whose memory is kept for smaller calls

cdef enum:                       # columns of ``NewItems.of_field``
    AXIS = 0
    COLUMN = 1
    NUMBER = 2

cdef enum:                       # columns of ``NewItems.shapes``
    OUTER = 0                    # numbers before the axis
    REST = 1                     # bytes of an item for one of these numbers
    AT = 2                       # place of the axis in the shape
    IS_TEXT = 3

ctypedef fused integer_t:
    int8_t
    int16_t
    int32_t
    int64_t
    uint8_t
    uint16_t
    uint32_t
    uint64_t


cdef bint c_lie_below(const integer_t* values, intp_t n, int64_t limit) noexcept nogil:
    """Whether all integers are at least 0 and below a limit."""
    cdef intp_t k
    cdef uint64_t value, signs = 0
    for k in range(n):  # signs and not comparisons, as the compiler then takes several integers at a time
        value = <uint64_t> <int64_t> values[k]
        signs |= value | (<uint64_t> limit - 1 - value)
    return <int64_t> signs >= 0


cdef bint c_count_items(intp_t kind, const char* values, intp_t n, int64_t limit) noexcept nogil:
    """``c_lie_below`` for integers of a kind."""
    if kind == INT64:
        return c_lie_below(<const int64_t*> values, n, limit)
    if kind == INT32:
        return c_lie_below(<const int32_t*> values, n, limit)
    if kind == INT16:
        return c_lie_below(<const int16_t*> values, n, limit)
    if kind == INT8:
        return c_lie_below(<const int8_t*> values, n, limit)
    if kind == UINT64:
        return c_lie_below(<const uint64_t*> values, n, limit)
    if kind == UINT32:
        return c_lie_below(<const uint32_t*> values, n, limit)
    if kind == UINT16:
        return c_lie_below(<const uint16_t*> values, n, limit)
    return c_lie_below(<const uint8_t*> values, n, limit)


@cython.final
cdef class NewItems:
    """The items of one call at a time.

    Parameters
    ----------
    fields : tuple of Field
        All fields of the buffer.
    columns : tuple of Column
        Their columns.
    rings : tuple of ItemRing
        The memory of each axis.
    """

    def __cinit__(self, fields, columns, tuple rings):
        cdef intp_t number, k
        cdef Column column
        axes = {ring.axis: place for place, ring in enumerate(rings)}
        ragged = [
            number for number, field in enumerate(fields) if field.axis and not field.is_entry
        ]
        self.rings, self.n_axes = rings, len(rings)
        following = [ring.following and ring.following.axis for ring in rings]
        self.following = np.array([axes.get(axis, -1) for axis in following], np.intp)
        self.columns = tuple([columns[number] for number in ragged])
        self.of_field = np.full((len(fields), 3), -1, np.intp)
        self.shapes = np.zeros((len(ragged), 4), np.intp)
        for k, number in enumerate(ragged):
            field = fields[number]
            axis = axes[field.axis]
            place = rings[axis].names.index(field.name)
            outer = int(np.prod(field.shape[: field.axis_at], dtype=np.intp))
            rest = int(np.prod(field.shape[field.axis_at + 1 :], dtype=np.intp)) * field.dtype.itemsize
            self.of_field[number, AXIS], self.of_field[number, COLUMN] = axis, place
            self.of_field[number, NUMBER] = k
            for place, value in enumerate((outer, rest, field.axis_at, field.is_text)):
                self.shapes[k, place] = value
        numbers = {(axis, place): k for axis, place, k in np.asarray(self.of_field)[ragged].tolist()}
        nexts = np.asarray(self.following).tolist()
        pairs = [
            (axis, k, numbers[nexts[axis], place], place)
            for (axis, place), k in numbers.items()
            if nexts[axis] >= 0
        ]
        self.pairs = np.array(pairs, np.intp).reshape(len(pairs), 4)
        counted = []
        for number, field in enumerate(fields):
            if field.counts is not None:
                column = columns[number]
                size = field.item_nbytes if field.axis else field.nbytes
                numbers = size // field.dtype.itemsize
                kind = c_kind_of(column.dtype.type_num)
                counted.append((number, axes[field.counts], kind, numbers, column.place))
        self.counted = np.array(counted, np.intp).reshape(len(counted), 5)
        self.given = <Given*> calloc(max(1, len(ragged)), sizeof(Given))
        if self.given == NULL:
            raise MemoryError("no memory left for a buffer")
        self.c_hold(1)

    def __dealloc__(self):
        free(self.given)

    cdef int c_hold(self, intp_t n) except -1:
        """Have room for the counts and entries of n rows.

        Other threads and finalizers may add rows while memory is allocated. So all of it is there before
        any is replaced.
        """
        cdef intp_t rows = max(n, 1)
        cdef int64_t[:, ::1] counts, shared
        cdef int64_t[::1] order
        cdef uint8_t[:, ::1] entries
        if n > self.most or n < KEPT_ROWS < self.most:
            counts = np.zeros((self.n_axes, rows), np.int64)
            shared = np.full((self.n_axes, rows), APART, np.int64)
            order = np.zeros(2 * rows, np.int64)
            entries = np.zeros((self.n_axes, 16 * rows), np.uint8)
            self.counts, self.shared, self.order, self.entries, self.most = counts, shared, order, entries, rows
        self.n = n
        return 0

    cdef intp_t c_order_items(self, intp_t axis, bint shares) noexcept:
        """Number of items of all rows, those of next values behind the others; ``order`` has their counts.

        Without ``shares`` all items are placed anew.
        """
        cdef intp_t k, later = self.following[axis]
        cdef int64_t total = 0
        for k in range(self.n):
            self.order[2 * k] = self.order[2 * k + 1] = 0
            if not shares or self.shared[axis, k] == APART:
                self.order[2 * k] = self.counts[axis, k]
            if later >= 0:
                self.order[2 * k + 1] = self.counts[later, k]
            total += self.order[2 * k] + self.order[2 * k + 1]
        return <intp_t> total

    cdef void c_find_shared(self, intp_t axis, const Living* rows, int64_t stay) noexcept:
        """Find the rows whose items are the next ones of the row before in their stream.

        Earlier rows are those from row ``stay`` on, and those of the call. Bytes are compared.
        """
        cdef ItemRing ring = <ItemRing> self.rings[axis]
        cdef intp_t k, later = self.following[axis]
        cdef int64_t count, row, first = 0, following = 0  # items before those of the rows
        cdef Entry entry
        self.lag = rows.lag
        for k in range(self.n):
            count, row = self.counts[axis, k], rows.written + k - rows.lag
            self.shared[axis, k] = APART
            if k >= rows.lag:
                if count and self.counts[later, k - rows.lag] == count and self.c_are_equal(
                    axis, first, count, OF_CALL, following
                ):
                    self.shared[axis, k] = OF_CALL
                following += self.counts[later, k - rows.lag]
            elif count and row >= stay and ring.c_lives(rows, row):
                entry = ring.c_next_entry(rows, row)
                if entry.count == count and self.c_are_equal(axis, first, count, entry.place, 0):
                    self.shared[axis, k] = entry.place
            first += count

    cdef bint c_are_equal(
        self, intp_t axis, int64_t first, int64_t count, int64_t place, int64_t later
    ) noexcept:
        """Whether items of a row are those at a place, or the next ones of the call from ``later`` on."""
        cdef ItemRing ring = <ItemRing> self.rings[axis]
        cdef intp_t p, k, o, outer, rest, size
        cdef int64_t j
        cdef const char* items
        cdef const char* others
        for p in range(self.pairs.shape[0]):
            if self.pairs[p, 0] != axis:
                continue
            k = self.pairs[p, 1]
            outer, rest = self.shapes[k, OUTER], self.shapes[k, REST]
            size = outer * rest
            items = self.given[k].items + first * size
            if place == OF_CALL:
                others = self.given[self.pairs[p, 2]].items + later * size
            else:
                others = ring.c_items(self.pairs[p, 3], place)
            if not self.given[k].is_declared:
                if memcmp(items, others, <size_t> (count * size)):
                    return False
                continue
            for o in range(outer):
                for j in range(count):
                    if memcmp(items + (o * count + j) * rest, others + j * size + o * rest, rest):
                        return False
        return True

    cdef char* c_entries(self, intp_t axis) noexcept:
        """Address of the entries of the rows of the call, which ``c_write`` fills."""
        return <char*> &self.entries[axis, 0]

    cdef bint c_is_ragged(self, intp_t number) noexcept nogil:
        """Whether a field is ragged."""
        return self.of_field[number, AXIS] >= 0

    cdef bint c_take(self, intp_t number, PyObject* value) noexcept:
        """Take the value of a ragged field for the only row of a call; false if it needs Python.

        ``counts`` of an axis is -1 before its first field. Runs no Python code.
        """
        cdef intp_t axis = self.of_field[number, AXIS], k = self.of_field[number, NUMBER], place
        cdef Column column = <Column> self.columns[k]
        cdef Py_ssize_t size = 0
        cdef const char* items
        cdef cnp.ndarray array
        if self.shapes[k, IS_TEXT]:
            if not PyUnicode_CheckExact(value):
                return False
            items = PyUnicode_AsUTF8AndSize(value, &size)
            if items == NULL:
                PyErr_Clear()
                return False
        else:
            if not c_is_array(value):
                return False
            array = <cnp.ndarray> value
            if (
                cnp.PyArray_NDIM(array) != column.ndim
                or not cnp.PyArray_IS_C_CONTIGUOUS(array)
                or not (
                    <PyObject*> cnp.PyArray_DESCR(array) == <PyObject*> column.dtype
                    or column.c_same_dtype(value, False)
                )
            ):
                return False
            for place in range(column.ndim):
                if place != self.shapes[k, AT] and cnp.PyArray_DIM(array, place) != column.dims[place]:
                    return False
            size = cnp.PyArray_DIM(array, self.shapes[k, AT])
            items = <const char*> cnp.PyArray_DATA(array)
        self.given[k] = Given(items, self.shapes[k, OUTER] > 1)
        if self.counts[axis, 0] < 0:
            self.counts[axis, 0] = size
        return self.counts[axis, 0] == size

    cdef bint c_are_in_range(self, const intp_t* sources) noexcept:
        """Whether the values of the only row that count items lie below the count of their axis."""
        cdef intp_t k, number, n
        cdef const char* values
        for k in range(self.counted.shape[0]):
            number, n = self.counted[k, 0], self.counted[k, 3]
            if self.c_is_ragged(number):
                values = self.given[self.of_field[number, NUMBER]].items
                n *= <intp_t> self.counts[self.of_field[number, AXIS], 0]
            else:
                values = <const char*> sources[self.counted[k, 4]]
            if not c_count_items(self.counted[k, 2], values, n, self.counts[self.counted[k, 1], 0]):
                return False
        return True

    def load(self, intp_t n, list counts not None, dict items not None):
        """Take dense items of n rows, by number of the field, and the counts of each axis.

        The axis comes first in ``items``. Both are dense, and the caller keeps them until the rows are
        added. Runs no Python code once there is room for n rows.
        """
        cdef intp_t axis, k, number
        self.c_hold(n)
        for axis in range(self.n_axes):
            memcpy(
                &self.counts[axis, 0], cnp.PyArray_DATA(<cnp.ndarray> counts[axis]), n * sizeof(int64_t)
            )
        for number in range(self.of_field.shape[0]):
            k = self.of_field[number, NUMBER]
            if k >= 0:
                self.given[k] = Given(<const char*> cnp.PyArray_DATA(<cnp.ndarray> items[number]), False)

    cdef void c_write(self, bint is_moved) noexcept:
        """Place the items of all rows, which fit, and write items and entries. No Python code runs.

        Entries of an update are marked as moved.
        """
        cdef intp_t axis, k, number, row, size, outer, rest, o
        cdef int64_t count, before
        cdef ItemRing ring
        cdef Given given
        cdef char* entry
        cdef char* to
        for axis in range(self.n_axes):
            if not (<ItemRing> self.rings[axis]).is_next:
                self.c_write_entries(axis, is_moved)
        for number in range(self.of_field.shape[0]):
            k = self.of_field[number, NUMBER]
            if k < 0:
                continue
            axis = self.of_field[number, AXIS]
            ring = <ItemRing> self.rings[axis]
            given, before = self.given[k], 0
            outer, rest = self.shapes[k, OUTER], self.shapes[k, REST]
            size = outer * rest
            for row in range(self.n):
                count = self.counts[axis, row]
                if count == 0 or self.shared[axis, row] != APART:
                    before += count
                    continue
                entry = self.c_entries(axis) + row * ring.entry.nbytes
                to = ring.c_items(self.of_field[number, COLUMN], c_place_of(entry, ring.entry.nbytes))
                if not given.is_declared:
                    memcpy(to, given.items + before * size, <size_t> (count * size))
                else:
                    for o in range(outer):
                        c_move(to + o * rest, size, given.items + o * count * rest, rest, rest, <intp_t> count)
                before += count

    cdef void c_write_entries(self, intp_t axis, bint is_moved) noexcept:
        """Place the items of an axis, and of its next values behind each row."""
        cdef ItemRing ring = <ItemRing> self.rings[axis]
        cdef intp_t row, nbytes = ring.entry.nbytes, later = self.following[axis]
        cdef int64_t count, place
        cdef char* entry = self.c_entries(axis)
        cdef char* following = NULL if later < 0 else self.c_entries(later)
        for row in range(self.n):
            count, place = self.counts[axis, row], self.shared[axis, row]
            if place == APART:
                place = ring.c_place(count)
            elif place == OF_CALL:
                place = c_place_of(following - self.lag * nbytes, nbytes)
            ring.c_put_entry(entry, place, count, is_moved)
            entry += nbytes
            if later >= 0:
                ring.c_put_entry(following, ring.c_place(self.counts[later, row]), self.counts[later, row], False)
                following += nbytes
        ring.c_note_words()


cdef inline int64_t c_place_of(const char* entry, intp_t nbytes) noexcept nogil:
    """The place of an entry as it is stored."""
    return (<const uint32_t*> entry)[0] if nbytes == 8 else <int64_t> (<const uint64_t*> entry)[0]
