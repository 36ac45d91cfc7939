"""``Layout``: the place of each byte of a buffer's memory.

Only this module knows the places. Not here: the memory (``arenas``), and fields (``schema``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from cpprb_like._core import FLAG_ABSENT, N_STATE_WORDS, WORD_HANDLE_BASE, WORD_WRITTEN
from cpprb_like._fields.axes import Axis
from cpprb_like._fields.checked_options import CheckedOptions
from cpprb_like._fields.field import Field
from cpprb_like._fields.schema import Schema
from cpprb_like._rows.chained import Chain, FrameStack, NextOf, find_values
from cpprb_like._rows.column import Column
from cpprb_like._rows.item_ring import ItemRing
from cpprb_like._rows.overflow import Overflow

__all__ = [
    "CACHE_LINE",
    "IDENTITY",
    "IDENTITY_NBYTES",
    "Aside",
    "Items",
    "Layout",
    "OfOptions",
    "align",
]

RECORD_FIELD_NBYTES = 128  # each wider field has a block outside of the record
BLOCK_ALIGNMENT = 64
CACHE_LINE = 64
PAGE = 4096  # parts that are made usable apart begin at a page
IDENTITY_NBYTES = 64
IDENTITY = b"cpprb_like ring, version 10"  # first bytes of the file of a buffer


class OfOptions:
    """Base class of layouts, in memory and in files: attributes of their options."""

    options: CheckedOptions

    @property
    def schema(self) -> Schema:
        """The fields."""
        return self.options.schema

    @property
    def capacity(self) -> int:
        """Slots of the ring."""
        return self.options.capacity

    @property
    def size(self) -> int:
        """Rows that can be drawn."""
        return self.options.size

    @property
    def n_envs(self) -> int:
        """Environments that step together."""
        return self.options.n_envs

    @property
    def span(self) -> int:
        """The modulus of public slots: ``row_id % span``; see ``Ring``."""
        return self.size if self.n_envs == 1 else self.capacity


@dataclass(frozen=True)
class Aside:
    """The byte ring of a chained field, with values that the rows of the ring do not store.

    It has twice the units that can be in use, so that values never move. What is not used yet takes
    no memory and no disk space.
    """

    name: str  # the number of the overflow of its field, and the name of the field
    nbytes: int  # bytes of a value
    reach: int  # number of newest rows whose values are stored
    lag: int  # number of newest rows without a value
    keys_at: int  # place of the keys in the arena

    @property
    def units(self) -> int:
        """Values for which there are places."""
        return 2 * self.reach

    @property
    def values_at(self) -> int:
        """Place of the values in the arena."""
        return align(self.keys_at + 8 * self.units, PAGE)

    @property
    def end(self) -> int:
        """Place behind the values."""
        return align(self.values_at + self.nbytes * self.units, PAGE)

    def spans(self, first: int, stop: int) -> list[tuple[int, int]]:
        """Start and stop of the keys and of the values in these units."""
        places = (self.keys_at, 8), (self.values_at, self.nbytes)
        return [(start + size * first, start + size * stop) for start, size in places]


@dataclass(frozen=True)
class Items:
    """The memory for the items of a named axis: for each of its fields ``units`` items.

    It has nearly twice the units that can be in use, so that no entry is split where the items
    begin anew. What is not used yet takes no memory and no disk space.
    """

    axis: str
    room: int  # most items that rows have
    columns: tuple[tuple[str, int, int], ...]  # field, bytes of an item, place in the arena

    @classmethod
    def of(cls, axis: Axis, fields: Iterable[Field], start: int) -> Items:
        """Lay out the items of an axis, from a place in the arena on."""
        columns: list[tuple[str, int, int]] = []
        items = cls(axis.name, axis.room, ())
        for field in fields:
            columns.append((field.name, field.item_nbytes, align(start, PAGE)))
            items = replace(items, columns=tuple(columns))
            start = items.end
        return items

    @property
    def units(self) -> int:
        """Items for which there are places."""
        return 2 * self.room - 1

    @property
    def nbytes(self) -> int:
        """Bytes of ``room`` items, which are all that rows use."""
        return self.room * sum(nbytes for _, nbytes, _ in self.columns)

    @property
    def end(self) -> int:
        """Place behind the items of the last field."""
        _, nbytes, start = self.columns[-1]
        return align(start + nbytes * self.units, PAGE)

    @property
    def block(self) -> str:
        """Name of the block with the words of the ring of items."""
        return f"items of {self.axis}"

    def spans(self, first: int, stop: int) -> list[tuple[int, int]]:
        """Start and stop of the bytes of these units, for each field."""
        return [(start + size * first, start + size * stop) for _, size, start in self.columns]


@dataclass(frozen=True)
class Layout(OfOptions):
    """The memory layout of a buffer, computed before anything is allocated."""

    options: CheckedOptions
    offsets: tuple[int, ...]  # place of row 0 of each field in the arena; -1 for chained fields
    strides: tuple[int, ...]
    record: tuple[int, int, int]  # offset, stride, and offset of the flags, behind the fields
    nbytes: int  # bytes of the arena before the byte rings
    sampler_nbytes: int  # bytes that the sampler allocates
    # Blocks of chained fields and of named axes: (name, offset, bytes).
    blocks: tuple[tuple[str, int, int], ...]

    @classmethod
    def of(cls, options: CheckedOptions, sampler_nbytes: int = 0) -> Layout:
        """Lay out the rows: header, records, blocks."""
        schema, capacity, n_envs = options.schema, options.capacity, options.n_envs
        record_fields = [
            field
            for field in schema.fields
            if field.nbytes <= RECORD_FIELD_NBYTES
            and not field.dtype.hasobject
            and not field.is_ragged
            and field.name not in schema.chained
        ]
        record_fields.sort(key=lambda field: -field.dtype.alignment)
        record_offset = align(IDENTITY_NBYTES + 8 * (N_STATE_WORDS + n_envs), BLOCK_ALIGNMENT)
        places: dict[str, tuple[int, int]] = {}
        used = 0
        for field in record_fields:
            used = align(used, field.dtype.alignment)
            places[field.name] = record_offset + used, 0
            used += field.nbytes
        widest = max((field.dtype.alignment for field in record_fields), default=1)
        in_blocks = sum(
            schema.stored_nbytes(field) for field in schema.fields if field not in record_fields
        ) + len(schema.chained)
        most = schema.most_row_nbytes - (record_offset + sampler_nbytes) / capacity - in_blocks
        stride = _record_stride(align(used + 1, widest), most)  # one more for the flags
        places = {name: (offset, stride) for name, (offset, _) in places.items()}
        places |= {
            field.name: (record_offset, stride) for field in schema.fields if field.is_ragged
        }
        end = record_offset + capacity * stride
        for field in schema.fields:
            is_stored = field.name not in schema.chained and not field.dtype.hasobject
            if field.name not in places and is_stored:
                start = align(end, BLOCK_ALIGNMENT)
                places[field.name] = start, field.nbytes
                end = start + capacity * field.nbytes
        blocks = []
        for name, nbytes in _blocks(schema, capacity, n_envs):
            start = align(end, BLOCK_ALIGNMENT)
            blocks.append((name, start, nbytes))
            end = start + nbytes
        ordered = [places.get(field.name, (-1, 0)) for field in schema.fields]
        return cls(
            options=options,
            offsets=tuple(offset for offset, _ in ordered),
            strides=tuple(stride for _, stride in ordered),
            record=(record_offset, stride, used),
            nbytes=end,
            sampler_nbytes=sampler_nbytes,
            blocks=tuple(blocks),
        )

    @property
    def total_nbytes(self) -> int:
        """Bytes of a full buffer, without overflow; all but the items are allocated up front.

        The arena, the items of named axes, the references to Python objects, and the sampler.
        """
        objects = [field.nbytes for field in self.schema.fields if field.dtype.hasobject]
        beside = self.items_nbytes + self.sampler_nbytes
        return self.nbytes + self.capacity * sum(objects) + beside

    @property
    def items_nbytes(self) -> int:
        """Bytes of the items of all named axes, if their rooms are full."""
        return sum(items.nbytes for items in self.item_rings)

    def nbytes_of(self, field: Field) -> int:
        """Bytes of all rows of a field; of a named axis, as many items as its room."""
        if field.is_ragged and field.axis is not None:  # next values share a room
            return self.schema.rooms.get(field.axis, 0) * field.item_nbytes
        if field.name not in self.schema.chained:
            return self.capacity * field.nbytes
        own = {f"{what} of {field.name}" for what in ("frames", "runs", "marks", "newest")}
        return sum(nbytes for name, _, nbytes in self.blocks if name in own)

    @property
    def asides(self) -> list[Aside]:
        """The byte rings of all chained fields, in their order."""
        sizes = {field.name: field.nbytes for field in self.schema.fields}
        frames, kinds = {}, []
        for stack in self.schema.stacks:
            frames[stack.name] = sizes[stack.name] // stack.depth
            reach = self.capacity + (stack.depth - 1) * self.n_envs
            kinds.append((f"0 of {stack.name}", sizes[stack.name] - frames[stack.name], reach, 0))
        for name, source in self.schema.chained_next:
            values = [sizes[name], frames[source]] if source in frames else [sizes[name]]
            kinds += [
                (f"{k} of {name}", n, self.capacity, self.n_envs) for k, n in enumerate(values)
            ]
        asides, end = [], align(self.nbytes, PAGE)
        for kind in kinds:
            asides.append(Aside(*kind, keys_at=end))
            end = asides[-1].end
        return asides

    @property
    def length(self) -> int:
        """Bytes of the arena with its byte rings, most of which are not in use."""
        parts: list[Aside | Items] = [*self.asides, *self.item_rings]
        return parts[-1].end if parts else self.nbytes

    @property
    def item_rings(self) -> list[Items]:
        """The memory for the items of each named axis with a room, behind the byte rings."""
        if not self.schema.axes:
            return []
        asides = self.asides
        found, end = [], asides[-1].end if asides else align(self.nbytes, PAGE)
        for axis in (axis for axis in self.schema.axes if axis.source is None):
            fields = [field for field in self.schema.declared if field.name in axis.fields]
            found.append(Items.of(axis, fields, end))
            end = found[-1].end
        return found

    def following(self, items: Items) -> Items | None:
        """The same memory under the names of next values; None if the axis has none."""
        for axis in self.schema.axes:
            if axis.source == items.axis:
                names = {source: name for name, source in self.schema.next_of}
                columns = [(names[name], nbytes, place) for name, nbytes, place in items.columns]
                return replace(items, axis=axis.name, columns=tuple(columns))
        return None

    @property
    def has_parts(self) -> bool:
        """Whether parts of the arena are made usable as rows need them."""
        return bool(self.schema.axes or self.asides)

    def item_memory(
        self,
        arena: NDArray[np.uint8],
        columns: Iterable[Column],
        use: Callable[[Items, int, int], None] | None = None,
        *,
        follows: bool = False,
    ) -> list[ItemRing]:
        """The rings of items, by axis; ``use`` as in ``chains``.

        That of next values finds items in the memory of its source. A ring that ``follows`` a
        writer in another process has words of its own: the laps are the writer's, and may be torn.
        """
        found, following = [], []
        for items in self.item_rings:
            user = None if use is None else partial(use, items)
            words = self.item_words(arena, items)
            none, memory, later = np.zeros_like(words), (tuple(columns), arena), None
            if (renamed := self.following(items)) is not None:
                later = ItemRing(renamed, *memory, none)
                following.append(later)
            found.append(ItemRing(items, *memory, none if follows else words, user, later))
        return [*found, *following]

    def item_words(self, arena: NDArray[np.uint8], items: Items) -> NDArray[np.int64]:
        """The words of a ring of items: see ``item_ring``."""
        return self.block(arena, items.block).view(np.int64)

    def untouched_items(self, arena: NDArray[np.uint8]) -> int:
        """Bytes of items that no row has used yet, of ``items_nbytes``."""
        found = 0
        for items in self.item_rings:
            words = self.item_words(arena, items)
            head = int(words[1 + 3 * (int(words[0]) & 1)])  # items that were ever placed
            found += items.nbytes * max(0, items.room - head) // items.room
        return found

    def words(self, arena: NDArray[np.uint8], aside: Aside) -> NDArray[np.int64]:
        """The words of a byte ring: see ``overflow``."""
        return self.block(arena, f"places of {aside.name}").view(np.int64)

    def extent(self, arena: NDArray[np.uint8], aside: Aside) -> int:
        """Units of a byte ring that have been used so far; ``ValueError`` if this was damaged."""
        extent = int(self.words(arena, aside)[0])
        if not 0 <= extent <= aside.units:
            raise ValueError(f"places of {aside.name}: expected 0 to {aside.units}, got {extent}")
        return extent

    def keys(self, arena: NDArray[np.uint8], aside: Aside) -> NDArray[np.int64]:
        """The keys in the units of a byte ring that have been used so far, without a copy."""
        start, stop = aside.spans(0, self.extent(arena, aside))[0]
        return arena[start:stop].view(np.int64)

    def columns(self) -> list[Column]:
        """The columns of the fields; columns of Python objects allocate their memory."""
        return [
            Column(
                field.name,
                field.dtype,
                field.shape,
                self.capacity,
                offset,
                stride,
                axis=field.axis or "",
                is_entry=field.is_entry,
            )
            for field, offset, stride in zip(
                self.schema.fields, self.offsets, self.strides, strict=True
            )
        ]

    def newest(self, arena: NDArray[np.uint8]) -> list[tuple[NDArray[np.int64], NDArray[np.uint8]]]:
        """The tags and the two places of the newest values of each chained field."""
        blocks = [self.block(arena, name) for name in self.newest_blocks]
        return [(block[:16].view(np.int64), block[CACHE_LINE:].reshape(2, -1)) for block in blocks]

    def block(self, arena: NDArray[np.uint8], name: str) -> NDArray[np.uint8]:
        """The block of this name, without a copy."""
        ((offset, nbytes),) = [(start, size) for known, start, size in self.blocks if known == name]
        return arena[offset : offset + nbytes]

    def chains(
        self,
        arena: NDArray[np.uint8],
        columns: Iterable[Column],
        use: Callable[[Aside, int, int], None] | None = None,
    ) -> list[Chain]:
        """The chained fields: frame stacks, then next values.

        ``use(aside, first, stop)`` makes units of a byte ring usable; None for an arena that is
        only read.
        """
        known: dict[str, Column | FrameStack] = {column.name: column for column in columns}
        by_name = {field.name: field for field in self.schema.fields}
        sizes = {name: field.nbytes for name, field in by_name.items()}
        found: list[Chain] = []
        overflows: dict[str, list[Overflow]] = {name: [] for name in sizes}
        for aside in self.asides:
            words = self.words(arena, aside)
            (keys, keys_end), (start, stop) = aside.spans(0, aside.units)
            memory = words, arena[keys:keys_end].view(np.int64), arena[start:stop]
            user = None if use is None else partial(use, aside)
            overflows[aside.name.partition(" of ")[2]].append(
                Overflow(aside.nbytes, aside.lag, *memory, user)
            )
        for stack in self.schema.stacks:
            frames = FrameStack(
                stack.name,
                sizes[stack.name],
                self.capacity,
                self.n_envs,
                self.block(arena, f"newest of {stack.name}"),
                by_name[stack.name].shape,
                stack.axis,
                self.block(arena, f"frames of {stack.name}"),
                self.block(arena, f"runs of {stack.name}"),
                *overflows[stack.name],
            )
            known[stack.name] = frames
            found.append(frames)
        for name, source in self.schema.chained_next:
            newest, marks = (self.block(arena, f"{what} of {name}") for what in ("newest", "marks"))
            size = sizes[name], self.capacity, self.n_envs
            found.append(NextOf(name, *size, newest, known[source], arena, marks, *overflows[name]))
        return found

    def find_values(self, arena: NDArray[np.uint8], chains: Iterable[Chain]) -> None:
        """Have chained fields use the values of an arena; ``ValueError`` if it was damaged."""
        state = self.state(arena)
        written = int(state[WORD_WRITTEN])
        rows = np.arange(written - self.n_envs, written)
        # A row that was being overwritten is absent, so later values cannot refer to its values.
        there = (self.flags(arena)[rows % self.capacity] & FLAG_ABSENT == 0) & (written > 0)
        for chain in chains:
            find_values(chain, int(state[WORD_HANDLE_BASE]), written, there)

    @property
    def state_nbytes(self) -> int:
        """Bytes of the words of the header."""
        return 8 * (N_STATE_WORDS + self.n_envs)

    def state(self, arena: NDArray[np.uint8]) -> NDArray[np.int64]:
        """The words of the header."""
        return arena[IDENTITY_NBYTES : IDENTITY_NBYTES + self.state_nbytes].view(np.int64)

    def rows(self, arena: NDArray[np.uint8], number: int) -> NDArray[np.uint8]:
        """The bytes of a field, shape ``(capacity, nbytes)``, without a copy."""
        return np.ndarray(
            (self.capacity, self.schema.fields[number].nbytes),
            np.uint8,
            buffer=arena.data,
            offset=self.offsets[number],
            strides=(self.strides[number], 1),
        )

    def records(self, arena: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The bytes of the records, shape ``(capacity, stride)``, without a copy."""
        offset, stride, _ = self.record
        end = offset + self.capacity * stride
        return arena[offset:end].reshape(self.capacity, stride)

    def spans(self, written: int, *, wide: bool = True) -> list[tuple[int, int]]:
        """Offset and length of the header, and of all rows in use after ``written`` were added.

        Without ``wide``, fields and frames outside of the records are left out. Newest values of
        chained fields and byte rings are always left out.
        """
        offset, stride, _ = self.record
        most = min(written, self.capacity)
        found = [(0, offset), (offset, most * stride)]
        if wide:
            places = enumerate(zip(self.offsets, self.strides, strict=True))
            found += [
                (start, most * nbytes)
                for number, (start, nbytes) in places
                if start >= 0 and not self.in_record(number)
            ]
        frames = {
            f"frames of {stack.name}": self.capacity + (stack.depth - 1) * self.n_envs
            for stack in self.schema.stacks
        }
        for name, start, nbytes in self.blocks:
            if name in self.row_blocks and (wide or name not in frames):
                rows = frames.get(name, self.capacity)
                found.append((start, min(written, rows) * (nbytes // rows)))
        return found

    @property
    def row_blocks(self) -> list[str]:
        """The blocks that have bytes for each row."""
        kinds = "frames", "runs", "marks"
        return [name for name, _, _ in self.blocks if name.partition(" of ")[0] in kinds]

    @property
    def newest_blocks(self) -> list[str]:
        """The blocks of the newest values of chained fields, in the order of ``chains``."""
        return [f"newest of {name}" for name in self.schema.chained_in_order]

    def in_record(self, number: int) -> bool:
        """Whether a field lies in the records."""
        offset, stride, _ = self.record
        return 0 <= self.offsets[number] - offset < stride

    def flags(self, arena: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The flag byte of each slot, without a copy."""
        return self.records(arena)[:, self.record[2]]

    def identity(self) -> bytes:
        """Bytes that identify this layout, at the start of a file."""
        fields = self.schema.fields
        description = repr(
            (
                [(field.name, field.dtype.str, repr(field.dtype), field.shape) for field in fields],
                (self.offsets, self.strides, self.record, self.capacity, self.size, self.n_envs),
                N_STATE_WORDS,
                self.blocks,
                self.schema.end_fields(),
                [(stack.name, stack.axis, stack.depth) for stack in self.schema.stacks],
            )
        )
        if self.schema.axes:
            beside = [
                (field.axis, field.axis_at, field.counts, field.is_text, field.is_entry)
                for field in fields
            ]
            description = repr((description, beside, self.schema.rooms))
        digest = hashlib.sha256(description.encode()).digest()
        return IDENTITY.ljust(IDENTITY_NBYTES - len(digest)) + digest


def _blocks(schema: Schema, capacity: int, n_envs: int) -> Iterable[tuple[str, int]]:
    """Name and bytes of each block of the chained fields and of the named axes."""
    frames = {field.name: schema.stored_nbytes(field) for field in schema.fields}
    for stack in schema.stacks:
        rows = capacity + (stack.depth - 1) * n_envs
        yield f"frames of {stack.name}", rows * frames[stack.name]
        yield f"runs of {stack.name}", capacity
    for name, _ in schema.chained_next:
        yield f"marks of {name}", capacity
    sizes = {field.name: field.nbytes for field in schema.fields}
    for name in schema.chained_in_order:
        yield f"newest of {name}", CACHE_LINE + 2 * align(n_envs * sizes[name], CACHE_LINE)
    stacks = {stack.name for stack in schema.stacks}
    for name, source in [*[(stack.name, "") for stack in schema.stacks], *schema.chained_next]:
        for k in range(1 + (source in stacks)):
            yield f"places of {k} of {name}", CACHE_LINE
    for axis in schema.rooms:
        yield f"items of {axis}", CACHE_LINE


def _record_stride(nbytes: int, most: float) -> int:
    """The distance between records, padded to cache lines if ``most`` allows.

    Without padding, every second record of 48 bytes lies in two lines of 64 bytes. With padding,
    draws take a quarter less time.
    """
    padded = 1 << (nbytes - 1).bit_length() if nbytes <= CACHE_LINE else align(nbytes, CACHE_LINE)
    return padded if padded <= most else nbytes


def align(offset: int, alignment: int) -> int:
    """The least multiple of ``alignment`` from ``offset`` on."""
    return -(-offset // alignment) * alignment
