"""Reads segments into the memory of a ring, which may have another capacity and fewer fields.

A row keeps its id, so it finds its place in a ring of any capacity, and so does whatever else goes
by ids. Rows that the ring has room for and the files do not have are absent. Not here: what the
files hold (``_segments``), and the buffer round the ring (``buffers._replay``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
    WORD_CLEARS,
    WORD_EDITS,
    WORD_HANDLE_BASE,
    WORD_RESERVED,
    WORD_WRITTEN,
    Ring,
)
from cpprb_like._fields.schema import Field, Layout, Schema, Stack
from cpprb_like._files.recovery import derive, end_before
from cpprb_like._machine.byte_order import native
from cpprb_like._rows.chained import FrameStack
from cpprb_like._rows.chained import load as load_chain
from cpprb_like._rows.column import Column, load_objects
from cpprb_like.checkpoint import _arrays
from cpprb_like.checkpoint._arrays import DamagedError, FileEntry
from cpprb_like.checkpoint._disk import Disk
from cpprb_like.checkpoint._segments import Part, parts_of
from cpprb_like.checkpoint._values import dtype_from_json

__all__ = ["Found", "RingReader", "differences", "dtypes_in_files", "schema_of"]

MOST = 1 << 61
Decode = Callable[[bytes], Any]


class Found(NamedTuple):
    """What was loaded."""

    first: int  # id of the oldest row
    missing: NDArray[np.bool_]  # of each row from there on, whether damaged files have cost it
    reader: RingReader

    @property
    def is_whole(self) -> bool:
        """Whether all rows are there that the ring had."""
        return self.first == self.reader.written - self.reader.stored and not self.missing.any()

    def old_slots(self, ring: Ring) -> NDArray[np.intp]:
        """Of each slot in use, the slot that its row had, -1 for an absent row."""
        rows = np.arange(self.first, self.reader.written)[~self.missing]
        slots = np.full(ring.stored, -1, np.intp)
        slots[rows % ring.capacity] = rows % self.reader.capacity
        return slots


def schema_of(ring: dict[str, Any], names: Sequence[str] | None = None) -> Schema:
    """The fields of a manifest, or those of these names; ``ValueError`` if they cannot be alone."""
    saved, dtypes = ring["layout"], dtypes_in_files(ring)
    fields = tuple(
        Field(str(name), native(dtypes[name]), tuple(int(length) for length in shape))
        for name, _, shape in saved["fields"]
    )
    next_of = tuple((str(name), str(source)) for name, source in saved["next_of"])
    stacks = tuple(Stack(str(name), int(axis), int(depth)) for name, axis, depth in saved["stacks"])
    schema = Schema(fields, saved["terminated"], saved["truncated"], next_of, stacks)
    ends = {fields[number].name for number, *_ in schema.end_fields()}
    if names is None:
        return schema
    known = list(schema.names)
    unknown = [name for name in names if name not in known]
    if unknown or len(set(names)) != len(names):
        raise ValueError(f"fields: expected each once, of {known}, got {list(names)}")
    missing = sorted(ends - set(names))
    if missing:
        raise ValueError(f"fields: {missing} end episodes, so they have to be there")
    alone = [name for name, source in next_of if name in names and source not in names]
    if alone:
        raise ValueError(f"fields: {alone} come from fields that are not asked for")
    return Schema(
        tuple(field for field in fields if field.name in names),
        schema.terminated,
        schema.truncated,
        tuple(pair for pair in next_of if pair[0] in names),
        tuple(stack for stack in stacks if stack.name in names),
    )


def dtypes_in_files(ring: dict[str, Any]) -> dict[str, np.dtype[Any]]:
    """By field, the dtype that its values have in the files of a manifest, in any byte order."""
    return {
        name: np.dtype(object) if descr == "object" else dtype_from_json(descr)
        for name, descr, _ in ring["layout"]["fields"]
    }


def differences(there: Schema, saved: Schema) -> list[str]:
    """What differs, field by field; nothing if the rows of one can be those of the other."""
    found = []
    own = {field.name: field for field in there.fields}
    other = {field.name: field for field in saved.fields}
    found += [f"field {name!r} is not in the checkpoint" for name in own if name not in other]
    found += [f"field {name!r} is in the checkpoint only" for name in other if name not in own]
    for name in (name for name in own if name in other):
        if own[name] != other[name]:
            one, two = own[name], other[name]
            found.append(
                f"field {name!r}: {one.dtype} of shape {one.shape} here, {two.dtype} of shape "
                f"{two.shape} in the checkpoint"
            )
    for option in ("terminated", "truncated", "next_of", "stacks"):
        here, given = getattr(there, option), getattr(saved, option)
        if option in ("next_of", "stacks"):
            here, given = sorted(here, key=repr), sorted(given, key=repr)
        if here != given:
            found.append(f"{option}: {here} here, {given} in the checkpoint")
    return found


class RingReader:
    """Reads the rows of one ring of a state.

    Parameters
    ----------
    disk : Disk
        The folder.
    saved : dict
        What the manifest says of the ring.
    entries : list of FileEntry
        The files of the state.
    salvage : callable or None
        Gets each damaged file, which costs rows; without it ``DamagedError`` is raised.
    decode : callable or None
        Makes Python objects of bytes.
    watch : callable
        Gets the number of bytes that were read.
    """

    def __init__(
        self,
        disk: Disk,
        saved: dict[str, Any],
        entries: Sequence[FileEntry],
        salvage: Callable[[str], None] | None,
        decode: Decode | None,
        watch: Callable[[int], None],
    ) -> None:
        self._disk = disk
        self._entries = entries
        self._salvage = salvage
        self._decode = decode
        self._watch = watch
        self.saved = saved
        self.lost = 0  # rows that damaged files have cost, when memory was filled
        self.written = _int(saved["written"])
        self.oldest = _int(saved["oldest"], 0, self.written)
        self.capacity = _int(saved["layout"]["capacity"], 1)
        self.n_envs = _int(saved["layout"]["n_envs"], 1, self.capacity)
        self._segment_rows = _int(saved["segment_rows"], 1)
        self._dtypes = dtypes_in_files(saved)
        if self.written - self.oldest > self.capacity:
            raise DamagedError("there are more rows than the capacity")

    @property
    def salvages(self) -> bool:
        """Whether damaged files cost what they had, and raise nothing."""
        return self._salvage is not None

    @property
    def stored(self) -> int:
        """Rows that the ring had."""
        return min(self.written, self.capacity)

    def fill(self, layout: Layout, arena: Bytes, ring: Ring) -> Found:
        """Fill fresh memory; ``rebuild(ring)`` has to follow, and a check of the header."""
        first = max(self.oldest, self.written - layout.capacity)
        if layout.capacity != self.capacity:  # rows that were left out do not come back
            first = max(first, _int(self.saved["first"], 0, self.written))
        n = self.written - first
        missing = np.zeros(n, np.bool_)
        for part in parts_of(layout, arena):
            low = max(0, first - part.before)
            gone = self._fill_part(part, low)
            reach = self.n_envs if layout.schema.next_of else 0
            self._add_lost(missing, gone, low, first, part.before, reach)
        objects = {column.name: column for column in ring.columns if column.objects is not None}
        for column in objects.values():
            gone = self._fill_objects(column, layout, first)
            self._add_lost(missing, gone, first, first, 0, 0)
        self._fill_chains(layout, ring, first, missing)
        self._tell_lost(missing)
        self.lost = int(np.count_nonzero(missing))
        self._fill_header(layout, arena, first, missing)
        end_before(layout, arena, first + np.flatnonzero(missing))
        found = Found(first, missing, self)
        if found.is_whole and layout.capacity == self.capacity:
            absent = _int(self.saved["absent"], 0, self.stored)
            layout.state(arena)[WORD_ABSENT_ROWS] = absent
        else:
            derive(layout, arena)
        return found

    # ------------------------------------------------------------------ parts

    def _fill_part(self, part: Part, low: int) -> NDArray[np.bool_]:
        """Read a part of the rows from ``low`` on; which of them are in no file in order."""
        gone = np.ones(self.written - low, np.bool_)
        name = part.name
        dtype = self._file_dtype(part)
        put = part.memory if dtype == part.dtype else None
        for segment in self.saved["segments"]:
            if name not in segment["parts"]:
                continue
            file, start, stop = segment["parts"][name]
            start, stop = _int(start, 0, stop), _int(stop, 0, self.written)
            if stop <= low or start >= stop:
                continue
            taken = self._read_rows(file, dtype, part, start, stop - start, low, put)
            gone[max(start, low) - low : stop - low] = not taken
        return gone

    def _file_dtype(self, part: Part) -> np.dtype[Any]:
        if part.name == "records":
            return dtype_from_json(self.saved["layout"]["record"])
        for name, dtype in self._dtypes.items():
            if part.name in (f"field {name}", f"frames of {name}"):
                return dtype
        return part.dtype

    def _read_rows(
        self,
        file: int,
        dtype: np.dtype[Any],
        part: Part,
        start: int,
        n: int,
        low: int,
        put: Bytes | None,
    ) -> bool:
        """Read ``n`` rows from ``start`` on, and put those from ``low`` on in their places."""
        size = dtype.itemsize * _items(part.shape)
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

        if size == 0:
            return self._read(file, dtype, (n, *part.shape), np.empty((n, 0), np.uint8))
        return self._take(file, dtype, (n, *part.shape), take, place)

    def _read(self, file: int, dtype: np.dtype[Any], shape: tuple[int, ...], out: Bytes) -> bool:
        """Read a file whole into the bytes of ``out``."""
        flat = out.reshape(-1)

        def take(offset: int, piece: Bytes) -> None:
            flat[offset : offset + len(piece)] = piece

        def place(offset: int, most: int) -> Bytes:
            return flat[offset : offset + most]

        return self._take(file, dtype, shape, take, place)

    def _take(
        self,
        file: int,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        take: Callable[[int, Bytes], None],
        place: Callable[[int, int], Bytes | None] | None = None,
    ) -> bool:
        entry = self._entries[_int(file, 0, len(self._entries) - 1)]
        try:
            _arrays.read(self._disk, entry, dtype, shape, take, self._watch, place)
        except DamagedError as error:
            if self._salvage is None:
                raise
            self._salvage(str(error))
            return False
        return True

    # ------------------------------------------------------------------ objects

    def _fill_objects(self, column: Column, layout: Layout, first: int) -> NDArray[np.bool_]:
        gone = np.ones(self.written - first, np.bool_)
        items = _items(column.shape)
        values: NDArray[Any] = np.empty((layout.capacity, *column.shape), np.dtype(object))
        for start, stop, entry in self._object_files(column.name):
            found = self._read_objects(entry, (stop - start) * items)
            low = max(start, first)
            gone[low - first : max(low, stop) - first] = found is None
            if found is not None:
                own = np.empty(len(found), object)
                own[:] = found
                rows = np.arange(low, max(low, stop)) % len(values)
                values[rows] = own.reshape(stop - start, *values.shape[1:])[low - start :]
        load_objects(column, values[: min(self.written, len(values))])
        return gone

    def _object_files(self, name: str) -> Iterator[tuple[int, int, Any]]:
        for segment in self.saved["segments"]:
            if name in segment["objects"]:
                *_, start, stop = segment["objects"][name]
                yield _int(start, 0, stop), _int(stop, 0, self.written), segment["objects"][name]

    def _read_objects(self, entry: Sequence[Any], n: int) -> list[Any] | None:
        return read_objects(self._take, self._entries, (entry[0], entry[1], n), self._decode)

    # ------------------------------------------------------------------ what is left

    def _tell_lost(self, missing: NDArray[np.bool_]) -> None:
        """Say how many rows are in no file that is in order."""
        if not missing.any():
            return
        lost = f"{np.count_nonzero(missing)} of {len(missing)} rows are lost"
        if self._salvage is None:
            raise DamagedError(f"{lost}: they are in no file")
        self._salvage(lost)

    @staticmethod
    def _add_lost(
        missing: NDArray[np.bool_],
        gone: NDArray[np.bool_],
        low: int,
        first: int,
        after: int,
        reach: int,
    ) -> None:
        """Mark rows that lack something: their own bytes, or those of rows that they refer to."""
        for place in _runs(gone):
            start, stop = place[0] + low - reach, place[1] + low + after
            missing[max(0, start - first) : max(0, stop - first)] = True

    def _fill_chains(
        self, layout: Layout, ring: Ring, first: int, missing: NDArray[np.bool_]
    ) -> None:
        for chain in ring.chains:
            before = 0
            if isinstance(chain, FrameStack):
                before = (chain.depth - 1) * layout.n_envs
            reach = self.n_envs if layout.schema.next_of else 0
            queues = []
            for k, aside in enumerate(chain.asides):
                ids, values, gone = self._read_overflow(f"{k} of {chain.name}", aside.nbytes)
                values = _as_native(values, self._dtypes[chain.name])
                from_here = int(np.searchsorted(ids, first - before))  # they ascend
                queues.append((ids[from_here:], values[from_here:]))
                for start, stop in gone:
                    place = np.zeros(self.written - first, np.bool_)
                    place[max(0, start - first) : max(0, stop - first)] = True
                    self._add_lost(missing, place, first, first, before, reach)
            latest = np.zeros((layout.n_envs, chain.nbytes), np.uint8)
            seen = np.zeros((layout.n_envs, 1), np.uint8)
            files = self.saved["newest"][chain.name]
            shape = (layout.n_envs, chain.nbytes)
            is_there = self._read(files[0], np.dtype(np.uint8), shape, latest)
            is_there &= self._read(files[1], np.dtype(np.uint8), shape[:1], seen)
            if not is_there:
                seen[:] = 0
                missing[max(0, len(missing) - layout.n_envs) :] = True
            latest = _as_native(latest, self._dtypes[chain.name])
            load_chain(chain, (latest, seen.reshape(-1), queues))
        newest = np.arange(max(first, self.written - layout.n_envs), self.written)
        is_known = np.zeros(layout.n_envs, np.bool_)
        is_known[newest[~missing[newest - first]] % layout.n_envs] = True
        for chain in () if is_known.all() else ring.chains:
            # What would go on from a row that is lost is stored whole.
            latest, seen, queues = chain.save()
            load_chain(chain, (latest, seen * is_known, queues))

    def _read_overflow(
        self, name: str, nbytes: int
    ) -> tuple[NDArray[np.int64], Bytes, list[tuple[int, int]]]:
        files = []
        for segment in self.saved["segments"]:
            if name in segment["overflow"]:
                id_file, value_file, n = segment["overflow"][name]
                n = _int(n, 1, 2 * self.capacity + self._segment_rows)
                self._expect_nbytes(value_file, n * nbytes)
                files.append((_int(segment["number"]) * self._segment_rows, id_file, value_file, n))
        total = sum(n for *_, n in files)
        ids, values = np.empty(total, np.int64), np.empty((total, nbytes), np.uint8)
        gone = []
        count, last = 0, -1
        for start, id_file, value_file, n in files:
            found, own = ids[count : count + n], values[count : count + n]
            is_there = self._read(id_file, found.dtype, (n,), found.view(np.uint8))
            is_there &= self._read(value_file, np.dtype(np.uint8), (n, nbytes), own)
            if not is_there:
                gone.append((start, start + self._segment_rows))
                continue
            in_order = (np.diff(found) > 0).all() and last < found[0] and found[-1] < self.written
            if not in_order:
                raise DamagedError(f"overflow {name}: its rows are not in order")
            count, last = count + n, int(found[-1])
        return ids[:count], values[:count], gone

    def _expect_nbytes(self, file: int, nbytes: int) -> None:
        """Raise before memory is allocated for what a file cannot hold."""
        entry = self._entries[_int(file, 0, len(self._entries) - 1)]
        if entry.codec is None and entry.nbytes < nbytes:
            raise DamagedError(f"{entry.name}: shorter than {nbytes} bytes")

    def _fill_header(
        self,
        layout: Layout,
        arena: Bytes,
        first: int,
        missing: NDArray[np.bool_],
    ) -> None:
        """The words of the header but those that are counted; flags of rows that are not there."""
        saved = self.saved
        stored = min(self.written, layout.capacity)
        if first > self.written - stored or missing.any():
            there = np.zeros(stored, np.bool_)
            rows = np.arange(first, self.written)[~missing]
            there[rows % layout.capacity] = True
            layout.flags(arena)[:stored][~there] = FLAG_ABSENT | FLAG_END | FLAG_TRUNCATED
            for stack in layout.schema.stacks:
                runs = layout.block(arena, f"runs of {stack.name}")[:stored]
                runs[~there] = stack.depth - 1
        base = _int(saved["handle_base"])
        span = self.saved["layout"]["size"] if self.n_envs == 1 else self.capacity
        if layout.span != span:  # old handles are those of rows that are gone
            base = -(-(base + span + self.written) // layout.span) * layout.span
        lens = saved["episode_lens"]
        if len(lens) != layout.n_envs:
            raise DamagedError("episode_lens: expected one for each environment")
        ring_header(
            layout,
            arena,
            written=self.written,
            clears=_int(saved["clears"]),
            handle_base=base,
            edits=_int(saved["edits"]),
            episode_lens=[_int(length) for length in lens],
        )


def ring_header(
    layout: Layout,
    arena: Bytes,
    *,
    written: int,
    clears: int,
    handle_base: int,
    edits: int,
    episode_lens: list[int],
) -> None:
    """Set the words of a fresh header; absent rows are counted later."""
    state = layout.state(arena)
    state[:] = 0
    state[WORD_WRITTEN] = state[WORD_RESERVED] = written
    state[WORD_CLEARS] = clears
    state[WORD_HANDLE_BASE] = handle_base
    state[WORD_EDITS] = edits
    state[N_STATE_WORDS:] = episode_lens


def read_objects(
    take: Callable[..., bool],
    entries: Sequence[FileEntry],
    files: tuple[int, int, int],
    decode: Decode | None,
) -> list[Any] | None:
    """``n`` Python objects from the files of their lengths and their bytes; None if damaged."""
    lengths_file, data_file, n = files
    if decode is None:
        raise TypeError(
            "the checkpoint has Python objects as bytes: hand over decode=, the inverse of the "
            "encode= that it was saved with"
        )
    lengths = np.zeros(n, np.int64)
    raw = lengths.view(np.uint8)

    def fill(out: Bytes) -> Callable[[int, Bytes], None]:
        def put(offset: int, piece: Bytes) -> None:
            out[offset : offset + len(piece)] = piece

        return put

    if not take(lengths_file, np.dtype(np.int64), (n,), fill(raw)):
        return None
    if n and (lengths.min() < 0 or lengths.max() > MOST // max(1, n)):
        raise DamagedError("lengths of Python objects are out of range")
    total = int(lengths.sum())
    entry = entries[_int(data_file, 0, len(entries) - 1)]
    if entry.codec is None and entry.nbytes < total:
        raise DamagedError(f"{entry.name}: shorter than {total} bytes")
    data = np.empty(total, np.uint8)
    if not take(data_file, np.dtype(np.uint8), (total,), fill(data)):
        return None
    stops = np.cumsum(lengths)
    text = data.tobytes()
    pairs = zip((stops - lengths).tolist(), stops.tolist(), strict=True)
    return [decode(text[start:stop]) for start, stop in pairs]


def _convert(values: Bytes, dtype: np.dtype[Any], to: Bytes, part: Part) -> None:
    """Rows in another byte order, or of records with other fields: these field by field."""
    if dtype == part.dtype:
        to[...] = values
        return
    given = values.reshape(-1).view(dtype)
    out = to.reshape(-1).view(part.dtype)
    if part.name != "records":
        out[...] = given
        return
    assert part.dtype.names is not None
    assert dtype.names is not None
    for name in part.dtype.names[:-1]:
        out[name] = given[name]
    out[part.dtype.names[-1]] = given[dtype.names[-1]]


def _as_native(values: Bytes, dtype: np.dtype[Any]) -> Bytes:
    """The bytes of values of this dtype, in the machine's byte order."""
    own = native(dtype)
    if own is dtype:
        return values
    found = np.zeros(values.shape, np.uint8)
    found.view(own)[...] = values.view(dtype)
    return found


def _items(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=object))


def _runs(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """First and last place (exclusive) of each run of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


def _int(value: Any, least: int = 0, most: int = MOST) -> int:
    if type(value) is not int or not least <= value <= most:
        raise DamagedError(f"expected a number from {least} to {most}, got {value!r}")
    return value
