"""Overflow: values that no neighbouring row holds, e.g. the last ``next_obs`` of an episode.

A queue in the order of rows: values are appended for new rows, and the oldest are removed when
their rows are overwritten. Compiled because every row that is added or drawn may search it.
Not here: the choice of these values (``chained``).
"""

cimport cython
cimport numpy as cnp
from libc.string cimport memcpy
from numpy cimport ndarray

from cpprb_like._c.fences cimport c_fence
from cpprb_like._c.typedefs cimport int64_t, intp_t

import numpy as np

cnp.import_array()


cdef void c_copy_part(
    ndarray to, intp_t start, ndarray source, intp_t first, intp_t n, intp_t size
) noexcept:
    """Copy n items of ``nbytes`` bytes from one array to another."""
    memcpy(
        <char*> cnp.PyArray_DATA(to) + start * size,
        <const char*> cnp.PyArray_DATA(source) + first * size,
        n * size,
    )


@cython.final
cdef class Overflow:
    """Values of ``nbytes`` bytes, each for a row id.

    Memory: proportional to the greatest number of values so far.
    """

    def __cinit__(self, intp_t nbytes):
        self.nbytes = nbytes
        self.rows = np.empty(0, np.int64)
        self.values = np.empty(0, np.uint8)

    @property
    def total_nbytes(self):
        """Bytes of memory, used or not."""
        return self.rows.nbytes + self.values.nbytes

    cdef int c_reserve(self, intp_t n) except -1:
        """Make room for n more values. No Python code runs, and the interpreter lock stays held.

        Old memory is not changed: other threads may be copying from it. Room in a file is not made
        here: if ``c_lacks_room`` is true, the caller has to call ``grow``.
        """
        cdef intp_t room, nbytes, first
        cdef ndarray rows, values
        if self.count + n <= self.room:
            self.wanted = 0  # drop the request of an earlier call that found no room
            return 0
        if self.key_data != NULL:
            self.wanted = self.count + n
            return 0
        room = max(self.room + self.room // 8, self.count + n)
        nbytes = room * self.nbytes
        rows = cnp.PyArray_SimpleNew(1, &room, cnp.NPY_INT64)
        values = cnp.PyArray_SimpleNew(1, &nbytes, cnp.NPY_UINT8)
        first = min(self.count, self.room - self.head)
        c_copy_part(rows, 0, self.rows, self.head, first, sizeof(int64_t))
        c_copy_part(rows, first, self.rows, 0, self.count - first, sizeof(int64_t))
        c_copy_part(values, 0, self.values, self.head, first, self.nbytes)
        c_copy_part(values, first, self.values, 0, self.count - first, self.nbytes)
        self.rows, self.values, self.room, self.head = rows, values, room, 0
        return 0

    cdef intp_t c_place(self, intp_t number) noexcept nogil:
        cdef intp_t place = self.head + number
        return place if place < self.room else place - self.room

    cdef char* c_push(self, int64_t row) noexcept nogil:
        """Address for the value of a row that is newer than all others; there must be room."""
        cdef intp_t place = self.c_place(self.count)
        (<int64_t*> cnp.PyArray_DATA(self.rows))[place] = row
        if self.key_data != NULL:
            self.key_data[place] = self.base + row
            c_fence()
        self.count += 1
        return <char*> cnp.PyArray_DATA(self.values) + place * self.nbytes

    cdef void c_drop(self, int64_t before) noexcept nogil:
        """Forget the values of the rows before this one."""
        cdef const int64_t* rows = <const int64_t*> cnp.PyArray_DATA(self.rows)
        while self.count and rows[self.head] < before:
            self.head = self.c_place(1)
            self.count -= 1

    cdef intp_t c_number(self, int64_t row) noexcept nogil:
        """Number of values of rows before this one."""
        cdef const int64_t* rows = <const int64_t*> cnp.PyArray_DATA(self.rows)
        cdef intp_t low = 0, high = self.count, middle
        while low < high:
            middle = (low + high) // 2
            if rows[self.c_place(middle)] < row:
                low = middle + 1
            else:
                high = middle
        return low

    cdef char* c_find(self, int64_t row) noexcept nogil:
        """Address of the value of a row; NULL if the row has none."""
        cdef const int64_t* rows = <const int64_t*> cnp.PyArray_DATA(self.rows)
        cdef intp_t low = self.c_number(row)
        if low == self.count or rows[self.c_place(low)] != row:
            return NULL
        return <char*> cnp.PyArray_DATA(self.values) + self.c_place(low) * self.nbytes

    cdef bint c_lacks_room(self) noexcept nogil:
        return self.wanted > self.room

    cdef void c_clear(self, int64_t base) noexcept nogil:
        self.head = self.count = 0
        self.base = base

    cdef void c_follow(self, int64_t base, int64_t oldest, int64_t stop) noexcept nogil:
        """Take in the values that another process has written to the file for rows before ``stop``.

        Values of rows before ``oldest`` are dropped.
        """
        cdef int64_t* rows = <int64_t*> cnp.PyArray_DATA(self.rows)
        cdef int64_t key, last = -1
        cdef intp_t place
        if self.key_data == NULL:
            return
        if base != self.base:
            self.c_clear(base)
        if self.count:
            last = rows[self.c_place(self.count - 1)]
        while True:
            self.c_drop(oldest)
            if self.count == self.room:
                return
            place = self.c_place(self.count)
            key = self.key_data[place] - self.base
            if key <= last or key >= stop:
                return
            rows[place] = last = key
            self.count += 1

    def save(self):
        """Row ids and values, oldest first."""
        places = (self.head + np.arange(self.count)) % max(self.room, 1)
        return self.rows[places], self.values.reshape(self.room, self.nbytes)[places]

    @property
    def last(self):
        """The newest row that has a value; -1 without one."""
        if self.count == 0:
            return -1
        return (<const int64_t*> cnp.PyArray_DATA(self.rows))[self.c_place(self.count - 1)]

    def part(self, int64_t first, int64_t stop):
        """Ids and values of the rows from ``first`` to ``stop``, oldest first: fresh arrays."""
        cdef intp_t low = self.c_number(first), high = self.c_number(stop)
        places = (self.head + np.arange(low, max(low, high))) % max(self.room, 1)
        return self.rows[places], self.values.reshape(self.room, self.nbytes)[places]

    def load(self, saved):
        """Restore what ``save`` returned; ``ValueError`` if these are no rows and values."""
        rows, values = saved
        if (rows.dtype, rows.ndim) != (np.int64, 1) or (
            (values.dtype, values.shape) != (np.uint8, (len(rows), self.nbytes))
        ):
            raise ValueError(f"overflow: expected {self.nbytes} bytes for each row")
        self.c_clear(self.base)
        self.c_reserve(len(rows))
        self.rows[: len(rows)] = rows
        self.values[: values.size] = values.ravel()
        self.count = len(rows)


def use_file(Overflow overflow not None, cnp.ndarray keys not None, cnp.ndarray values not None, int64_t base):
    """Store the values in a file from now on, behind those that the file has.

    ``keys`` are int64, shape (room,), and -1 where there is no value; ``values`` are the bytes.
    Raises ``ValueError`` unless the keys ascend from some place on, around the end.
    """
    places = np.flatnonzero(keys >= 0)
    rows = np.asarray(keys)[places] - base
    oldest = int(rows.argmin()) if len(rows) else 0
    head, room = int(places[oldest]) if len(rows) else 0, len(keys)
    order = (head + np.arange(len(rows))) % max(room, 1)
    ids = np.asarray(keys)[order] - base
    if not ((keys[order] >= 0).all() and (ids >= 0).all() and (np.diff(ids) > 0).all()):
        raise ValueError("the rows of the values in the overflow are in no order")
    overflow.rows = np.full(room, -1, np.int64)
    overflow.rows[order] = ids
    overflow.values, overflow.keys = values, keys
    overflow.key_data = <int64_t*> cnp.PyArray_DATA(keys)
    overflow.base = base
    overflow.wanted = 0
    overflow.room, overflow.head, overflow.count = room, head, len(ids)


def follow_file(
    Overflow overflow not None, cnp.ndarray keys not None, cnp.ndarray values not None, int64_t base,
    int64_t oldest, int64_t stop,
):
    """Read values that another process stores in a file: of the rows from ``oldest`` to ``stop``.

    See ``use_file``. ``c_follow`` takes in later values.
    """
    cdef cnp.ndarray seen = np.array(keys)
    cdef intp_t room = len(seen), newest = int(seen.argmax()) if room else 0
    overflow.rows = np.full(room, -1, np.int64)
    overflow.values, overflow.keys = values, keys
    overflow.key_data = <int64_t*> cnp.PyArray_DATA(keys)
    overflow.base, overflow.room, overflow.wanted = base, room, 0
    overflow.head = overflow.count = 0
    if room and seen[newest] >= base:  # the queue continues behind this place
        order = (newest + 1 + np.arange(room)) % room
        ids = seen[order] - base
        there = np.flatnonzero((ids >= max(oldest, 0)) & (ids < stop))  # places without a value have -1
        if len(there):
            overflow.head = order[there[0]]
            overflow.count = len(there)
            overflow.rows[order[there]] = ids[there]
        else:  # the queue begins with the rows from ``stop`` on
            later = np.flatnonzero(ids >= stop)
            overflow.head = order[later[0]] if len(later) else (newest + 1) % room


def set_base(Overflow overflow not None, int64_t base):
    """Set the base of keys: at least the number of rows written before the last clear."""
    overflow.base = base


def grow(
    Overflow overflow not None, cnp.ndarray keys not None, cnp.ndarray values not None,
    cnp.ndarray complete not None,
):
    """Move the values from the heap, or from a smaller file, to a larger file.

    The word ``complete`` of that file is set at the end. Returns false, and does nothing, if the file
    is not larger. No Python code runs during the move.
    """
    cdef intp_t k, place, room = cnp.PyArray_DIM(keys, 0)
    cdef ndarray rows = np.full(room, -1, np.int64)
    cdef int64_t* key_data = <int64_t*> cnp.PyArray_DATA(keys)
    cdef char* to = <char*> cnp.PyArray_DATA(values)
    if room < overflow.count or (overflow.key_data != NULL and room <= overflow.room):
        return False
    for k in range(overflow.count):
        place = overflow.c_place(k)
        (<int64_t*> cnp.PyArray_DATA(rows))[k] = (<int64_t*> cnp.PyArray_DATA(overflow.rows))[place]
        key_data[k] = overflow.base + (<int64_t*> cnp.PyArray_DATA(rows))[k]
        memcpy(
            to + k * overflow.nbytes,
            <char*> cnp.PyArray_DATA(overflow.values) + place * overflow.nbytes,
            overflow.nbytes,
        )
    c_fence()
    (<int64_t*> cnp.PyArray_DATA(complete))[0] = 1
    c_fence()
    overflow.rows, overflow.values, overflow.keys = rows, values, keys
    overflow.key_data, overflow.room, overflow.head = key_data, room, 0
    return True
