"""``ItemRing``: the items of one axis, in the memory of a buffer.

Items of a row lie side by side, and never move while the row lives. They are placed one behind the
other. If the next place is ``room`` or more, a new lap begins at place 0. So there is a place for n
items whenever the items between the oldest living ones and the newest, and these n, are at most
``room``; and no place is beyond ``room`` and the longest entry. Items leave in the order in which they
were placed. ``update`` places items anew and marks the entry as moved. The old items, and those of
rows that were deleted, are free when all older items are.

Next values lie in the same memory, behind the items of their row. A row whose items are the next ones of
the row before in its stream has no others. So the oldest item is one of the first rows, one of each stream.

A row says where its items lie in an ordinary hidden column, so an entry is read, kept and followed like
any value. Compiled because every ``add`` places items. Not here: which rows leave (``changes``), the
values of a call (``new_items``), and reading (``item_copies``).
"""

cimport cython
cimport numpy as cnp
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from cpprb_like._c.arrays cimport c_check_array
from cpprb_like._c.fences cimport c_fence
from cpprb_like._c.typedefs cimport int64_t, intp_t, uint8_t, uint32_t, uint64_t
from cpprb_like._rows.column cimport Column

import numpy as np

cnp.import_array()

cdef enum:
    STEP_NBYTES = 1 << 16        # least memory that is made usable at a time

cdef int64_t MOST = 1 << 62      # greatest number of items that were ever placed
cdef str DAMAGED = "places of items: expected those of the rows"


