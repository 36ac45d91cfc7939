"""Log of flushes: restores the rows of the last ``flush`` after a crash of the machine.

The system writes the pages of a mapped file at any time. So after a crash each part of a page has
its bytes of the last flush, or of any later time. A log file has the header at each flush, a
checksum of each row, and the values of side files. Rows with another checksum are left out. Each
flush appends a record of the changes. Not here: the files (``file_maps``), and repairs after a kill
(``recovery``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
from cpprb_like._fields.layout import Layout
from cpprb_like._files.recovery import Aside, derive, end_before, hide
from cpprb_like._machine.crc32 import crc32

__all__ = ["Flushed", "Record", "SideValues", "pack", "unpack"]

SideValues = tuple[Array, Array]  # keys of a side file, oldest first, and the bytes of each value
Record = tuple[dict[str, Any], dict[str, Array]]

MAGIC = b"cpprb_f2"
HEAD_NBYTES = 24  # magic, length of the record, checksum
FOLLOWS, WHOLE, FRAME = 0, 1, 2  # marks of ``chained.NextOf``


def pack(numbers: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    """The bytes of a record of numbers and arrays, with a checksum."""
    listing = [(name, array.dtype.str, list(array.shape)) for name, array in arrays.items()]
    text = json.dumps([dict(numbers), listing]).encode()
    parts = [np.int64(len(text)).tobytes(), text, *(array.tobytes() for array in arrays.values())]
    body = b"".join(parts)
    return MAGIC + np.array([len(body), crc32(body)], np.int64).tobytes() + body


def unpack(log: bytes) -> Iterator[tuple[dict[str, Any], dict[str, Array], int]]:
    """The records of a log before the first damaged one, each with the place of its end."""
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
    """The checksum of ``nbytes`` bytes at each start, which continues the one in ``before``."""
    return [
        crc32(memory[start : start + nbytes], checksum)
        for start, checksum in zip(starts.tolist(), before, strict=True)
    ]


class Flushed:
    """State of the rows at the last flush: the sum of all records of the log."""

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
        self.newest: dict[str, int] = {}  # key of the newest logged value of each side file
        self.side_values: dict[str, list[SideValues]] = {}  # from the records of ``take``

    def _small(self) -> list[str]:
        """The names of the parts with one byte for each row, which the log stores as they are."""
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
        side_values: Mapping[str, SideValues],
        *,
        is_whole: bool,
    ) -> Record:
        """Take in the present state; return a record of the changes, or of all if ``is_whole``.

        ``side_values`` are the values of side files that are not in the log. Cost: proportional to
        the changes.
        """
        layout, before = self.layout, self.state
        state = layout.state(arena).copy()
        written, first = int(state[WORD_WRITTEN]), int(before[WORD_WRITTEN])
        first = first if state[WORD_CLEARS] == before[WORD_CLEARS] else 0
        new = np.arange(max(first, written - layout.capacity), written) % layout.capacity
        newest = np.arange(max(0, written - 2 * layout.n_envs), written) % layout.capacity
        slots = np.union1d(np.union1d(new, newest), edited[edited < written]).astype(np.int64)
        # The mark of the newest row changes with the next row, so marks of these rows are included.
        since = np.arange(max(0, first - layout.n_envs, written - layout.capacity), written)
        small = np.union1d(slots, since % layout.capacity)
        self.state, self.latest = state, latest
        self.sums[slots] = self._sums(arena, slots)
        for name, values in self.bytes.items():
            values[small] = self._bytes_of(arena, name)[small]
        places = {}
        for name, sums in self.frame_sums.items():
            places[name] = np.arange(max(first, written - len(sums)), written) % len(sums)
            sums[places[name]] = self._frames_of(arena, name, places[name])
        if is_whole:
            slots = small = np.arange(layout.capacity)
            places = {name: np.arange(len(sums)) for name, sums in self.frame_sums.items()}
        arrays: dict[str, Array] = {"slots": slots, "sums": self.sums[slots], "small": small}
        arrays |= {name: values[small] for name, values in self.bytes.items()}
        for name, sums in self.frame_sums.items():
            arrays[f"places {name}"], arrays[f"sums {name}"] = places[name], sums[places[name]]
        arrays |= {f"latest {number}": values for number, values in enumerate(latest)}
        for name, (keys, values) in side_values.items():
            arrays[f"keys {name}"], arrays[f"values {name}"] = keys, values
            if len(keys):
                self.newest[name] = int(keys[-1])
        return {"state": state.tolist(), "side_values": list(side_values)}, arrays

    def _sums(self, arena: Bytes, slots: NDArray[np.int64]) -> list[int]:
        """Checksums of the rows, without the parts that the log stores as they are."""
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

    def take(self, numbers: dict[str, Any], arrays: dict[str, Array]) -> None:
        """Take in a record of the log."""
        self.state = np.array(numbers["state"], np.int64)
        self.sums[arrays["slots"]] = arrays["sums"]
        for name, values in self.bytes.items():
            values[arrays["small"]] = arrays[name]
        for name, sums in self.frame_sums.items():
            sums[arrays[f"places {name}"]] = arrays[f"sums {name}"]
        self.latest = [
            arrays[f"latest {number}"] for number in range(len(self.layout.schema.chained))
        ]
        reach = max([self.layout.capacity, *map(len, self.frame_sums.values())])
        oldest = int(self.state[WORD_HANDLE_BASE]) + int(self.state[WORD_WRITTEN]) - reach
        for name in numbers["side_values"]:
            keys, values = arrays[f"keys {name}"], arrays[f"values {name}"]
            side_values = self.side_values.setdefault(name, [])
            if len(keys):
                side_values.append((keys, values))
                self.newest[name] = int(keys[-1])
            while side_values and side_values[0][0][-1] < oldest:
                side_values.pop(0)

    # ------------------------------------------------------------------ after a crash

    def restore(
        self, arena: Bytes, asides: Sequence[Sequence[Aside]]
    ) -> tuple[int, dict[str, SideValues]]:
        """Restore an arena to the last flush; rows that changed since become absent.

        ``asides`` are the side files of each chained field. Returns the number of rows that are
        left out, and the values of each side file.
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
        side_values, rows_apart = {}, {}
        for aside in (aside for asides_of in asides for aside in asides_of if aside.nbytes):
            keys, values = self._side_values(aside)
            is_kept = keys >= base + max(0, written - aside.reach)
            is_kept &= keys < base + written - aside.lag
            side_values[aside.name] = keys[is_kept], values[is_kept]
            rows_apart[aside.name] = side_values[aside.name][0] - base
        bad = torn[slots]
        bad_stacks: dict[str, NDArray[np.bool_]] = {}
        for number, stack in enumerate(layout.schema.stacks):
            there = rows_apart.get(asides[number][0].name)
            bad_stacks[stack.name] = self._bad_stacks(arena, stack.name, stack.depth, ids, there)
            bad = bad | bad_stacks[stack.name]
        for number, (name, source) in enumerate(layout.schema.next_of, len(layout.schema.stacks)):
            marks = self.bytes[f"marks of {name}"][slots]
            later = ids + n_envs < written  # the log has the next values of the newest rows
            source_bad = bad_stacks.get(source, torn[slots])
            next_bad = np.zeros(len(ids), np.bool_)
            next_bad[: max(0, len(ids) - n_envs)] = source_bad[n_envs:]
            bad = bad | (later & (marks != WHOLE) & (marks != FRAME) & next_bad)
            for mark, aside in zip((WHOLE, FRAME), asides[number], strict=True):
                if aside.nbytes:
                    bad = bad | (later & (marks == mark) & ~np.isin(ids, rows_apart[aside.name]))
        was_there = self.bytes["flags"][slots] & FLAG_ABSENT == 0
        lost = ids[bad & was_there]
        hide(layout, arena, lost)
        end_before(layout, arena, lost)
        for name, _ in layout.schema.next_of:
            marks = layout.block(arena, f"marks of {name}")
            marks[slots[bad | (ids + n_envs >= written)]] = FOLLOWS
        for asides_of in asides[len(layout.schema.stacks) :]:
            for aside in (aside for aside in asides_of if aside.nbytes):
                keys, values = side_values[aside.name]
                is_kept = ~np.isin(keys, ids[bad] + base)
                side_values[aside.name] = keys[is_kept], values[is_kept]
        derive(layout, arena)
        return len(lost), side_values

    def _side_values(self, aside: Aside) -> SideValues:
        """The logged values of a side file, including values that it dropped before the flush."""
        side_values = self.side_values.get(aside.name, [])
        keys = [np.empty(0, np.int64), *(keys for keys, _ in side_values)]
        values = [np.empty((0, aside.nbytes), np.uint8), *(values for _, values in side_values)]
        return np.concatenate(keys), np.concatenate(values)

    def _bad_stacks(
        self, arena: Bytes, name: str, depth: int, ids: Array, entries: Array | None
    ) -> NDArray[np.bool_]:
        """A flag for each row with a frame that differs from the last flush.

        ``entries`` are the ids of rows whose older frames are in a side file.
        """
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
