"""Log of flushes: restores the rows of the last ``flush`` after a crash of the machine.

The system writes the pages of a mapped file when it likes. So after a crash each page, or part of
one, is as it was at the last flush or as at any time since. A log beside the rows has what the
header said at each flush, and a checksum of each row: rows whose bytes are others now are left out.
The log is appended to, so a flush costs in proportion to the rows that changed. Not here: the files
(``file_maps``), and what a process that is killed leaves (``recovery``).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Array, Bytes
from cpprb_like._core import (
    FLAG_ABSENT,
    WORD_CLEARS,
    WORD_EDITS,
    WORD_HANDLE_BASE,
    WORD_RESERVED,
    WORD_WRITTEN,
)
from cpprb_like._fields.schema import Layout
from cpprb_like._files.recovery import derive, end_before, hide
from cpprb_like._machine.crc32 import crc32

__all__ = ["Flushed", "Fresh", "pack", "unpack"]

MAGIC = b"cpprb_fl"
HEAD_NBYTES = 24  # magic, bytes of the record, its checksum
FOLLOWS, WHOLE, FRAME = 0, 1, 2  # marks of ``chained.NextOf``


class Fresh(NamedTuple):
    """What a queue keeps since the last record, oldest first."""

    generation: int  # of the file
    oldest: int  # key of the oldest value that is stored
    keys: Array
    places: Array  # of the values in the file
    values: Array  # a row of bytes for each


def pack(numbers: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    """A record of the log: numbers and arrays, with a checksum of all."""
    listing = [(name, array.dtype.str, list(array.shape)) for name, array in arrays.items()]
    text = json.dumps([dict(numbers), listing]).encode()
    parts = [np.int64(len(text)).tobytes(), text, *(array.tobytes() for array in arrays.values())]
    body = b"".join(parts)
    return MAGIC + np.array([len(body), crc32(body)], np.int64).tobytes() + body


def unpack(log: bytes) -> Iterator[tuple[dict[str, Any], dict[str, Array], int]]:
    """The records of a log, up to the first that is not whole, and where each ends."""
    place = 0
    while log[place : place + len(MAGIC)] == MAGIC and len(log) >= place + HEAD_NBYTES:
        nbytes, checksum = np.frombuffer(log, np.int64, 2, place + len(MAGIC)).tolist()
        body = log[place + HEAD_NBYTES : place + HEAD_NBYTES + max(nbytes, 0)]
        if len(body) != nbytes or crc32(body) != checksum:
            return
        length = int(np.frombuffer(body, np.int64, 1)[0])
        numbers, listing = json.loads(body[8 : 8 + length])
        arrays, start = {}, 8 + length
        for name, dtype, shape in listing:
            count = int(np.prod(shape))
            arrays[name] = np.frombuffer(body, dtype, count, start).reshape(shape)
            start += arrays[name].nbytes
        place += HEAD_NBYTES + nbytes
        yield numbers, arrays, place


def _checksums(memory: memoryview, starts: Array, nbytes: int, before: list[int]) -> list[int]:
    """Checksums of bytes at some places, each going on from one before."""
    return [
        crc32(memory[start : start + nbytes], checksum)
        for start, checksum in zip(starts.tolist(), before, strict=True)
    ]


def _forget_before(entries: deque[tuple[int, int, int]], oldest: int) -> None:
    """Forget what is noted of values that the queue has dropped."""
    while entries and entries[0][0] < oldest:
        entries.popleft()


class Flushed:
    """The state of the rows at the last flush: what the log has of them, all records together.

    Parameters
    ----------
    layout : Layout
        Of the rows.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.state = np.zeros(layout.state_nbytes // 8, np.int64)
        self.sums = np.zeros(layout.capacity, np.uint32)
        self.bytes = {name: np.zeros(layout.capacity, np.uint8) for name in self._small()}
        self.frame_sums = {
            stack.name: np.zeros(layout.capacity + (stack.depth - 1) * layout.n_envs, np.uint32)
            for stack in layout.schema.stacks
        }
        self.latest: list[Array] = []
        self.generations: dict[str, int] = {}
        self.entries: dict[str, deque[tuple[int, int, int]]] = {}  # key, place and checksum, by key

    def _small(self) -> list[str]:
        """What has a byte for each row, and is in the log as it is."""
        names = [name for name, _, _ in self.layout.blocks if not name.startswith("frames of ")]
        return ["flags", *names]

    def _bytes_of(self, arena: Bytes, name: str) -> Bytes:
        return self.layout.flags(arena) if name == "flags" else self.layout.block(arena, name)

    # ------------------------------------------------------------------ writing

    def note(
        self,
        arena: Bytes,
        edited: NDArray[np.intp],
        latest: list[Array],
        queues: Mapping[str, Fresh],
    ) -> tuple[dict[str, Any], dict[str, Array]]:
        """Take up the present state, and return what a record has to say of it.

        Cost: in proportion to what changed since the last record.
        """
        layout, before = self.layout, self.state
        state = layout.state(arena).copy()
        written, first = int(state[WORD_WRITTEN]), int(before[WORD_WRITTEN])
        first = first if state[WORD_CLEARS] == before[WORD_CLEARS] else 0
        new = np.arange(max(first, written - layout.capacity), written) % layout.capacity
        newest = np.arange(max(0, written - 2 * layout.n_envs), written) % layout.capacity
        slots = np.union1d(np.union1d(new, newest), edited[edited < written]).astype(np.int64)
        self.state = state
        self.sums[slots] = self._sums(arena, slots)
        arrays: dict[str, Array] = {"slots": slots, "sums": self.sums[slots]}
        # The mark of the newest row changes with the next one: all that may have are noted again.
        since = np.arange(max(0, first - layout.n_envs, written - layout.capacity), written)
        small = np.union1d(slots, since % layout.capacity)
        arrays["small"] = small
        for name, values in self.bytes.items():
            values[small] = self._bytes_of(arena, name)[small]
            arrays[name] = values[small]
        for name, sums in self.frame_sums.items():
            places = np.arange(max(first, written - len(sums)), written) % len(sums)
            sums[places] = self._frames_of(arena, name, places)
            arrays[f"places {name}"], arrays[f"sums {name}"] = places, sums[places]
        for number, values in enumerate(latest):
            arrays[f"latest {number}"] = values
        self.latest = latest
        for name, fresh in queues.items():
            entries = self._entries_of(name, fresh.generation)
            crcs = [crc32(value) for value in np.ascontiguousarray(fresh.values)]
            found = list(zip(fresh.keys.tolist(), fresh.places.tolist(), crcs, strict=True))
            entries.extend(found)
            _forget_before(entries, fresh.oldest)
            self.generations[name] = fresh.generation
            arrays[f"kept {name}"] = np.array(found, np.int64).reshape(len(found), 3)
        numbers = {"state": state.tolist(), "generations": self.generations}
        return numbers, arrays

    def newest(self, name: str, generation: int) -> tuple[int, int] | None:
        """Key and place of the newest value of a queue that is noted, of this file."""
        entries = self.entries.get(name)
        return entries[-1][:2] if entries and self.generations.get(name) == generation else None

    def _entries_of(self, name: str, generation: int) -> deque[tuple[int, int, int]]:
        """What is noted of a queue: nothing if its file is another one."""
        if self.generations.get(name) != generation:
            self.entries[name] = deque()
        return self.entries[name]

    def _sums(self, arena: Bytes, slots: NDArray[np.int64]) -> list[int]:
        """Checksums of the bytes of rows, but for those that are in the log themselves."""
        layout, memory = self.layout, arena.data
        offset, stride, nbytes = layout.record
        found = _checksums(memory, offset + slots * stride, nbytes, [0] * len(slots))
        for number, (place, nbytes) in enumerate(zip(layout.offsets, layout.strides, strict=True)):
            if place >= 0 and not layout.in_record(number):
                found = _checksums(memory, place + slots * nbytes, nbytes, found)
        return found

    def _frames_of(self, arena: Bytes, name: str, places: Array) -> list[int]:
        """Checksums of frames."""
        block = self.layout.block(arena, f"frames of {name}")
        nbytes = len(block) // len(self.frame_sums[name])
        return _checksums(block.data, places * nbytes, nbytes, [0] * len(places))

    def whole(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """What a record says that needs none before it."""
        slots = np.arange(self.layout.capacity)
        arrays: dict[str, Array] = {"slots": slots, "sums": self.sums, "small": slots}
        arrays |= self.bytes
        for name, sums in self.frame_sums.items():
            arrays[f"places {name}"], arrays[f"sums {name}"] = np.arange(len(sums)), sums
        for number, values in enumerate(self.latest):
            arrays[f"latest {number}"] = values
        for name, entries in self.entries.items():
            arrays[f"kept {name}"] = np.array(entries, np.int64).reshape(len(entries), 3)
        return {"state": self.state.tolist(), "generations": self.generations}, arrays

    def take(self, numbers: dict[str, Any], arrays: dict[str, Array]) -> None:
        """Take up a record of the log."""
        self.state = np.array(numbers["state"], np.int64)
        self.sums[arrays["slots"]] = arrays["sums"]
        for name, values in self.bytes.items():
            values[arrays["small"]] = arrays[name]
        for name, sums in self.frame_sums.items():
            sums[arrays[f"places {name}"]] = arrays[f"sums {name}"]
        self.latest = [
            arrays[f"latest {number}"] for number in range(len(self.layout.schema.chained))
        ]
        for name, generation in numbers["generations"].items():
            entries = self._entries_of(name, generation)
            entries.extend((key, place, crc) for key, place, crc in arrays[f"kept {name}"].tolist())
            oldest = int(self.state[WORD_HANDLE_BASE])
            if len(entries) > 2 * self.layout.capacity + 8:  # of rows that are gone long since
                oldest += int(self.state[WORD_WRITTEN]) - 2 * self.layout.capacity
            _forget_before(entries, oldest)
        self.generations = dict(numbers["generations"])

    # ------------------------------------------------------------------ after a crash

    def restore(
        self, arena: Bytes, asides: list[list[tuple[str, int, int]]], old: Mapping[str, Any]
    ) -> tuple[int, dict[str, list[tuple[int, Array]]]]:
        """Make an arena what it was, but for rows that are not as they were: these are absent.

        ``asides``: of each chained field, name, reach and lag of its queues; ``old``: keys and
        values of those files that are there. Returns how many rows are left out, and what each
        queue keeps, by key.
        """
        layout = self.layout
        state, capacity, n_envs = layout.state(arena), layout.capacity, layout.n_envs
        state[:] = self.state
        state[WORD_RESERVED] = state[WORD_WRITTEN]
        state[WORD_EDITS] += state[WORD_EDITS] % 2
        written, base = int(state[WORD_WRITTEN]), int(state[WORD_HANDLE_BASE])
        for name, values in self.bytes.items():
            self._bytes_of(arena, name)[:] = values
        ids = np.arange(max(0, written - capacity), written)
        slots = ids % capacity
        torn = np.zeros(capacity, np.bool_)
        torn[slots] = np.array(self._sums(arena, slots), np.uint32) != self.sums[slots]
        entries: dict[str, list[tuple[int, Array]]] = {}
        for name, reach, lag in (aside for asides_of in asides for aside in asides_of):
            oldest = max(0, written - reach)
            entries[name] = self._sound(name, old, base + oldest, base + written - lag)
        rows_apart = {
            name: np.array([key - base for key, _ in values], np.int64)
            for name, values in entries.items()
        }
        bad = torn[slots]
        bad_stacks: dict[str, NDArray[np.bool_]] = {}
        for number, stack in enumerate(layout.schema.stacks):
            there = rows_apart.get(asides[number][0][0]) if asides[number] else None
            bad_stacks[stack.name] = self._bad_stacks(arena, stack.name, stack.depth, ids, there)
            bad = bad | bad_stacks[stack.name]
        for number, (name, source) in enumerate(layout.schema.next_of, len(layout.schema.stacks)):
            marks = self.bytes[f"marks of {name}"][slots]
            later = ids + n_envs < written  # of the newest rows the log has the next values
            source_bad = bad_stacks.get(source, torn[slots])
            next_bad = np.zeros(len(ids), np.bool_)
            next_bad[: max(0, len(ids) - n_envs)] = source_bad[n_envs:]
            bad = bad | (later & (marks != WHOLE) & (marks != FRAME) & next_bad)
            for mark, (queue, _, _) in zip((WHOLE, FRAME), asides[number], strict=False):
                bad = bad | (later & (marks == mark) & ~np.isin(ids, rows_apart[queue]))
        was_there = self.bytes["flags"][slots] & FLAG_ABSENT == 0
        lost = ids[bad & was_there]
        hide(layout, arena, lost)
        end_before(layout, arena, lost)
        for name, _ in layout.schema.next_of:
            marks = layout.block(arena, f"marks of {name}")
            marks[slots[bad | (ids + n_envs >= written)]] = FOLLOWS
        for number in range(len(layout.schema.stacks), len(asides)):
            for name, _, _ in asides[number]:
                gone = set((ids[bad] + base).tolist())
                entries[name] = [(key, value) for key, value in entries[name] if key not in gone]
        derive(layout, arena)
        return len(lost), entries

    def _sound(
        self, name: str, old: Mapping[str, Any], low: int, high: int
    ) -> list[tuple[int, Array]]:
        """The values of a queue that are as they were, by key."""
        if name not in old:
            return []
        keys, values = old[name]
        rows = values.reshape(len(keys), -1)
        return [
            (key, rows[place].copy())
            for key, place, checksum in self.entries.get(name, ())
            if low <= key < high
            and place < len(keys)
            and keys[place] == key
            and crc32(rows[place]) == checksum
        ]

    def _bad_stacks(
        self, arena: Bytes, name: str, depth: int, ids: Array, entries: Array | None
    ) -> NDArray[np.bool_]:
        """Whether a frame of the stack of each of these rows is not as it was."""
        n_envs, sums = self.layout.n_envs, self.frame_sums[name]
        torn = np.zeros(len(sums), np.bool_)
        oldest = max(0, int(ids[-1]) + 1 - len(sums)) if len(ids) else 0
        places = np.arange(oldest, int(ids[-1]) + 1 if len(ids) else 0) % len(sums)
        found = np.array(self._frames_of(arena, name, places), np.uint32)
        torn[places] = found != sums[places]
        runs = self.bytes[f"runs of {name}"][ids % self.layout.capacity].astype(np.int64)
        bad = np.zeros(len(ids), np.bool_)
        for age in range(depth):
            row = ids - age * n_envs
            bad |= (runs >= age) & (row >= 0) & torn[row % len(sums)]
        if entries is not None:
            bad |= (runs < depth - 1) & ~np.isin(ids - runs * n_envs, entries)
        return bad
