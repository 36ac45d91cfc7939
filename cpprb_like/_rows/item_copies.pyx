"""Copies of items between the memory of their axes and dense arrays.

Other threads may place items during a copy. The caller checks once, after all reads, whether the rows
are valid (``Ring.holds``). Compiled because items are most of the bytes of a batch. Not here: the
entries, which are read with the rows (``gather``), and the shape of a batch (``views._item_layouts``).
"""

cimport numpy as cnp
from cpython.object cimport PyObject
from libc.stdint cimport int32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset

from cpprb_like._c.arrays cimport c_check_array
from cpprb_like._c.copying cimport CACHE_LINE, UNLOCKED_NBYTES, c_move, c_prefetch
from cpprb_like._c.number_casts cimport INT32, INT64, NO_NUMBER, c_cast_run, c_kind_of, c_size_of
from cpprb_like._c.typedefs cimport int64_t, intp_t
from cpprb_like._core cimport Ring
from cpprb_like._rows.column cimport Column
from cpprb_like._rows.item_ring cimport Entry, ItemRing, c_unpack
from cpprb_like._rows.rings cimport Rings

import numpy as np

cnp.import_array()

cdef enum:
    AHEAD = 8                    # entries whose items are prefetched before they are copied
    AHEAD_NBYTES = 1024          # bytes of them


cdef struct Part:                # a piece of a batch: items of one entry
    const char* items
    int64_t count
    char* to                     # of the first item, for the first outer number


cdef struct Copy:                # how the items of a column go into an array
    Part* parts
    intp_t n
    intp_t outer                 # numbers before the axis
    intp_t rest                  # bytes of an item for one of these
    intp_t outer_stride          # bytes from one to the next in the array
    intp_t item_stride           # bytes from item to item in the array
    intp_t given                 # kind of the stored numbers; NO_NUMBER: bytes are copied
    intp_t wanted
    intp_t numbers               # numbers in ``rest``
    const int64_t* shifts        # added to the values of each entry; or NULL
    const char* blank            # number of places without items; or NULL if these stay as they are
    intp_t blank_size            # bytes of this number; 1 if all its bytes are alike
    char* rows                   # the array
    intp_t row_nbytes            # bytes from the places of an entry to those of the next


def counts_of(ring not None, str axis not None, cnp.ndarray entries not None):
    """Numbers of items of entries that were read with the rows: int64, one axis.

    ``ring`` is a ``Ring`` or a ``Rings``. Raises ``ValueError`` for an entry that lies outside of the
    memory, so counts size an allocation only if the rows still hold.
    """
    cdef ItemRing items = c_layout(ring).c_axis(axis)
    cdef intp_t k, nbytes = items.entry.nbytes, n = c_check_entries(items, entries)
    cdef cnp.ndarray counts = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_INT64)
    cdef int64_t* values = <int64_t*> cnp.PyArray_DATA(counts)
    cdef const char* at = <const char*> cnp.PyArray_DATA(entries)
    cdef Entry entry
    for k in range(n):
        entry = c_unpack(at + k * nbytes, nbytes)
        if not (entry.count <= items.room and 0 <= entry.place <= items.units - entry.count):
            raise ValueError(f"axis {axis!r}: {entry.count} items at {entry.place} lie outside of the memory")
        values[k] = entry.count
    return counts


def bounds_of(cnp.ndarray counts not None):
    """Begins of rows one behind the other and the end of the last one; items of the longest and the shortest.

    ``counts`` and the bounds are int64, shapes ``(n,)`` and ``(n + 1,)``. Without rows both lengths are 0.
    """
    cdef intp_t k, n = cnp.PyArray_SIZE(counts), size = n + 1
    c_check_array(counts, "counts", cnp.NPY_INT64, n)
    cdef cnp.ndarray bounds = cnp.PyArray_SimpleNew(1, &size, cnp.NPY_INT64)
    cdef const int64_t* sizes = <const int64_t*> cnp.PyArray_DATA(counts)
    cdef int64_t* to = <int64_t*> cnp.PyArray_DATA(bounds)
    cdef int64_t most = 0, least = sizes[0] if n else 0
    to[0] = 0
    for k in range(n):
        to[k + 1] = to[k] + sizes[k]
        most, least = max(most, sizes[k]), min(least, sizes[k])
    return bounds, most, least


cdef intp_t c_check_entries(ItemRing items, cnp.ndarray entries) except -1:
    """Number of entries of a dense array of them."""
    cdef intp_t ndim = cnp.PyArray_NDIM(entries)
    if (
        ndim < 2 or cnp.PyArray_DIM(entries, ndim - 1) != 2
        or not cnp.PyArray_ISCARRAY_RO(entries) or cnp.PyArray_ITEMSIZE(entries) * 2 != items.entry.nbytes
    ):
        raise TypeError(f"entries: expected a dense array of pairs of {items.entry.dtype}")
    return cnp.PyArray_SIZE(entries) // 2