@cython.final
cdef class ItemRing:
    """Memory for the items of an axis.

    Parameters
    ----------
    items : layout.Items
        Places of the memory.
    columns : tuple of Column
        The columns of the buffer.
    arena : ndarray of uint8
        All memory of the buffer.
    words : ndarray of int64
        The words of the axis.
    use : callable, optional
        ``use(first, stop)`` makes the memory of these units usable; None for memory that is only read.
    following : ItemRing, optional
        The same memory under the names of next values, for readers.
    """

    def __cinit__(
        self, items, columns, cnp.ndarray arena, cnp.ndarray words, use=None, ItemRing following=None
    ):
        cdef Column column
        self.axis, self.room, self.units = items.axis, items.room, items.units
        by_name = {column.name: column for column in columns}
        (self.entry,) = [column for column in columns if column.is_entry and column.axis == self.axis]
        self.names = tuple([name for name, _, _ in items.columns])
        self.columns = tuple([by_name[name] for name in self.names])
        self.table = np.array([(place, nbytes) for _, nbytes, place in items.columns], np.intp).reshape(-1, 2)
        self.arena, self.words, self.use = arena, words, use
        self.following = following
        if following is not None:
            following.is_next = True
        self.c_find_head()

    def __dealloc__(self):
        free(self.moved)

    cdef int c_find_head(self) except -1:
        """Read the words anew. Raises ``ValueError`` if they were damaged."""
        cdef intp_t k = TRIPLES + 3 * <intp_t> (self.words[VALID] & 1)
        self.head, self.base, self.previous = self.words[k], self.words[k + 1], self.words[k + 2]
        if not (
            0 <= self.previous <= self.base <= self.head < MOST
            and self.head - self.base <= self.units and self.base - self.previous <= self.units
        ):
            raise ValueError(f"{DAMAGED}, got laps at {self.previous}, {self.base} and {self.head}")
        self.tail_row = self.n_moved = 0
        return 0

    cdef int c_find_moved(self, cnp.ndarray rows, cnp.ndarray entries) except -1:
        """Check the entries of the living rows, by their row ids, and note which were moved.

        Raises ``ValueError`` if one does not lie where items of a row can lie.
        """
        places, counts, is_moved = unpacked(entries)
        some = counts > 0
        if (counts > self.room).any() or (places[some] + counts[some] > self.units).any():
            raise ValueError(f"{DAMAGED}, got items outside of the memory of axis {self.axis!r}")
        order = places + np.where(places < self.head - self.base, self.base, self.previous)
        chosen = np.flatnonzero(some & is_moved)
        self.c_expect_moved(len(chosen))
        for place, row in zip(order[chosen].tolist(), rows[chosen].tolist()):
            self.c_push_moved(place, row)
        starts, ends = np.sort(order[some]), np.sort((order + counts)[some])
        if len(starts) and (
            (starts[1:] < ends[: len(ends) - 1]).any()
            or starts[0] < self.head - self.room or ends[len(ends) - 1] > self.head
        ):
            raise ValueError(f"{DAMAGED}, got items of axis {self.axis!r} over those of another row")
        return 0

    @property
    def left(self):
        """Rows that left because the room was full."""
        return self.words[LEFT]

    cdef Entry c_entry(self, const Living* rows, int64_t row) noexcept nogil:
        """The entry of a row in memory."""
        return c_unpack(rows.entries + <intp_t> (row % rows.capacity) * rows.stride, self.entry.nbytes)

    cdef Entry c_next_entry(self, const Living* rows, int64_t row) noexcept nogil:
        """The entry of the next values of a row in memory."""
        return c_unpack(rows.nexts + <intp_t> (row % rows.capacity) * rows.stride, self.entry.nbytes)

    cdef bint c_lives(self, const Living* rows, int64_t row) noexcept nogil:
        """Whether a row is in memory and holds a step."""
        return row >= rows.oldest and not (
            rows.flags[<intp_t> (row % rows.capacity) * rows.flag_stride] & rows.absent
        )

    cdef int64_t c_virtual(self, int64_t place) noexcept nogil:
        """Number of a place among all items ever placed."""
        return (self.base if place < self.head - self.base else self.previous) + place

    cdef int64_t c_first_item(self, const Living* rows, int64_t row) noexcept nogil:
        """Number of the oldest item of a row; ``head`` if it has none, but moved ones."""
        cdef int64_t first = self.head
        cdef Entry entry
        if not self.c_lives(rows, row):
            return first
        entry = self.c_entry(rows, row)
        if entry.count and not entry.is_moved:
            first = self.c_virtual(entry.place)
        if rows.nexts != NULL:
            entry = self.c_next_entry(rows, row)
            if entry.count:
                first = min(first, self.c_virtual(entry.place))
        return first

    cdef void c_pass_rows(self, const Living* rows) noexcept nogil:
        """Have ``tail_row`` pass rows without items, and those whose items were moved.

        A row that has been moved is not moved back, so ``tail_row`` only rises.
        """
        self.tail_row = max(self.tail_row, rows.oldest)
        while self.tail_row < rows.written and self.c_first_item(rows, self.tail_row) == self.head:
            self.tail_row += 1
        while self.n_moved and not self.c_is_there(rows, self.moved):
            self.c_pop_moved()

    cdef int64_t c_tail(self, const Living* rows) noexcept nogil:
        """Number of the oldest item that a row has; ``head`` if none has any."""
        cdef int64_t tail = self.head, row
        self.c_pass_rows(rows)
        for row in range(self.tail_row, min(self.tail_row + rows.lag, rows.written)):
            tail = min(tail, self.c_first_item(rows, row))
        return min(tail, self.moved[0].place) if self.n_moved else tail

    cdef int64_t c_leaving(self, const Living* rows, int64_t first, int64_t n) noexcept nogil:
        """The row before which all rows have to leave, so that there is room for n more items.

        At least ``first``. The caller has checked that n is at most ``room``. All rows leave that have
        an item with a number below a limit, and with them those before.
        """
        cdef int64_t limit = self.head + n - self.room, stop = first, row, last = rows.written, item
        self.c_pass_rows(rows)
        row = max(self.tail_row, first)
        while row < last:
            item = self.c_first_item(rows, row)
            if item < limit:
                stop = row + 1
            elif item < self.head:
                last = min(last, row + rows.lag)  # all later rows have later items
            row += 1
        return max(stop, self.c_last_moved(rows, 0, limit) + 1)

    # ------------------------------------------------------------------ moved entries

    cdef bint c_is_there(self, const Living* rows, const Moved* one) noexcept nogil:
        """Whether a row still has the items that it was given."""
        cdef Entry entry
        if not self.c_lives(rows, one.row):
            return False
        entry = self.c_entry(rows, one.row)
        return entry.count > 0 and entry.is_moved and self.c_virtual(entry.place) == one.place

    cdef int64_t c_last_moved(self, const Living* rows, intp_t k, int64_t limit) noexcept nogil:
        """The last row of a part of the heap whose items have a number below a limit; or -1."""
        cdef int64_t last = -1
        if k >= self.n_moved or self.moved[k].place >= limit:
            return -1
        if self.c_is_there(rows, &self.moved[k]):
            last = self.moved[k].row
        last = max(last, self.c_last_moved(rows, 2 * k + 1, limit))
        return max(last, self.c_last_moved(rows, 2 * k + 2, limit))

    cdef int c_expect_moved(self, intp_t n) except -1:
        """Have memory for n more calls of ``c_push_moved``."""
        cdef intp_t most = max(self.most_moved, 16)
        while most < self.n_moved + n:
            most *= 2
        if most == self.most_moved:
            return 0
        cdef Moved* memory = <Moved*> realloc(self.moved, most * sizeof(Moved))
        if memory == NULL:
            raise MemoryError("no memory left to note moved items")
        self.moved, self.most_moved = memory, most
        return 0

    cdef void c_push_moved(self, int64_t place, int64_t row) noexcept nogil:
        """Note that the items of a row were placed anew; ``place`` is their number."""
        cdef intp_t k = self.n_moved, above
        self.n_moved += 1
        while k:
            above = (k - 1) // 2
            if self.moved[above].place <= place:
                break
            self.moved[k] = self.moved[above]
            k = above
        self.moved[k] = Moved(place, row)

    cdef void c_pop_moved(self) noexcept nogil:
        """Forget the moved entry with the oldest items."""
        cdef intp_t k = 0, below = 1
        cdef Moved last
        self.n_moved -= 1
        last = self.moved[self.n_moved]
        while below < self.n_moved:
            if below + 1 < self.n_moved and self.moved[below + 1].place < self.moved[below].place:
                below += 1
            if last.place <= self.moved[below].place:
                break
            self.moved[k] = self.moved[below]
            k, below = below, 2 * below + 1
        self.moved[k] = last

    # ------------------------------------------------------------------ places

    cdef intp_t c_extent(self, const int64_t* counts, intp_t n) noexcept nogil:
        """Units that are in use when n further rows with these counts have their items."""
        cdef int64_t place = self.head - self.base, most = 0
        cdef intp_t k
        for k in range(n):
            if counts[k] and place >= self.room:
                place = 0
            place += counts[k]
            most = max(most, place)
        return <intp_t> most

    cdef int64_t c_place(self, int64_t count) noexcept nogil:
        """Take the place of the items of a row, which fit. ``c_note_words`` comes next."""
        cdef int64_t place = self.head - self.base
        if count and place >= self.room:
            self.previous, self.base, place = self.base, self.head, 0
        self.head += count
        return place

    cdef void c_put_entry(self, char* to, int64_t place, int64_t count, bint is_moved) noexcept nogil:
        """Write an entry as it is stored."""
        cdef uint64_t moved = is_moved
        if self.entry.nbytes == 8:
            (<uint32_t*> to)[0] = <uint32_t> place
            (<uint32_t*> to)[1] = <uint32_t> (<uint64_t> count | moved << 31)
        else:
            (<uint64_t*> to)[0] = <uint64_t> place
            (<uint64_t*> to)[1] = <uint64_t> count | moved << 63

    cdef char* c_items(self, intp_t number, int64_t place) noexcept nogil:
        """Address of the item of a column at a place."""
        return <char*> &self.arena[0] + self.table[number, 0] + <intp_t> place * self.table[number, 1]

    cdef void c_note_words(self) noexcept nogil:
        """Write down the laps, so that a killed process leaves those before or those after."""
        cdef int64_t other = (self.words[VALID] & 1) ^ 1
        cdef intp_t k = TRIPLES + 3 * <intp_t> other
        self.words[k], self.words[k + 1], self.words[k + 2] = self.head, self.base, self.previous
        c_fence()
        self.words[VALID] = other
        c_fence()

    cdef int c_make_usable(self, intp_t stop) except -1:
        """Make the units before ``stop`` usable; ``MemoryError`` without memory.

        A further step is made usable too, if there is memory for it.
        """
        cdef intp_t nbytes = max(int(np.asarray(self.table)[:, 1].sum()), 1)
        if stop <= self.usable:
            return 0
        step = max(STEP_NBYTES // nbytes, stop // 8)
        try:
            self.use(self.usable, min(self.units, stop + step))
            self.usable = max(self.usable, min(self.units, stop + step))
        except MemoryError:
            if stop > self.usable:  # another thread may have been here
                self.use(self.usable, stop)
                self.usable = max(self.usable, stop)
        return 0

    def pack(
        self, intp_t number, cnp.ndarray places not None, cnp.ndarray counts not None,
        cnp.ndarray out not None,
    ):
        """Copy items of a column, one behind the other, into an array of their bytes.

        Entry k has ``counts[k]`` items from ``places[k]`` on; both are int64. Raises ``ValueError``
        for items outside of the memory. The interpreter lock is free meanwhile.
        """
        cdef intp_t k, n = cnp.PyArray_DIM(places, 0), nbytes = self.table[number, 1], total = 0
        c_check_array(places, "places", cnp.NPY_INT64, n)
        c_check_array(counts, "counts", cnp.NPY_INT64, n)
        c_check_array(out, "out", cnp.NPY_UINT8, cnp.PyArray_DIM(out, 0))
        cdef const int64_t* starts = <const int64_t*> cnp.PyArray_DATA(places)
        cdef const int64_t* sizes = <const int64_t*> cnp.PyArray_DATA(counts)
        cdef char* to = <char*> cnp.PyArray_DATA(out)
        for k in range(n):
            if not (0 <= sizes[k] <= self.units and 0 <= starts[k] <= self.units - sizes[k]):
                raise ValueError(f"axis {self.axis!r}: {sizes[k]} items at {starts[k]} lie outside of the memory")
            total += <intp_t> sizes[k] * nbytes
        if total != cnp.PyArray_DIM(out, 0):
            raise ValueError(f"out: expected {total} bytes, got {cnp.PyArray_DIM(out, 0)}")
        with nogil:
            for k in range(n):
                if sizes[k]:
                    memcpy(to, self.c_items(number, starts[k]), <size_t> (sizes[k] * nbytes))
                    to += sizes[k] * nbytes

    cdef void c_clear(self) noexcept:
        """Forget all items."""
        self.head = self.base = self.previous = self.tail_row = self.n_moved = 0
        self.words[LEFT] = 0
        self.c_note_words()


# Functions and not methods, as users have ``rb.ring.items``, whose methods change nothing.


def make_usable(ItemRing items not None, intp_t stop):
    """Make the units before ``stop`` usable; ``MemoryError`` without memory."""
    items.c_make_usable(stop)


def place_from_start(ItemRing items not None, int64_t n, int64_t left):
    """Note that n items were put into the memory from place 0 on, and that rows had left."""
    if not 0 <= n <= items.room:
        raise ValueError(f"axis {items.axis!r}: expected at most {items.room} items, got {n}")
    items.c_clear()
    items.head, items.words[LEFT] = n, left
    items.c_note_words()


def memory_of(ItemRing items not None, intp_t number):
    """The memory of a column, shape ``(units, nbytes)``, without a copy."""
    cdef intp_t start = items.table[number, 0], nbytes = items.table[number, 1]
    memory = np.asarray(items.arena)[start : start + items.units * nbytes]
    return memory.reshape(items.units, nbytes)


def unpacked(cnp.ndarray entries not None):
    """Places and numbers of items of entries, shape ``(n, 2)``, and whether they were moved.

    Two arrays of int64 and one of bool, shape ``(n,)``. Damaged entries have numbers up to 2 ** 62.
    """
    cdef intp_t k, n = cnp.PyArray_DIM(entries, 0), nbytes = 2 * cnp.PyArray_ITEMSIZE(entries)
    cdef cnp.ndarray dense = np.ascontiguousarray(entries)
    cdef cnp.ndarray places = np.empty(n, np.int64), counts = np.empty(n, np.int64), moved = np.empty(n, np.bool_)
    cdef Entry entry
    for k in range(n):
        entry = c_unpack(<const char*> cnp.PyArray_DATA(dense) + k * nbytes, nbytes)
        (<int64_t*> cnp.PyArray_DATA(places))[k] = MOST if entry.place < 0 else min(entry.place, MOST)
        (<int64_t*> cnp.PyArray_DATA(counts))[k] = min(entry.count, MOST)
        (<uint8_t*> cnp.PyArray_DATA(moved))[k] = entry.is_moved
    return places, counts, moved


def placed_items(cnp.ndarray rows not None, cnp.ndarray entries not None, cnp.ndarray nexts not None, intp_t lag):
    """The rows and entries of own and of next items, in the order in which these were placed.

    ``rows`` are the ids of living rows, ascending. The entry of a row is left out if its items are the
    next ones of the row ``lag`` before.
    """
    before = np.searchsorted(rows, rows - lag)
    are_shared = (rows[before] == rows - lag) & (entries == nexts[before]).all(axis=1) & (entries[:, 1] > 0)
    kept = np.ones(2 * len(rows), np.bool_)
    kept[::2] = ~are_shared
    return np.repeat(rows, 2)[kept], np.stack([entries, nexts], axis=1).reshape(-1, 2)[kept]
