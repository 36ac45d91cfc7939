"""Reads segments into the memory of a ring, which may have another capacity and fewer fields.

A row keeps its id, which determines its slot in a ring of any capacity. Values that refer to row
ids stay valid too. Slots whose rows are in no file are marked absent. Not here: the content of
files (``_segments``), and the buffer of the ring (``buffers._replay``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Bytes
from cpprb_like._core import (
    FLAG_ABSENT,
    FLAG_END,
    FLAG_TRUNCATED,
    N_STATE_WORDS,
    WORD_ABSENT_ROWS,
    WORD_CLEARED,
    WORD_CLEARS,
    WORD_EDITS,
    WORD_EPISODES,
    WORD_HANDLE_BASE,
    WORD_RESERVED,
    WORD_WRITTEN,
    Ring,
)
from cpprb_like._fields.layout import Layout
from cpprb_like._files.json_codec import MOST
from cpprb_like._files.recovery import derive, end_before
from cpprb_like._rows.chained import FrameStack
from cpprb_like._rows.chained import load as load_chain
from cpprb_like._rows.column import Column, load_objects
from cpprb_like.checkpoint import _arrays
from cpprb_like.checkpoint._disk import Disk
from cpprb_like.checkpoint._item_reader import ItemReader
from cpprb_like.checkpoint._options import Decode, LoadOptions
from cpprb_like.checkpoint._saved_layout import SavedLayout, is_foreign
from cpprb_like.checkpoint._segments import RowBytes, parts_of
from cpprb_like.checkpoint._state import File, ObjectFiles, PartFile, State
from cpprb_like.errors import DamagedError

__all__ = ["Found", "RingReader", "read_objects"]

BYTE = np.dtype(np.uint8)
ROW_IDS = np.dtype(np.int64)


class Found(NamedTuple):
    """The rows that were loaded."""

    first: int  # id of the oldest row
    # For each row from ``first`` on: whether damage has cost it, or its items have no room.
    missing: NDArray[np.bool_]
    reader: RingReader

    @property
    def is_whole(self) -> bool:
        """Whether no row of the ring is missing."""
        saved = self.reader.saved
        return self.first == saved.written - saved.stored and not self.missing.any()

    def has_all_of(self, layout: Layout) -> bool:
        """Whether a save of this layout would write the same files again."""
        return self.is_whole and SavedLayout(layout.options) == self.reader.saved.layout

    def old_slots(self, ring: Ring) -> NDArray[np.intp]:
        """For each slot in use: the slot of its row in the saved ring, or -1 for an absent row."""
        saved = self.reader.saved
        rows = np.arange(self.first, saved.written)[~self.missing]
        slots = np.full(ring.stored, -1, np.intp)
        slots[rows % ring.capacity] = rows % saved.layout.capacity
        return slots


class RingReader:
    """Reads the rows of one ring of a state.

    ``salvage`` is called with a message for each damaged file, whose rows are lost. Without it a
    damaged file raises ``DamagedError``.
    """

    def __init__(
        self,
        disk: Disk,
        state: State,
        number: int,
        options: LoadOptions,
        salvage: Callable[[str], None] | None,
    ) -> None:
        self._disk = disk
        self._options = options
        self._salvage = salvage
        self.state = state
        self.number = number
        self.saved = state.rings[number]
        self.lost = 0  # number of rows that damage has cost; set by ``fill``
        self.salvages = salvage is not None
        foreign = [
            field.name for field in self.saved.layout.schema.fields if is_foreign(field.dtype)
        ]
        if foreign:
            raise ValueError(f"fields {foreign} were saved by a machine of another byte order")

    def fill(self, layout: Layout, arena: Bytes, ring: Ring) -> Found:
        """Fill new memory. The caller calls ``rebuild(ring)`` and checks the header afterwards."""
        saved = self.saved
        has_same_capacity = layout.capacity == saved.layout.capacity
        first = max(saved.oldest, saved.written - layout.capacity)
        if not has_same_capacity:  # rows that were left out stay left out
            first = max(first, saved.first)
        missing = np.zeros(saved.written - first, np.bool_)
        for part in parts_of(layout, arena):
            low = max(0, first - part.before)
            damaged = self._fill_part(part, low)
            reach = saved.layout.n_envs if layout.schema.chained_next else 0
            _mark(missing, _runs(damaged, low - first), part.before, reach)
        for column in ring.columns:
            if column.objects is not None:
                missing |= self._fill_objects(column, layout, first)
        leaving = np.zeros_like(missing)  # rows whose items have no room
        if ring.items:
            items = ItemReader(self._disk, saved, first, ring, self._salvaged)
            leaving = items.fill(layout, arena, missing)
        self._fill_chains(layout, ring, first, missing)
        self.lost = int(np.count_nonzero(missing))
        if self.lost:
            lost = f"{self.lost} of {len(missing)} rows are lost"
            if self._salvage is None:
                raise DamagedError(f"{lost}: they are in no file")
            self._salvage(lost)
        self._fill_header(layout, arena, first, missing)
        end_before(layout, arena, first + np.flatnonzero(missing))
        found = Found(first, missing | leaving, self)
        # The open episode may be among rows of any length that were deleted during the save.
        if found.is_whole and has_same_capacity and not ring.items:
            layout.state(arena)[WORD_ABSENT_ROWS] = saved.absent
        else:
            derive(layout, arena)
        return found

    # ------------------------------------------------------------------ parts

    def _fill_part(self, part: RowBytes, low: int) -> NDArray[np.bool_]:
        """Read a part of the rows from ``low`` on; a flag for each row that no intact file has."""
        damaged = np.ones(self.saved.written - low, np.bool_)
        for segment in self.saved.segments:
            saved = segment.parts.get(part.name)
            if saved is not None and max(low, saved.first) < saved.stop:
                is_read = self._read_rows(saved, part, low)
                damaged[max(saved.first, low) - low : saved.stop - low] = not is_read
        return damaged

    def _read_rows(self, saved: PartFile, part: RowBytes, low: int) -> bool:
        """Copy the rows of a file from ``low`` on to their slots; false if the file is damaged."""
        start, dtype = saved.first, saved.file.dtype
        saved.file.expect(dtype, saved.stop - saved.first, *part.shape)
        _check_dtype(saved.file, part)
        put = part.memory if dtype == part.dtype else None
        size = dtype.itemsize * math.prod(part.shape)
        slots = len(part.memory)
        converted = np.empty((0, part.nbytes), np.uint8)

        def take(offset: int, piece: Bytes) -> None:
            nonlocal converted
            row = start + offset // max(1, size)
            values = piece.reshape(-1, size)
            if row < low:
                values = values[low - row :]
                row = low
            if dtype != part.dtype:
                if len(converted) < len(values):
                    converted = np.zeros((len(values), part.nbytes), np.uint8)
                _convert(values, dtype, converted[: len(values)], part)
                values = converted[: len(values)]
            while len(values):
                slot = row % slots
                count = min(len(values), slots - slot)
                part.put(slice(slot, slot + count), values[:count])
                values, row = values[count:], row + count

        def place(offset: int, most: int) -> Bytes | None:
            row = start + offset // max(1, size)
            if put is None or row < low:
                return None
            slot = row % slots
            memory = put[slot : slot + most // size]
            return memory.reshape(-1) if memory.flags.c_contiguous else None

        def read() -> bool:
            for offset, piece in _arrays.read(self._disk, saved.file, place):
                take(offset, piece)
            return True

        if size == 0:
            return self._array(saved.file) is not None
        return bool(self._salvaged(read))

    def _array(self, file: File) -> Any:
        """The array of a file; None if the file is damaged."""
        return self._salvaged(lambda: _arrays.read_array(self._disk, file))

    def _salvaged(self, read: Callable[[], Any]) -> Any:
        """``read()``; None if the file is damaged and ``salvage`` reports it."""
        try:
            return read()
        except DamagedError as error:
            if self._salvage is None:
                raise
            self._salvage(str(error))
            return None

    # ------------------------------------------------------------------ objects

    def _fill_objects(self, column: Column, layout: Layout, first: int) -> NDArray[np.bool_]:
        """Read Python objects; a flag for each row from ``first`` on that no intact file has."""
        damaged = np.ones(self.saved.written - first, np.bool_)
        items, decode = math.prod(column.shape), self._options.decode
        values: NDArray[Any] = np.empty((layout.capacity, *column.shape), np.dtype(object))
        for segment in self.saved.segments:
            saved = segment.objects.get(column.name)
            if saved is None:
                continue
            read = partial(read_objects, self._disk, saved, items, decode)
            found = self._salvaged(read)
            low = max(saved.first, first)
            damaged[low - first : max(low, saved.stop) - first] = found is None
            if found is not None:
                own = np.empty(len(found), object)
                own[:] = found
                rows = np.arange(low, max(low, saved.stop)) % len(values)
                shape = (saved.stop - saved.first, *column.shape)
                values[rows] = own.reshape(shape)[low - saved.first :]
        load_objects(column, values[: min(self.saved.written, len(values))])
        return damaged

    # ------------------------------------------------------------------ chained fields, header

    def _fill_chains(
        self, layout: Layout, ring: Ring, first: int, missing: NDArray[np.bool_]
    ) -> None:
        """Load the overflow and the newest values of chained fields, and mark rows without them."""
        of_ring = self._handle_base(layout), self.saved.written
        for chain in ring.chains:
            before = 0
            if isinstance(chain, FrameStack):
                before = (chain.depth - 1) * layout.n_envs
            reach = self.saved.layout.n_envs if layout.schema.chained_next else 0
            overflow = []
            for k, aside in enumerate(chain.asides):
                ids, values, damaged = self._read_overflow(f"{k} of {chain.name}", aside.nbytes)
                start = int(np.searchsorted(ids, first - before))  # ids ascend
                overflow.append((ids[start:], values[start:]))
                runs = [(max(0, low - first), max(0, stop - first)) for low, stop in damaged]
                _mark(missing, [run for run in runs if run[0] < run[1]], before, reach)
            files, n_envs = self.saved.newest[chain.name], layout.n_envs
            latest = self._array(files.values.expect(BYTE, n_envs, chain.nbytes))
            seen = self._array(files.is_there.expect(BYTE, n_envs))
            if latest is None or seen is None:
                latest, seen = np.zeros((n_envs, chain.nbytes), BYTE), np.zeros(n_envs, BYTE)
                missing[max(0, len(missing) - n_envs) :] = True
            load_chain(chain, *of_ring, (latest, seen, overflow))
        newest = np.arange(max(first, self.saved.written - layout.n_envs), self.saved.written)
        is_known = np.zeros(layout.n_envs, np.bool_)
        is_known[newest[~missing[newest - first]] % layout.n_envs] = True
        for chain in () if is_known.all() else ring.chains:
            # The next value of a stream whose newest row is lost is stored whole.
            latest, seen, overflow = chain.save()
            load_chain(chain, *of_ring, (latest, seen * is_known, overflow))

    def _read_overflow(
        self, name: str, nbytes: int
    ) -> tuple[NDArray[np.int64], Bytes, list[tuple[int, int]]]:
        """Row ids and values of an overflow, and the ranges of rows whose files are damaged."""
        rows = self.saved.segment_rows
        all_ids, all_values, damaged = [np.empty(0, np.int64)], [np.empty((0, nbytes), BYTE)], []
        for segment in self.saved.segments:
            saved = segment.overflow.get(name)
            if saved is None:
                continue
            n = math.prod(saved.ids.shape)
            ids = self._array(saved.ids.expect(ROW_IDS, n))
            values = self._array(saved.values.expect(BYTE, n, nbytes))
            if ids is None or values is None:
                start = segment.number * rows
                damaged.append((start, start + rows))
                continue
            all_ids.append(ids)
            all_values.append(values)
        ids = np.concatenate(all_ids)
        is_in_range = not len(ids) or 0 <= ids[0] <= ids[-1] < self.saved.written
        if not is_in_range or (ids[1:] <= ids[:-1]).any():
            raise DamagedError(f"overflow {name}: its rows are not in order")
        return ids, np.concatenate(all_values), damaged

    def _fill_header(
        self,
        layout: Layout,
        arena: Bytes,
        first: int,
        missing: NDArray[np.bool_],
    ) -> None:
        """Set the header, without the number of absent rows, and the flags of absent rows."""
        saved = self.saved
        stored = min(saved.written, layout.capacity)
        if first > saved.written - stored or missing.any():
            there = np.zeros(stored, np.bool_)
            rows = np.arange(first, saved.written)[~missing]
            there[rows % layout.capacity] = True
            layout.flags(arena)[:stored][~there] = FLAG_ABSENT | FLAG_END | FLAG_TRUNCATED
            for stack in layout.schema.stacks:
                runs = layout.block(arena, f"runs of {stack.name}")[:stored]
                runs[~there] = stack.depth - 1
        state = layout.state(arena)
        state[:] = 0
        state[WORD_WRITTEN] = state[WORD_RESERVED] = saved.written
        state[WORD_CLEARS] = saved.clears
        state[WORD_CLEARED] = saved.cleared
        state[WORD_HANDLE_BASE] = self._handle_base(layout)
        state[WORD_EDITS] = saved.edits
        state[N_STATE_WORDS:] = saved.episode_lens
        flags = np.ascontiguousarray(layout.flags(arena)[:stored])
        state[WORD_EPISODES] = np.count_nonzero(flags & (FLAG_END | FLAG_ABSENT) == FLAG_END)

    def _handle_base(self, layout: Layout) -> int:
        """The base of handles: handles of a saved ring of another span name no row of this one."""
        base, span = self.saved.handle_base, self.saved.layout.span
        if layout.span == span:
            return base
        return -(-(base + span + self.saved.written) // layout.span) * layout.span


def read_objects(disk: Disk, saved: ObjectFiles, items: int, decode: Decode | None) -> list[Any]:
    """Python objects from the files of their lengths and bytes, ``items`` objects for each row."""
    if decode is None:
        raise TypeError(
            "the checkpoint has Python objects as bytes: hand over decode=, the inverse of the "
            "encode= that it was saved with"
        )
    n = (saved.stop - saved.first) * items
    lengths = _arrays.read_array(disk, saved.lengths.expect(ROW_IDS, n))
    if n and (lengths.min() < 0 or lengths.max() > MOST // n):
        raise DamagedError("lengths of Python objects are out of range")
    data = saved.data.expect(BYTE, int(lengths.sum()))
    text = _arrays.read_array(disk, data).tobytes()
    stops = np.cumsum(lengths)
    pairs = zip((stops - lengths).tolist(), stops.tolist(), strict=True)
    return [decode(text[start:stop]) for start, stop in pairs]


def _check_dtype(file: File, part: RowBytes) -> None:
    """Raise ``DamagedError`` unless a file has the dtype of a part, or the fields of a record."""
    own, given = [part.dtype], [file.dtype]
    if part.name == "records":
        *names, flags = part.dtype.names or ()
        known = file.dtype.names or ()
        own = [part.dtype[name] for name in names] + [part.dtype[flags]]
        given = [file.dtype[name] for name in (*names, *known[-1:]) if name in known]
    if own != given:
        raise DamagedError(f"{file.name}: expected {part.dtype}, got {file.dtype}")


def _convert(values: Bytes, dtype: np.dtype[Any], to: Bytes, part: RowBytes) -> None:
    """Copy records that have other fields, field by field."""
    given = values.reshape(-1).view(dtype)
    out = to.reshape(-1).view(part.dtype)
    assert part.dtype.names is not None
    assert dtype.names is not None
    for name in part.dtype.names[:-1]:
        out[name] = given[name]
    out[part.dtype.names[-1]] = given[dtype.names[-1]]


def _runs(mask: NDArray[np.bool_], shift: int) -> list[tuple[int, int]]:
    """Start and stop of each run of true values, plus ``shift``."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2) + shift]


def _mark(missing: NDArray[np.bool_], runs: list[tuple[int, int]], after: int, before: int) -> None:
    """Mark the rows of runs, and ``before`` and ``after`` rows around each, which refer to it."""
    for start, stop in runs:
        missing[max(0, start - before) : max(0, stop + after)] = True
