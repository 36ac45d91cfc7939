"""What batches of values of any length cost in C: the items of random rows, packed or padded.

Entries and items are read where the package has them; everything else is a program of its own,
compiled with ``steps``. All fields of a row are copied before those of the next row.
"""

# ruff: noqa: E501 (C code in a string)

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from data import Array
from items import FIELDS

from cpprb_like import ReplayBuffer
from cpprb_like._rows.item_ring import memory_of

from .steps import Floor, Repeat, repeat

SOURCE = r"""
enum { AXES = 2, FIELDS = 3 }; /* at most */

typedef struct {
    const char *entries;       /* of the first row: place and count, of uint32 each */
    int64_t stride;            /* from row to row */
} ItemAxis;

typedef struct {
    const char *items;
    int64_t axis, outer, rest; /* an item has outer numbers, or groups of them, of rest bytes each */
    int64_t counted;           /* axis of the items that the numbers count, or -1 */
} ItemField;

typedef struct {               /* memory that the largest batch has room in */
    char *fields[FIELDS];
    int32_t *offsets[AXES];    /* of packed rows */
    uint8_t *masks[AXES];      /* of padded rows */
} ItemBatch;

typedef struct { uint32_t place, count; } Entry;

enum { ITEMS_AHEAD = 4, ITEMS_LINES = 16 };   /* rows whose items are fetched, lines of a field */

static inline Entry entry_of(const ItemAxis *axis, int64_t slot)
{
    Entry entry;
    memcpy(&entry, axis->entries + slot * axis->stride, sizeof entry);
    return entry;
}

static void fetch_items(const ItemField *fields, int64_t n_fields, const Entry *row)
{
    for (int64_t f = 0; f < n_fields; f++) {
        const ItemField *field = fields + f;
        int64_t nbytes = field->outer * field->rest, size = row[field->axis].count * nbytes;
        const char *items = field->items + row[field->axis].place * nbytes;
        for (int64_t line = 0; line < size && line < 64 * ITEMS_LINES; line += 64)
            __builtin_prefetch(items + line);
    }
}

/* Copy the items of a row; outer numbers go so many places apart. */
static void copy_items(const ItemField *field, Entry entry, char *to, int64_t apart, int64_t shift)
{
    const char *from = field->items + entry.place * field->outer * field->rest;
    if (field->counted >= 0) { /* pairs of int64 */
        const int64_t *pairs = (const int64_t *)from;
        int64_t *left = (int64_t *)to, *right = left + apart;
        for (int64_t j = 0; j < entry.count; j++) {
            left[j] = pairs[2 * j] + shift;
            right[j] = pairs[2 * j + 1] + shift;
        }
        return;
    }
    memcpy(to, from, (size_t)(entry.count * field->rest));
}

static void read_entries(const ItemAxis *axes, int64_t n_axes, int64_t stored, BitGenerator *bits, int64_t *slots,
                         Entry (*rows)[AXES], int64_t n)
{
    for (int64_t k = 0; k < n; k++) {
        slots[k] = bounded(bits, (uint32_t)stored);
        for (int64_t a = 0; a < n_axes; a++)
            __builtin_prefetch(axes[a].entries + slots[k] * axes[a].stride);
    }
    for (int64_t k = 0; k < n; k++)
        for (int64_t a = 0; a < n_axes; a++)
            rows[k][a] = entry_of(axes + a, slots[k]);
}

/* Draw n slots, and copy their items one row behind the other, with offsets; numbers of items grow by the offset. */
void pack(const ItemAxis *axes, int64_t n_axes, const ItemField *fields, int64_t n_fields, int64_t stored,
          BitGenerator *bits, int64_t *slots, const ItemBatch *batches, int64_t n, int64_t calls)
{
    Entry rows[n][AXES];
    while (calls--) {
        const ItemBatch *to = batches + (calls & 1);
        read_entries(axes, n_axes, stored, bits, slots, rows, n);
        for (int64_t a = 0; a < n_axes; a++) {
            int32_t *offsets = to->offsets[a];
            offsets[0] = 0;
            for (int64_t k = 0; k < n; k++)
                offsets[k + 1] = offsets[k] + (int32_t)rows[k][a].count;
        }
        for (int64_t k = 0; k < ITEMS_AHEAD && k < n; k++)
            fetch_items(fields, n_fields, rows[k]);
        for (int64_t k = 0; k < n; k++) {
            if (k + ITEMS_AHEAD < n)
                fetch_items(fields, n_fields, rows[k + ITEMS_AHEAD]);
            for (int64_t f = 0; f < n_fields; f++) {
                const ItemField *field = fields + f;
                const int32_t *offsets = to->offsets[field->axis];
                int64_t shift = field->counted < 0 ? 0 : to->offsets[field->counted][k];
                copy_items(field, rows[k][field->axis], to->fields[f] + offsets[k] * field->rest, offsets[n], shift);
            }
        }
    }
}

/* Draw n slots, and copy their items into rows as long as the longest of the batch, with zeros behind them, and masks. */
void pad(const ItemAxis *axes, int64_t n_axes, const ItemField *fields, int64_t n_fields, int64_t stored,
         BitGenerator *bits, int64_t *slots, const ItemBatch *batches, int64_t n, int64_t calls)
{
    Entry rows[n][AXES];
    while (calls--) {
        const ItemBatch *to = batches + (calls & 1);
        int64_t length[AXES] = {0};
        read_entries(axes, n_axes, stored, bits, slots, rows, n);
        for (int64_t a = 0; a < n_axes; a++) {
            for (int64_t k = 0; k < n; k++)
                length[a] = rows[k][a].count > length[a] ? rows[k][a].count : length[a];
            for (int64_t k = 0; k < n; k++) {
                uint8_t *mask = to->masks[a] + k * length[a];
                memset(mask, 1, rows[k][a].count);
                memset(mask + rows[k][a].count, 0, (size_t)(length[a] - rows[k][a].count));
            }
        }
        for (int64_t k = 0; k < ITEMS_AHEAD && k < n; k++)
            fetch_items(fields, n_fields, rows[k]);
        for (int64_t k = 0; k < n; k++) {
            if (k + ITEMS_AHEAD < n)
                fetch_items(fields, n_fields, rows[k + ITEMS_AHEAD]);
            for (int64_t f = 0; f < n_fields; f++) {
                const ItemField *field = fields + f;
                Entry entry = rows[k][field->axis];
                int64_t whole = length[field->axis];
                char *row = to->fields[f] + k * field->outer * whole * field->rest;
                copy_items(field, entry, row, whole, 0);
                for (int64_t o = 0; o < field->outer; o++)
                    memset(row + (o * whole + entry.count) * field->rest, 0, (size_t)((whole - entry.count) * field->rest));
            }
        }
    }
}

typedef struct {               /* a value of a row that is added, and where its bytes go */
    const char *from;
    char *to;
    int64_t nbytes, capacity;
} ItemValue;

/* Memcpy the values of rows in turn, each behind those before; returns the next row. */
int64_t write_items(ItemValue *values, int64_t n_fields, int64_t n_rows, int64_t *places, int64_t row, int64_t calls)
{
    while (calls--) {
        for (int64_t f = 0; f < n_fields; f++) {
            const ItemValue *value = values + row * n_fields + f;
            if (places[f] + value->nbytes > value->capacity)
                places[f] = 0;
            memcpy(value->to + places[f], value->from, (size_t)value->nbytes);
            places[f] += value->nbytes;
        }
        row = row + 1 < n_rows ? row + 1 : 0;
    }
    return row;
}
"""