cdef Ring c_layout(ring):
    """The ring that has the columns."""
    return <Ring> ring if type(ring) is Ring else (<Rings?> ring).layout


def take_items(
    ring not None, cnp.ndarray slots not None, cnp.ndarray entries not None, Column column not None,
    cnp.ndarray out not None, cnp.ndarray starts not None, intp_t row_stride, intp_t outer_stride,
    cnp.ndarray shifts=None, cnp.ndarray blank=None,
):
    """Copy the items of a ragged column into a dense array.

    Parameters
    ----------
    ring : Ring or Rings
        The rows.
    slots : ndarray of intp, shape (n,)
        The rows of the entries; of a ``Ring`` they are not looked at.
    entries : ndarray, shape (n, ..., 2)
        As read with the rows; further axes are those of sequences.
    column : Column
        The column, of ``ring.columns``.
    out : ndarray
        Dense. Numbers of another dtype are cast.
    starts : ndarray of int64, shape (m,)
        Place of the first item of each entry along the axis.
    row_stride, outer_stride : int
        Items of ``out`` between an entry and the next, and between numbers before the axis. So item j
        of entry e goes to ``e * row_stride + number * outer_stride + starts[e] + j``, in items of the
        numbers behind the axis.
    shifts : ndarray of int64, shape (m,), optional
        Added to integers of each entry.
    blank : ndarray, shape ()
        Written to the other places of each entry, of which there are ``outer_stride``. Its dtype is
        that of ``out``.

    Raises
    ------
    ValueError
        An entry lies outside of the memory or of ``out``, or a value does not fit the dtype.
    """
    cdef ItemRing layout = c_layout(ring).c_axis(column.axis)
    cdef intp_t m = c_check_entries(layout, entries), number = layout.names.index(column.name)
    cdef intp_t k, place, per_row, rest, outer = 1, n = cnp.PyArray_DIM(slots, 0)
    cdef bint several = type(ring) is not Ring, fits
    cdef Rings rings = <Rings> ring if several else None
    cdef ItemRing items = layout
    cdef Copy copy
    c_check_array(starts, "starts", cnp.NPY_INT64, m)
    if shifts is not None:
        c_check_array(shifts, "shifts", cnp.NPY_INT64, m)
    if not cnp.PyArray_ISCARRAY(out):
        raise TypeError(f"field {column.name!r}: expected a dense writeable array")
    place = 0
    while column.dims[place]:  # the length of the axis is 0 there
        outer *= column.dims[place]
        place += 1
    rest = layout.table[number, 1] // max(outer, 1)
    if rest == 0 or m == 0:
        return
    copy.n, copy.outer, copy.rest, copy.numbers = m, outer, rest, rest // column.dtype.itemsize
    copy.given = copy.wanted = NO_NUMBER
    if <PyObject*> cnp.PyArray_DESCR(out) != <PyObject*> column.dtype and not column.c_same_dtype(
        <PyObject*> out, False
    ):
        copy.given, copy.wanted = column.kind, c_kind_of(cnp.PyArray_TYPE(out))
        if copy.given == NO_NUMBER or copy.wanted == NO_NUMBER or not cnp.PyArray_ISNOTSWAPPED(out):
            raise TypeError(f"field {column.name!r}: {column.dtype} cannot be cast to {out.dtype}")
    copy.item_stride = copy.numbers * cnp.PyArray_ITEMSIZE(out)
    copy.outer_stride = outer_stride * copy.item_stride
    copy.shifts = NULL if shifts is None else <const int64_t*> cnp.PyArray_DATA(shifts)
    if shifts is not None and c_kind_of(cnp.PyArray_TYPE(out)) not in (INT32, INT64):
        raise TypeError(f"field {column.name!r}: expected int32 or int64 for numbers of items, got {out.dtype}")
    cdef const int64_t* first = <const int64_t*> cnp.PyArray_DATA(starts)
    cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(slots)
    cdef const char* entry = <const char*> cnp.PyArray_DATA(entries)
    cdef char* begin = <char*> cnp.PyArray_DATA(out)
    cdef intp_t nbytes = layout.entry.nbytes, total = 0
    cdef intp_t units = cnp.PyArray_NBYTES(out) // max(copy.item_stride, 1)
    cdef intp_t size = layout.table[number, 1]
    cdef const char* memory = layout.c_items(number, 0)
    cdef Entry found
    per_row = m // max(n, 1)
    copy.blank, copy.rows = NULL, begin
    copy.row_nbytes = row_stride * copy.item_stride
    if blank is not None:
        if m * row_stride > units:
            raise ValueError(f"field {column.name!r}: {m} rows of {row_stride} places do not fit")
        if cnp.PyArray_NBYTES(blank) != cnp.PyArray_ITEMSIZE(out):
            raise TypeError(f"blank: expected a number of {out.dtype}, got {blank.dtype}")
        copy.blank, copy.blank_size = <const char*> cnp.PyArray_DATA(blank), cnp.PyArray_ITEMSIZE(blank)
        if memcmp(copy.blank, copy.blank + 1, copy.blank_size - 1) == 0:
            copy.blank_size = 1
    copy.parts = <Part*> malloc(m * sizeof(Part))
    if copy.parts == NULL:
        raise MemoryError("no memory left to copy items")
    try:
        for k in range(m):
            found = c_unpack(entry + k * nbytes, nbytes)
            if several and found.count:
                items = (<Ring> rings.rings[values[k // per_row] & rings.mask]).c_axis(column.axis)
                memory = items.c_items(number, 0)
            place = k * row_stride + <intp_t> first[k]
            if found.count and (
                not 0 <= found.place <= items.units - found.count or place < 0
                or place + (outer - 1) * outer_stride + found.count > units
            ):
                raise ValueError(
                    f"field {column.name!r}: {found.count} items at {found.place} do not fit"
                )
            copy.parts[k].items = memory + <intp_t> found.place * size
            copy.parts[k].count = found.count
            copy.parts[k].to = begin + place * copy.item_stride
            total += <intp_t> found.count
        if total * rest * outer < UNLOCKED_NBYTES:
            fits = c_copy_items(&copy)
        else:
            with nogil:
                fits = c_copy_items(&copy)
    finally:
        free(copy.parts)
    if not fits:
        raise ValueError(f"field {column.name!r}: {out.dtype} cannot hold a value of {column.dtype}")


cdef bint c_copy_items(const Copy* copy) noexcept nogil:
    """Copy the items of all entries; false if a value cannot be cast."""
    cdef intp_t k, o, following, line
    cdef const Part* part
    cdef int64_t count
    cdef bint fits = True
    cdef bint are_pairs = (
        copy.outer == 2 and copy.rest == 8 and copy.numbers == 1 and copy.given == NO_NUMBER
    )
    for k in range(copy.n):
        following = k + AHEAD
        if following < copy.n and copy.parts[following].count:
            part = copy.parts + following
            count = min(part.count * copy.rest * copy.outer, <int64_t> AHEAD_NBYTES)
            line = 0
            while line < count:
                c_prefetch(part.items + line)
                line += CACHE_LINE
        part = copy.parts + k
        if copy.blank != NULL:
            c_blank(copy, part, copy.rows + k * copy.row_nbytes)
        if part.count == 0:
            continue
        if are_pairs:
            c_copy_pairs(copy, part, 0 if copy.shifts == NULL else copy.shifts[k])
            continue
        for o in range(copy.outer):
            fits &= c_copy_part(copy, part, o)
        if copy.shifts != NULL and copy.shifts[k]:
            for o in range(copy.outer):
                fits &= c_shift(copy, part, o, copy.shifts[k])
    return fits


cdef void c_blank(const Copy* copy, const Part* part, char* row) noexcept nogil:
    """Fill the places before and behind the items of an entry."""
    cdef intp_t o, ahead = part.to - row, nbytes = <intp_t> part.count * copy.item_stride
    for o in range(copy.outer):
        if ahead:
            c_fill(row + o * copy.outer_stride, ahead, copy)
        c_fill(part.to + o * copy.outer_stride + nbytes, copy.outer_stride - ahead - nbytes, copy)


cdef void c_fill(char* to, intp_t nbytes, const Copy* copy) noexcept nogil:
    """Fill bytes with the blank."""
    cdef intp_t k
    cdef int32_t value
    if copy.blank_size == 1:
        memset(to, copy.blank[0], nbytes)
    elif copy.blank_size == 4:
        memcpy(&value, copy.blank, 4)
        for k in range(nbytes // 4):
            (<int32_t*> to)[k] = value
    else:
        for k in range(nbytes // copy.blank_size):
            memcpy(to + k * copy.blank_size, copy.blank, copy.blank_size)


cdef void c_copy_pairs(const Copy* copy, const Part* part, int64_t shift) noexcept nogil:
    """Copy both numbers of items, such as the ends of edges, and add a shift: one pass, not four."""
    cdef const int64_t* items = <const int64_t*> part.items
    cdef int64_t* first = <int64_t*> part.to
    cdef int64_t* second = <int64_t*> (part.to + copy.outer_stride)
    cdef intp_t j
    for j in range(<intp_t> part.count):
        first[j] = items[2 * j] + shift
        second[j] = items[2 * j + 1] + shift


cdef bint c_copy_part(const Copy* copy, const Part* part, intp_t o) noexcept nogil:
    """Copy the numbers of one outer number of an entry, cast if that is asked for."""
    cdef const char* items = part.items + o * copy.rest
    cdef char* to = part.to + o * copy.outer_stride
    cdef intp_t step = copy.outer * copy.rest, size, j
    if copy.given == NO_NUMBER:
        c_move(to, copy.item_stride, items, step, copy.rest, <intp_t> part.count)
        return True
    size = c_size_of(copy.given)
    if copy.outer == 1:
        return c_cast_run(copy.given, copy.wanted, items, size, to, <intp_t> part.count * copy.numbers)
    if copy.numbers == 1:
        return c_cast_run(copy.given, copy.wanted, items, step, to, <intp_t> part.count)
    for j in range(<intp_t> part.count):
        if not c_cast_run(
            copy.given, copy.wanted, items + j * step, size, to + j * copy.item_stride, copy.numbers
        ):
            return False
    return True


cdef bint c_shift(const Copy* copy, const Part* part, intp_t o, int64_t shift) noexcept nogil:
    """Add a number to the integers of one outer number of an entry; false if one does not fit."""
    cdef char* to = part.to + o * copy.outer_stride
    cdef intp_t j, n = <intp_t> part.count * copy.numbers
    cdef int64_t value, most = 0
    if copy.item_stride == 8 * copy.numbers:
        for j in range(n):
            (<int64_t*> to)[j] += shift
        return True
    for j in range(n):
        value = (<int32_t*> to)[j] + shift
        most = max(most, value)
        (<int32_t*> to)[j] = <int32_t> value
    return most <= 0x7FFFFFFF


def fill_mask(cnp.ndarray starts not None, cnp.ndarray counts not None, cnp.ndarray mask not None):
    """Mark the places of the items of each entry, in a dense array of bool with as many places for each."""
    cdef intp_t k, n = cnp.PyArray_SIZE(counts), length = cnp.PyArray_SIZE(mask) // max(n, 1)
    c_check_array(starts, "starts", cnp.NPY_INT64, n)
    c_check_array(counts, "counts", cnp.NPY_INT64, n)
    if not cnp.PyArray_ISCARRAY(mask) or cnp.PyArray_TYPE(mask) != cnp.NPY_BOOL:
        raise TypeError("mask: expected a dense array of bool")
    cdef const int64_t* places = <const int64_t*> cnp.PyArray_DATA(starts)
    cdef const int64_t* sizes = <const int64_t*> cnp.PyArray_DATA(counts)
    cdef char* to = <char*> cnp.PyArray_DATA(mask)
    for k in range(n):
        if not (0 <= sizes[k] <= length and 0 <= places[k] <= length - sizes[k]):
            raise ValueError(f"mask: {sizes[k]} items at {places[k]} do not fit in {length} places")
        memset(to, 0, length)
        memset(to + places[k], 1, <size_t> sizes[k])
        to += length


def fill_positions(cnp.ndarray offsets not None, cnp.ndarray out not None):
    """Number the items of each part from 0 on; parts lie between ``offsets``, of int32 or int64."""
    c_fill_parts(offsets, out, False)


def fill_segments(cnp.ndarray offsets not None, cnp.ndarray out not None):
    """Give each item the number of its part; parts lie between ``offsets``, of int32 or int64."""
    c_fill_parts(offsets, out, True)


cdef int c_fill_parts(cnp.ndarray offsets, cnp.ndarray out, bint segments) except -1:
    """``fill_segments``, or ``fill_positions``."""
    cdef intp_t kind = c_kind_of(cnp.PyArray_TYPE(out)), n = cnp.PyArray_SIZE(offsets) - 1
    cdef cnp.ndarray wide = np.ascontiguousarray(offsets, np.int64)
    cdef const int64_t* bounds = <const int64_t*> cnp.PyArray_DATA(wide)
    cdef void* to = cnp.PyArray_DATA(out)
    cdef intp_t k
    cdef int64_t j, start = 0
    if kind not in (INT32, INT64) or not cnp.PyArray_ISCARRAY(out):
        raise TypeError(f"expected a dense array of int32 or int64, got {out.dtype}")
    if n < 0 or bounds[0] != 0 or (np.diff(wide) < 0).any() or bounds[n] != cnp.PyArray_SIZE(out):
        raise ValueError("offsets: expected ascending ones from 0 to the number of items")
    for k in range(n):
        start = bounds[k]
        if kind == INT32:
            for j in range(start, bounds[k + 1]):
                (<int32_t*> to)[j] = <int32_t> (k if segments else j - start)
        else:
            for j in range(start, bounds[k + 1]):
                (<int64_t*> to)[j] = k if segments else j - start
    return 0
