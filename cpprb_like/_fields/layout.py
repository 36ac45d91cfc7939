"""``Layout``: the place of each byte of a buffer's memory.

Only this module knows the places. Not here: the memory (``arenas``), and fields (``schema``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpprb_like._core import FLAG_ABSENT, N_STATE_WORDS, WORD_HANDLE_BASE, WORD_WRITTEN
from cpprb_like._fields.row_options import RowOptions
from cpprb_like._fields.schema import Field, Schema
from cpprb_like._rows.chained import Chain, FrameStack, NextOf, find_newest
from cpprb_like._rows.column import Column

__all__ = ["CACHE_LINE", "IDENTITY", "IDENTITY_NBYTES", "Layout", "OfOptions", "align"]

RECORD_FIELD_NBYTES = 128  # each wider field has a block outside of the record
BLOCK_ALIGNMENT = 64
CACHE_LINE = 64
IDENTITY_NBYTES = 64
IDENTITY = b"cpprb_like ring, version 8"  # first bytes of the file of a buffer


class OfOptions:
    """Base class of layouts, in memory and in files: attributes of their options."""

    options: RowOptions

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
class Layout(OfOptions):
    """The memory layout of a buffer, computed before anything is allocated."""

    options: RowOptions
    offsets: tuple[int, ...]  # place of row 0 of each field in the arena; -1 for chained fields
    strides: tuple[int, ...]
    record: tuple[int, int, int]  # offset, stride, and offset of the flags, behind the fields
    nbytes: int  # bytes of the arena
    sampler_nbytes: int  # bytes that the sampler allocates
    blocks: tuple[tuple[str, int, int], ...]  # blocks of chained fields: (name, offset, bytes)

    @classmethod
    def of(cls, options: RowOptions, sampler_nbytes: int = 0) -> Layout:
        """Lay out the rows: header, records, blocks."""
        schema, capacity, n_envs = options.schema, options.capacity, options.n_envs
        record_fields = [
            field
            for field in schema.fields
            if field.nbytes <= RECORD_FIELD_NBYTES
            and not field.dtype.hasobject
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
        ordered = [places.get(name, (-1, 0)) for name in schema.names]
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
        """Bytes allocated up front.

        The arena, the references to Python objects, and the sampler.
        """
        objects = [field.nbytes for field in self.schema.fields if field.dtype.hasobject]
        return self.nbytes + self.capacity * sum(objects) + self.sampler_nbytes

    def nbytes_of(self, field: Field) -> int:
        """Bytes of all rows of a field."""
        if field.name not in self.schema.chained:
            return self.capacity * field.nbytes
        own = {f"{what} of {field.name}" for what in ("frames", "runs", "marks", "newest")}
        return sum(nbytes for name, _, nbytes in self.blocks if name in own)

    def columns(self) -> list[Column]:
        """The columns of the fields; columns of Python objects allocate their memory."""
        return [
            Column(field.name, field.dtype, field.shape, self.capacity, offset, stride)
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

    def chains(self, arena: NDArray[np.uint8], columns: Iterable[Column]) -> list[Chain]:
        """The chained fields: frame stacks, then next values."""
        known: dict[str, Column | FrameStack] = {column.name: column for column in columns}
        by_name = {field.name: field for field in self.schema.fields}
        sizes = {name: field.nbytes for name, field in by_name.items()}
        found: list[Chain] = []
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
            )
            known[stack.name] = frames
            found.append(frames)
        for name, source in self.schema.next_of:
            newest, marks = (self.block(arena, f"{what} of {name}") for what in ("newest", "marks"))
            size = sizes[name], self.capacity, self.n_envs
            found.append(NextOf(name, *size, newest, known[source], arena, marks))
        state = self.state(arena)
        written = int(state[WORD_WRITTEN])
        rows = np.arange(written - self.n_envs, written)
        # A row that was being overwritten is absent, so later values cannot refer to its values.
        there = (self.flags(arena)[rows % self.capacity] & FLAG_ABSENT == 0) & (written > 0)
        for chain in found:
            find_newest(chain, int(state[WORD_HANDLE_BASE]) + written, there)
        return found

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
        chained fields are always left out, as each ``add`` replaces them.
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
            if name not in self.newest_blocks and (wide or name not in frames):
                rows = frames.get(name, self.capacity)
                found.append((start, min(written, rows) * (nbytes // rows)))
        return found

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
        digest = hashlib.sha256(description.encode()).digest()
        return IDENTITY.ljust(IDENTITY_NBYTES - len(digest)) + digest


def _blocks(schema: Schema, capacity: int, n_envs: int) -> Iterable[tuple[str, int]]:
    """Name and bytes of each block of the chained fields."""
    frames = {field.name: schema.stored_nbytes(field) for field in schema.fields}
    for stack in schema.stacks:
        rows = capacity + (stack.depth - 1) * n_envs
        yield f"frames of {stack.name}", rows * frames[stack.name]
        yield f"runs of {stack.name}", capacity
    for name, _ in schema.next_of:
        yield f"marks of {name}", capacity
    sizes = {field.name: field.nbytes for field in schema.fields}
    for name in schema.chained_in_order:
        yield f"newest of {name}", CACHE_LINE + 2 * align(n_envs * sizes[name], CACHE_LINE)


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