class ItemAxis(ctypes.Structure):
    """Where the entries of an axis are."""

    _fields_ = (("entries", ctypes.c_void_p), ("stride", ctypes.c_int64))


class ItemField(ctypes.Structure):
    """Where the items of a field are, and of what they consist."""

    _fields_ = (
        ("items", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("axis", "outer", "rest", "counted")),
    )


class ItemBatch(ctypes.Structure):
    """Memory of a batch."""

    _fields_ = (
        ("fields", ctypes.c_void_p * 3),
        ("offsets", ctypes.c_void_p * 2),
        ("masks", ctypes.c_void_p * 2),
    )


class ItemValue(ctypes.Structure):
    """A value to add, and the memory of its field."""

    _fields_ = (
        ("source", ctypes.c_void_p),
        ("to", ctypes.c_void_p),
        ("nbytes", ctypes.c_int64),
        ("capacity", ctypes.c_int64),
    )


class ItemFloor(Floor):
    """The loops over the items of a buffer."""

    def __init__(self, rb: ReplayBuffer) -> None:
        super().__init__(rb, SOURCE)
        self.items = {
            name: (memory_of(ring, number), axis)
            for axis, ring in enumerate(rb.ring.items)
            for number, name in enumerate(ring.names)
        }
        self.axes = [ring.axis for ring in rb.ring.items]

    def pack(self, n: int, longest: dict[str, int]) -> Repeat:
        """Draws packed batches of n rows, which have at most so many items by axis."""
        return self._read(self.loops.pack, n, longest)

    def pad(self, n: int, longest: dict[str, int]) -> Repeat:
        """Draws padded batches of n rows."""
        return self._read(self.loops.pad, n, longest)

    def _read(self, loop: Any, n: int, longest: dict[str, int]) -> Repeat:
        axes, fields = (ItemAxis * len(self.axes))(), (ItemField * len(self.items))()
        for axis, ring in enumerate(self.rb.ring.items):
            if ring.entry.nbytes != ctypes.sizeof(ctypes.c_uint32) * 2:
                raise RuntimeError("the package has other entries than the floor")
            axes[axis] = ItemAxis(self._address(ring.entry.offset), ring.entry.stride)
        sizes = []
        for number, (name, (memory, axis)) in enumerate(self.items.items()):
            _, outer, numbers, dtype = FIELDS[name]
            counted = self.axes.index("N") if name == "edges" else -1
            rest = numbers * np.dtype(dtype).itemsize
            fields[number] = ItemField(memory.ctypes.data, axis, outer, rest, counted)
            sizes.append(n * longest[self.axes[axis]] * outer * rest)
        batches, alive = (ItemBatch * 2)(), list[object](self.items.values())
        for batch in batches:
            memories: dict[str, list[Array]] = {
                "fields": [np.zeros(size, np.uint8) for size in sizes],
                "offsets": [np.zeros(n + 1, np.int32) for _ in self.axes],
                "masks": [np.zeros(n * longest[axis], np.uint8) for axis in self.axes],
            }
            for name, those in memories.items():
                for number, array in enumerate(those):
                    getattr(batch, name)[number] = array.ctypes.data
            alive += memories.values()
        given = axes, len(axes), fields, len(fields), len(self.rb), self.bits, np.zeros(n, np.int64)
        return repeat(loop, *given, batches, n, alive=(self.rb, alive))

    def write(self, rows: list[dict[str, Array]]) -> Repeat:
        """Writes values of rows in turn into the memory of the items, with memcpy."""
        values = (ItemValue * (len(rows) * len(self.items)))()
        for k, row in enumerate(rows):
            for number, (name, (memory, axis)) in enumerate(self.items.items()):
                array, room = row[name], self.rb.ring.items[axis].room
                values[k * len(self.items) + number] = ItemValue(
                    array.ctypes.data, memory.ctypes.data, array.nbytes, room * memory.shape[1]
                )
        places = np.zeros(len(self.items), np.int64)
        given = values, len(self.items), len(rows), places, 0
        return repeat(self.loops.write_items, *given, alive=(self.rb, rows, self.items))
