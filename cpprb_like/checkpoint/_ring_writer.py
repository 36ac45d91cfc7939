"""Writes the rows of a ring as segments.

A segment without new or edited rows takes over the files of the previous state. Not here: the
choice of segments (``_segments.plan``), and the order of a save (``_save``).
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Bytes
from cpprb_like._core import FLAG_ABSENT, FLAG_TRUNCATED, WORD_ABSENT_ROWS, Ring
from cpprb_like._rows.edits import Tracker
from cpprb_like.checkpoint import _arrays, _beside, _manifest, _segments
from cpprb_like.checkpoint._arrays import CHUNK_NBYTES
from cpprb_like.checkpoint._disk import Disk
from cpprb_like.checkpoint._item_writer import SegmentItems, item_nbytes
from cpprb_like.checkpoint._nodes import Node
from cpprb_like.checkpoint._options import Codec, Encode
from cpprb_like.checkpoint._savable import RowsToSave
from cpprb_like.checkpoint._saved_layout import SavedLayout
from cpprb_like.checkpoint._segments import RowBytes
from cpprb_like.checkpoint._state import (
    BesideFile,
    File,
    ItemFiles,
    NewestFiles,
    ObjectFiles,
    OverflowFiles,
    PartFile,
    Segment,
    State,
    StoredFile,
    files_of,
)
from cpprb_like.checkpoint._state import Ring as SavedRing
from cpprb_like.errors import DamagedError

__all__ = ["Files", "PreviousState", "RingWriter", "refuse_objects", "write_objects"]

MOST_OPEN = 8  # files that are not synchronised yet, of up to 32 MiB each
COPIED_NBYTES = 1 << 24  # most bytes of rows that a snapshot copies; a copy takes milliseconds


class Files:
    """Writes the files of a state.

    A file is synchronised after the next files were written, so that the disk works meanwhile.
    ``watch`` is called with the number of bytes of each piece.
    """

    def __init__(self, disk: Disk, number: int, codec: Codec, watch: Callable[[int], None]) -> None:
        self.number = number
        self.beside: list[BesideFile] = []
        self._disk = disk
        self._watch = watch
        self._codec = codec
        self._names = (f"s{number}-{place}.npy" for place in itertools.count())
        self._open: deque[Any] = deque()  # files that are not synchronised, oldest first

    def write(self, dtype: np.dtype[Any], shape: tuple[int, ...], pieces: Iterator[Bytes]) -> File:
        """Write the bytes of an array, given in pieces."""
        watched, name = self._watched(pieces), next(self._names)
        file, output = _arrays.write(self._disk, name, dtype, shape, watched, self._codec)
        self._open.append(output)
        self.sync(MOST_OPEN)
        return file

    def _watched(self, pieces: Iterator[Bytes]) -> Iterator[Bytes]:
        for piece in pieces:
            self._watch(piece.nbytes)
            yield piece

    def write_array(self, array: NDArray[Any]) -> File:
        """Write an array."""
        return self.write(array.dtype, array.shape, _pieces_of(array))

    def write_beside(self, label: str, content: Any) -> None:
        """Write a file of the caller: see ``_beside.write``."""
        file, output = _beside.write(self._disk, self.number, label, content, self._watch)
        self._open.append(output)
        self.beside.append(file)
        self.sync(MOST_OPEN)

    def sync(self, most: int = 0) -> None:
        """Synchronise all files but the newest ``most``, and close them."""
        while len(self._open) > most:
            with contextlib.closing(self._open.popleft()) as output:
                output.sync()

    def close(self) -> None:
        """Close all files without synchronising them."""
        while self._open:
            self._open.popleft().close()


def _pieces_of(array: NDArray[Any]) -> Iterator[Bytes]:
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    for start in range(0, len(data), CHUNK_NBYTES):
        yield data[start : start + CHUNK_NBYTES]


class PreviousState:
    """The newest state of a folder; a save may take over its files."""

    def __init__(self, disk: Disk) -> None:
        there = _manifest.numbers(disk)
        self._disk = disk
        self.state: State | None = None  # None unless all files of the newest state exist
        if there:
            with contextlib.suppress(DamagedError):
                found = _manifest.read(disk, there[-1])
                if all(map(self._is_there, found.files)):
                    self.state = found

    @property
    def id(self) -> str:
        """The id of the state; empty without a state."""
        return "" if self.state is None else self.state.id

    def _is_there(self, file: StoredFile) -> bool:
        try:
            return self._disk.size(file.name) == file.nbytes
        except FileNotFoundError:
            return False

    def sync(self, segments: list[Segment]) -> None:
        """Synchronise the files of these segments, unless their state is synchronised."""
        if self.state is not None and not self.state.synchronised:
            for file in files_of(tuple(segments)):
                self._disk.sync(file.name)


class RingWriter:
    """The rows of one ring: planned while writers wait, written afterwards.

    ``is_still`` promises that no row changes before the end of the save, so nothing is copied.
    Otherwise the snapshot has copies of flags, index bytes and entries, and of all rows if they are
    few.
    """

    def __init__(self, holder: Any, number: int, previous: PreviousState, is_still: bool) -> None:
        rows: RowsToSave = holder._rows_to_save()
        self._arena, self._ring, self._edits = rows.arena, rows.ring, rows.edits
        self._layout = rows.layout
        self._hold = holder._hold
        self._oldest_intact = holder._oldest_intact
        self._number = number
        ring = self._ring
        self._tracker = Tracker(ring.capacity)
        self._parts = _segments.parts_of(rows.layout, rows.arena)
        layout = SavedLayout(rows.layout.options)
        oldest = ring.written - ring.stored
        self._first = self._oldest = max(oldest, self._oldest_intact())
        absent = int(rows.layout.state(rows.arena)[WORD_ABSENT_ROWS])
        lost = rows.layout.flags(rows.arena)[np.arange(oldest, self._first) % ring.capacity]
        absent -= int(np.count_nonzero(lost & FLAG_ABSENT))
        state, known, tracker = previous.state, None, None
        if state is not None and number < len(state.rings):
            found = state.rings[number]
            own = layout, ring.clears, ring.handle_base
            is_same = own == (found.layout, found.clears, found.handle_base)
            if is_same and self._first >= found.oldest:
                known = found
                tracker = self._edits.since(state, Node("", state.root), number, ring, absent)
        objects = [column for column in ring.columns if column.objects is not None]
        beside = sum(column.nbytes for column in objects)
        beside += item_nbytes(ring) if ring.items and tracker is None else 0
        self._plan = _segments.plan(ring, self._parts, beside, known, tracker)
        self._moment, self._rereads, self._left_before = ring.now(), ring.rereads, ring.left_before
        self._is_still = is_still
        self._items: dict[int, list[SegmentItems]] = {}  # if rows may change during the save
        self._items_nbytes = self._note_items()
        self._is_copied = self.nbytes <= COPIED_NBYTES and not is_still
        for items in (one for some in self._items.values() for one in some if self._is_copied):
            items.copy()
        flags = _segments.flags_of(rows.layout, rows.arena)
        self._frozen = {
            (part.name, segment): part.frozen(low, high)
            for part, segment, low, high in self._parts_to_write(flags, *self._parts)
            if self._is_copied or (part.is_index and not is_still)
        }
        self._last = {
            (chain.name, k): aside.last
            for chain in ring.chains
            for k, aside in enumerate(chain.asides)
        }
        self._overflow: dict[tuple[str, int, int], tuple[NDArray[np.int64], Bytes]] = {}
        if self._is_copied:
            self._overflow = {
                (chain.name, k, segment): aside.part(*self._aside_range(chain.name, k, segment))
                for chain in ring.chains
                for k, aside in enumerate(chain.asides)
                for segment in self._plan.write
            }
        self._newest = {chain.name: chain.newest() for chain in ring.chains}
        slots = np.arange(self._first, ring.written) % ring.capacity
        # References to the objects of all rows, by row id from the oldest.
        self._objects: dict[str, Any] = {
            column.name: cast("Any", column.objects)[slots] for column in objects
        }
        self.saved = SavedRing(
            layout=layout,
            written=ring.written,
            oldest=self._first,
            first=ring.first,
            absent=absent,
            clears=ring.clears,
            cleared=ring.cleared,
            handle_base=ring.handle_base,
            edits=self._moment.edits,
            episode_lens=episode_lens(ring),
            segment_rows=self._plan.segment_rows,
            segments=(),
            newest={},
            left=tuple(items.left for items in ring.items),
        )
        # From now on the new tracker records edits; the previous tracker stays until ``put``.
        self._edits.begin(ring, self._tracker, self)

    @property
    def nbytes(self) -> int:
        """Approximate number of bytes to be written."""
        parts = self._parts_to_write(*self._parts)
        rows = sum((high - low) * part.nbytes for part, _, low, high in parts)
        return self._items_nbytes + rows

    def _parts_to_write(self, *parts: RowBytes) -> Iterator[tuple[RowBytes, int, int, int]]:
        """Each of the parts in each segment to be written, with the segment and its rows."""
        for number in self._plan.write:
            for part in parts:
                low, high = self._range(number, part.before)
                if low < high:
                    yield part, number, low, high

    def _aside_range(self, name: str, k: int, number: int) -> tuple[int, int]:
        """The rows of a segment that may have values in an overflow."""
        rows = self._plan.segment_rows
        return number * rows, min((number + 1) * rows, self._last[name, k] + 1)

    def _range(self, number: int, before: int = 0) -> tuple[int, int]:
        """The rows of a segment that the state needs, with ``before`` rows before its oldest."""
        rows = self._plan.segment_rows
        low = max(number * rows, self._oldest - before, 0)
        return low, max(low, min((number + 1) * rows, self._moment.written))

    def _note_items(self) -> int:
        """Note where the items lie, and return their bytes."""
        total = 0
        for number in self._plan.write if self._ring.items else ():
            items = self._items_of(number)
            total += sum(one.nbytes for one in items)
            if not self._is_still:
                self._items[number] = items
        return total

    def _items_of(self, number: int) -> list[SegmentItems]:
        """The items of a segment by axis, as they are now; writers wait."""
        ring, (low, high) = self._ring, self._range(number)
        return [
            SegmentItems(self._layout, self._arena, ring, axis, low, high)
            for axis in range(len(ring.items) if low < high else 0)
        ]

    def write(self, files: Files, previous: PreviousState, encode: Encode | None) -> None:
        """Write the files of the plan."""
        previous.sync(self._plan.known)
        segments = self._plan.known
        segments += [self._write_segment(number, files, encode) for number in self._plan.write]
        segments.sort(key=lambda segment: segment.number)
        newest = {
            name: NewestFiles(*map(files.write_array, arrays))
            for name, arrays in self._newest.items()
        }
        self.saved = replace(self.saved, segments=tuple(segments), newest=newest)

    def _write_segment(self, number: int, files: Files, encode: Encode | None) -> Segment:
        parts = {}
        for part in self._parts:
            low, high = self._range(number, part.before)
            if low < high:
                flags = self._frozen.get(("flags", number)) if part is self._parts[0] else None
                pieces = self._frozen.get((part.name, number), part).pieces(low, high, flags)
                file = files.write(part.dtype, (high - low, *part.shape), pieces)
                parts[part.name] = PartFile(file, low, high)
        low, high = self._range(number)
        objects = {}
        for name, values in self._objects.items():
            own = values[low - self._first : high - self._first].reshape(-1)
            objects[name] = replace(write_objects(files, own, encode, name), first=low, stop=high)
        overflow = self._write_overflow(number, files)
        return Segment(number, parts, overflow, objects, self._write_items(number, files))

    def _write_items(self, number: int, files: Files) -> tuple[ItemFiles, ...]:
        found = []
        for items in self._items.get(number) or self._items_of(number):
            counts = files.write_array(items.marked_counts)
            values = {
                field.name: files.write(
                    field.dtype, (items.total, *field.item_shape), items.pieces(field)
                )
                for field in items.fields
            }
            found.append(ItemFiles(items.axis, counts, values, items.first, items.stop))
        return tuple(found)

    def _write_overflow(self, number: int, files: Files) -> dict[str, OverflowFiles]:
        found = {}
        for chain in self._ring.chains:
            for k, aside in enumerate(chain.asides):
                place = chain.name, k, number
                if self._is_copied:
                    ids, values = self._overflow[place]
                else:
                    ids, values = self._hold(True, aside.part, *self._aside_range(*place))
                if len(ids):
                    own = OverflowFiles(files.write_array(ids), files.write_array(values))
                    found[f"{k} of {chain.name}"] = own
        return found

    def settle(self, files: Files, encode: Encode | None) -> None:
        """Leave out overwritten rows, and write segments with edited rows again; writers wait."""
        ring, moment = self._ring, self._moment
        if self._is_copied:
            return
        if ring.clears != moment.clears:
            raise RuntimeError("the buffer was cleared while it was saved; the folder is as it was")
        begun = self.saved.written, self.saved.edits, self.saved.episode_lens
        if self._is_still and begun != (ring.written, ring.now().edits, episode_lens(ring)):
            raise RuntimeError(
                "encode= or a signal handler changed the buffer while it was saved; the folder is "
                "as it was"
            )
        oldest = max(self._first, ring.written - ring.capacity, self._oldest_intact())
        if ring.left_before != self._left_before:
            oldest = max(oldest, ring.left_before)
        if ring.written != moment.written and oldest >= moment.written:
            raise RuntimeError(
                "all rows were overwritten, or left as the room was full, while they were saved; "
                "the folder is as it was. save() keeps writers waiting, save_async() does not"
            )
        self._oldest = oldest
        slots = self._tracker.slots()
        edited = ring.row_ids(slots[slots < ring.stored])
        edited = edited[(edited < moment.written) & (edited >= oldest)]
        for column in ring.columns:
            if column.name in self._objects:
                now: Any = column.objects
                self._objects[column.name][edited - self._first] = now[edited % ring.capacity]
        changed = set((edited // self._plan.segment_rows).tolist()) & {*self._plan.write}
        if ring.items:
            changed |= self._leave_out_deleted(edited)
            self._items |= {number: self._items_of(number) for number in changed}
        segments = tuple(
            self._write_segment(segment.number, files, encode)
            if segment.number in changed
            else segment
            for segment in self.saved.segments
        )
        self.saved = replace(self.saved, oldest=oldest, segments=segments)

    def _leave_out_deleted(self, edited: NDArray[np.int64]) -> set[int]:
        """Leave out rows that were deleted since the snapshot: their items may be overwritten.

        Returns the segments of these rows, also of those that were written earlier: without only
        some of its rows, an episode would go on in the next one. A rewind deletes parts of
        episodes.
        """
        ring, rows = self._ring, self._plan.segment_rows
        deleted = edited[self._layout.flags(self._arena)[edited % ring.capacity] & FLAG_ABSENT != 0]
        if len(deleted) and ring.rereads != self._rereads:
            raise RuntimeError(
                "the buffer was rewound while it was saved; the folder is as it was. save() keeps "
                "writers waiting, save_async() does not"
            )
        for number in self._plan.write:
            own = deleted[deleted // rows == number]
            if len(own):
                flags = self._frozen["flags", number].memory
                flags[own % len(flags)] = FLAG_ABSENT | FLAG_TRUNCATED
        self.saved = replace(self.saved, absent=self.saved.absent + len(deleted))
        return set((deleted // rows).tolist())

    def commit(self, state: str, previous: str) -> None:
        """End a save that made the state of this id; ``previous`` is the id of the state before."""
        self._edits.put(self._ring, state, self._number, self._tracker, previous)
        self._edits.end(self._ring, self._tracker)

    def abandon(self) -> None:
        """End a save that made no state."""
        self._edits.end(self._ring, self._tracker)


def episode_lens(ring: Ring) -> tuple[int, ...]:
    """Number of steps of the open episode of each stream."""
    return tuple(ring.episode_len(stream) for stream in range(ring.n_envs))


def refuse_objects(name: str) -> NoReturn:
    """Raise ``TypeError``: Python objects cannot be saved without ``encode``."""
    raise TypeError(
        f"{name!r} holds Python objects, of which a checkpoint knows no bytes: hand over "
        "encode=, a function of an object that returns bytes, and decode= to load"
    )


def write_objects(
    files: Files, values: Iterable[Any], encode: Encode | None, name: str
) -> ObjectFiles:
    """Write the bytes of Python objects."""
    if encode is None:
        refuse_objects(name)
    found = []
    for value in values:
        data = encode(value)
        if not isinstance(data, bytes):
            raise TypeError(f"encode: expected bytes, got {type(data).__name__}")
        found.append(data)
    lengths = files.write_array(np.array([len(data) for data in found], np.int64))
    all_bytes = files.write_array(np.frombuffer(b"".join(found), np.uint8))
    return ObjectFiles(lengths, all_bytes, 0, len(found))
