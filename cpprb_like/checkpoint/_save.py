"""Saving: plans what a save writes for a buffer, and writes it in order.

First all is looked at, while writers wait: which rows there are, the index bytes and the attributes
are copied, and it is planned what to write. Then files are written, which takes long, and writers
need not wait. The manifest comes last. Not here: what the files look like (``_arrays``,
``_segments``), and the methods that users call (``_saved``).
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Bytes
from cpprb_like._core import WORD_ABSENT_ROWS, Ring
from cpprb_like._fields.schema import Layout
from cpprb_like._rows.edits import Tracker
from cpprb_like.checkpoint import _arrays, _manifest, _segments
from cpprb_like.checkpoint._arrays import CHUNK_NBYTES, Codec, DamagedError, FileEntry
from cpprb_like.checkpoint._disk import Disk
from cpprb_like.checkpoint._held import HoldsRows, RowsToSave
from cpprb_like.checkpoint._progress import Progress
from cpprb_like.checkpoint._segments import Index, IndexCopy, Part, Plan
from cpprb_like.checkpoint._values import Encoder, dtype_to_json

__all__ = ["Job", "Saving", "layout_to_json"]

MOST_WAITING = 8  # files are open at once; each may have some 32 MiB that are on their way
COPIED_NBYTES = 1 << 24  # are copied at once, in a few milliseconds, and not while they are written

Encode = Callable[[Any], bytes]


class Files:
    """Writes the files of a state, and numbers them.

    The disk has time for a file while the next ones are written: it is synchronised after these.
    """

    def __init__(self, disk: Disk, number: int, codec: Codec, watch: Progress) -> None:
        self.disk = disk
        self.number = number
        self.watch = watch
        self._codec = codec
        self._entries: list[FileEntry] = []
        self._places: dict[str, int] = {}
        self._names = itertools.count()
        self._replaced: list[int] = []  # files whose numbers the next ones get
        self._waiting: deque[Any] = deque()  # open files that were not synchronised, oldest first

    def write(self, dtype: np.dtype[Any], shape: tuple[int, ...], pieces: Iterator[Bytes]) -> int:
        """Write an array whose bytes come in pieces; returns its number in the manifest."""
        name = f"s{self.number}-{next(self._names)}.npy"
        entry, output = _arrays.write(
            self.disk, name, dtype, shape, pieces, self._codec, self.watch
        )
        self._waiting.append(output)
        self.sync(MOST_WAITING)
        return self.add(entry)

    def write_array(self, array: NDArray[Any]) -> int:
        """Write an array."""
        return self.write(array.dtype, array.shape, _pieces_of(array))

    def add(self, entry: FileEntry) -> int:
        """The number of a file that is there."""
        if entry.name in self._places:
            return self._places[entry.name]
        number = self._replaced.pop() if self._replaced else len(self._entries)
        self._entries[number : number + 1] = [entry]
        self._places[entry.name] = number
        return number

    @contextlib.contextmanager
    def in_place_of(self, numbers: list[int]) -> Iterator[None]:
        """New files take the numbers of these, which the manifest does not name then."""
        self._replaced = numbers
        try:
            yield
        finally:
            self._replaced = []

    def sync(self, most: int = 0) -> None:
        """Return when all bytes of all files, but the newest ``most``, are on the disk."""
        while len(self._waiting) > most:
            with contextlib.closing(self._waiting.popleft()) as output:
                output.sync()

    def close(self) -> None:
        """Close what is open, synchronised or not."""
        while self._waiting:
            self._waiting.popleft().close()

    def to_json(self) -> list[Any]:
        """All files."""
        return [entry.to_json() for entry in self._entries]


def _files_of(segment: dict[str, Any]) -> list[int]:
    """The numbers of the files of a segment."""
    found = [file for file, *_ in segment["parts"].values()]
    for kind in ("overflow", "objects"):
        found += [file for files in segment[kind].values() for file in files[:2]]
    return found


def _pieces_of(array: NDArray[Any]) -> Iterator[Bytes]:
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    for start in range(0, len(data), CHUNK_NBYTES):
        yield data[start : start + CHUNK_NBYTES]


class Before:
    """The newest state of a folder: what of it can be taken over."""

    def __init__(self, disk: Disk) -> None:
        there = _manifest.numbers(disk)
        self.disk = disk
        self.following = _manifest.unused_number(disk)
        self.manifest: dict[str, Any] = {}
        if there:
            with contextlib.suppress(DamagedError):
                self.manifest = _manifest.read(disk, there[-1])
        self.entries = [FileEntry(*entry) for entry in self.manifest.get("files", ())]
        if not all(self._is_there(entry) for entry in self.entries):
            self.manifest = {}  # so all is written again
        self.name = str(self.manifest.get("id", ""))
        self._unsafe: set[str] = set()  # files that may not be on the disk yet
        if self.manifest and not _manifest.is_synchronised(self.manifest):
            self._unsafe = _manifest.files_of(self.manifest)

    def ring(self, number: int, layout: Layout, ring: Ring) -> dict[str, Any] | None:
        """What it says of a ring, if that has the same fields and was not cleared since."""
        rings = self.manifest.get("rings", [])
        if number >= len(rings):
            return None
        known: dict[str, Any] = rings[number]
        same = (known["clears"], known["handle_base"]) == (ring.clears, ring.handle_base)
        return known if same and known["layout"] == layout_to_json(layout) else None

    def _is_there(self, entry: FileEntry) -> bool:
        try:
            return self.disk.size(entry.name) == entry.nbytes
        except FileNotFoundError:
            return False

    def copy(self, number: int, files: Files) -> int:
        """Take over a file; its number from now on. ``DamagedError`` if it is gone."""
        entry = self.entries[number]
        if not self._is_there(entry):
            raise DamagedError(f"{entry.name} is gone, or has another length")
        if entry.name in self._unsafe:
            self.disk.sync(entry.name)
            self._unsafe.remove(entry.name)
        return files.add(entry)


def layout_to_json(layout: Layout) -> dict[str, Any]:
    """The fields and options that the rows depend on."""
    schema = layout.schema
    return {
        "size": layout.size,
        "capacity": layout.capacity,
        "n_envs": layout.n_envs,
        "fields": [
            [field.name, _field_dtype(field.dtype), list(field.shape)] for field in schema.fields
        ],
        "terminated": schema.terminated,
        "truncated": schema.truncated,
        "next_of": [list(pair) for pair in schema.next_of],
        "stacks": [list(stack.__dict__.values()) for stack in schema.stacks],
        "record": dtype_to_json(_segments.record_dtype(layout)),
    }


def _field_dtype(dtype: np.dtype[Any]) -> Any:
    return "object" if dtype.hasobject else dtype_to_json(dtype)


class RingJob:
    """The rows of one ring: planned while writers wait, and written afterwards."""

    def __init__(self, holder: Any, number: int, state: Before, index: type[Index]) -> None:
        rows: RowsToSave = holder._rows_to_save()
        self._layout, self._arena, self._ring, self._saves = rows
        self._hold = holder._hold
        self._number = number
        ring = self._ring
        self._tracker = Tracker(ring.capacity)
        self._parts = _segments.parts_of(self._layout, self._arena)
        before, known = state.ring(number, self._layout, ring), None
        if before is not None:
            known = self._saves.since(state, number, before, self._parts, ring)
        self._plan: Plan = _segments.plan(ring, self._parts, self._beside(), before, known)
        self._moment = ring.now()
        self.oldest = self._first = ring.written - ring.stored
        self._index = index(self._layout, self._arena, self._parts)
        for number in self._plan.write:
            self._index.take(*self._range(number, self.oldest))
        self._copied = self.nbytes <= COPIED_NBYTES
        self._frozen = self._freeze() if self._copied else {}
        self._kept_aside: dict[tuple[str, int, int], tuple[NDArray[np.int64], Bytes]] = {}
        self._last = {
            (chain.name, k): aside.last
            for chain in ring.chains
            for k, aside in enumerate(chain.asides)
        }
        if self._copied:
            self._kept_aside = {
                (chain.name, k, segment): aside.part(*self._aside_range(chain.name, k, segment))
                for chain in ring.chains
                for k, aside in enumerate(chain.asides)
                for segment in self._plan.write
            }
        self._newest = {chain.name: chain.newest() for chain in ring.chains}
        self._objects = {
            number: self._copy_objects(column)
            for number, column in enumerate(ring.columns)
            if column.objects is not None
        }
        self._head = {
            "layout": layout_to_json(self._layout),
            "written": ring.written,
            "first": ring.first,
            "absent": int(self._layout.state(self._arena)[WORD_ABSENT_ROWS]),
            "clears": ring.clears,
            "handle_base": ring.handle_base,
            "edits": self._moment.edits,
            "episode_lens": [ring.episode_len(stream) for stream in range(ring.n_envs)],
            "segment_rows": self._plan.segment_rows,
        }
        # The new tracker records from now on; that of the state before stays until the end.
        self._saves.begin(ring, self._tracker)

    @property
    def nbytes(self) -> int:
        """Bytes that will be written, about."""
        total = 0
        for number in self._plan.write:
            for part in self._parts:
                low, high = self._part_range(part, number, self.oldest)
                total += (high - low) * part.nbytes
        return total

    def _freeze(self) -> dict[tuple[str, int], Part]:
        """Copies of what will be written of each part, by segment."""
        found = {}
        for number in self._plan.write:
            for part in self._parts:
                low, high = self._part_range(part, number, self.oldest)
                if low < high:
                    found[part.name, number] = part.frozen(low, high)
        return found

    def _aside_range(self, name: str, k: int, number: int) -> tuple[int, int]:
        """The rows of a segment whose overflow is still there."""
        rows = self._plan.segment_rows
        return number * rows, min((number + 1) * rows, self._last[name, k] + 1)

    def _beside(self) -> int:
        return sum(column.nbytes for column in self._ring.columns if column.objects is not None)

    def _copy_objects(self, column: Any) -> NDArray[Any]:
        """References to the objects of all rows, by row id from the oldest."""
        slots = np.arange(self.oldest, self._moment.written) % self._ring.capacity
        found: NDArray[Any] = column.objects[slots]
        return found

    def _range(self, number: int, oldest: int) -> tuple[int, int]:
        rows = self._plan.segment_rows
        low = max(number * rows, oldest)
        return low, max(low, min((number + 1) * rows, self._moment.written))

    def _part_range(self, part: Part, number: int, oldest: int) -> tuple[int, int]:
        rows = self._plan.segment_rows
        stop = min((number + 1) * rows, self._moment.written)
        return part.range(number * rows, stop, oldest)

    def write(self, files: Files, before: Before, encode: Encode | None) -> dict[str, Any]:
        """Write what was planned; returns what the manifest says of it."""
        segments = [self._keep(segment, files, before) for segment in self._plan.unchanged]
        segments += [self._write_segment(number, files, encode) for number in self._plan.write]
        segments.sort(key=lambda segment: segment["number"])
        newest = {
            name: [files.write_array(array) for array in arrays]
            for name, arrays in self._newest.items()
        }
        return self._head | {"segments": segments, "newest": newest}

    def _keep(self, segment: dict[str, Any], files: Files, before: Before) -> dict[str, Any]:
        parts = {
            name: [before.copy(entry[0], files), *entry[1:]]
            for name, entry in segment["parts"].items()
        }
        aside = {
            name: [before.copy(ids, files), before.copy(values, files), n]
            for name, (ids, values, n) in segment["overflow"].items()
        }
        objects = {
            name: [before.copy(lengths, files), before.copy(data, files), *rest]
            for name, (lengths, data, *rest) in segment["objects"].items()
        }
        return segment | {"parts": parts, "overflow": aside, "objects": objects}

    def _write_segment(self, number: int, files: Files, encode: Encode | None) -> dict[str, Any]:
        parts = {}
        for part in self._parts:
            low, high = self._part_range(part, number, self.oldest)
            if low < high:
                pieces = self._frozen.get((part.name, number), part).pieces(low, high, self._index)
                file = files.write(part.dtype, (high - low, *part.shape), pieces)
                parts[part.name] = [file, low, high]
        low, high = self._range(number, self.oldest)
        objects = {}
        for column, values in self._objects.items():
            name = self._layout.schema.fields[column].name
            own = values[low - self._first : high - self._first]
            objects[name] = [*write_objects(files, own.reshape(-1), encode, name), low, high]
        return {
            "number": number,
            "parts": parts,
            "overflow": self._write_overflow(number, files),
            "objects": objects,
        }

    def _write_overflow(self, number: int, files: Files) -> dict[str, Any]:
        found = {}
        for chain in self._ring.chains:
            for k, aside in enumerate(chain.asides):
                place = chain.name, k, number
                if self._copied:
                    ids, values = self._kept_aside[place]
                else:
                    ids, values = self._hold(True, aside.part, *self._aside_range(*place))
                if len(ids):
                    entry = [files.write_array(ids), files.write_array(values), len(ids)]
                    found[f"{k} of {chain.name}"] = entry
        return found

    def settle(self, saved: dict[str, Any], files: Files, encode: Encode | None) -> None:
        """Writers wait again: leave out what was overwritten, write again what was edited."""
        ring = self._ring
        saved["oldest"] = self.oldest
        if self._copied:
            return
        self._index.settle(ring, self._moment)
        if ring.clears != self._moment.clears:
            raise RuntimeError("the buffer was cleared while it was saved; the folder is as it was")
        if ring.written != self._moment.written:
            self.oldest = max(self.oldest, ring.written - ring.capacity)
            if self.oldest >= self._moment.written:
                raise RuntimeError(
                    "all rows were overwritten while they were saved; the folder is as it was. "
                    "save() keeps writers waiting, save_async() does not"
                )
        saved["oldest"] = self.oldest
        slots = self._tracker.slots()
        edited = ring.row_ids(slots[slots < ring.stored])
        edited = edited[(edited < self._moment.written) & (edited >= self.oldest)]
        for column, values in self._objects.items():
            held: Any = ring.columns[column].objects
            values[edited - self._first] = held[edited % ring.capacity]
        changed = set((edited // self._plan.segment_rows).tolist()) & {*self._plan.write}
        for place, segment in enumerate(saved["segments"]):
            if segment["number"] in changed:
                with files.in_place_of(_files_of(segment)):
                    again = self._write_segment(segment["number"], files, encode)
                saved["segments"][place] = again

    def commit(self, name: str, before: str) -> None:
        """The state of this name is there, in place of that of the name ``before``."""
        self._saves.put(self._ring, name, self._number, self._tracker, before)
        self._saves.end(self._ring, self._tracker)

    def abandon(self) -> None:
        """There is no such state."""
        self._saves.end(self._ring, self._tracker)


def refuse_objects(name: str) -> NoReturn:
    """Raise ``TypeError``: there is no ``encode`` for objects."""
    raise TypeError(
        f"{name!r} holds Python objects, of which a checkpoint knows no bytes: hand over "
        "encode=, a function of an object that returns bytes, and decode= to load"
    )


def write_objects(
    files: Files, values: Iterable[Any], encode: Encode | None, name: str
) -> tuple[int, int]:
    """Write Python objects as bytes: two files, with the length of each and all bytes."""
    if encode is None:
        refuse_objects(name)
    found = []
    for value in values:
        data = encode(value)
        if not isinstance(data, bytes):
            raise TypeError(f"encode: expected bytes, got {type(data).__name__}")
        found.append(data)
    lengths = np.array([len(data) for data in found], np.int64)
    return files.write_array(lengths), files.write_array(np.frombuffer(b"".join(found), np.uint8))


class Job:
    """One save of one object to one folder.

    Parameters
    ----------
    root : object
        What to save.
    disk : Disk
        The folder.
    keep : int
        States that are there afterwards, at most; at least 1.
    codec : Codec
        How files are compressed.
    encode : callable, optional
        Makes bytes of a Python object.
    classes : iterable of type
        Classes of the caller among what is saved.
    progress : Progress
        Gets the progress.
    """

    def __init__(
        self,
        root: Any,
        disk: Disk,
        *,
        keep: int,
        codec: Codec,
        encode: Encode | None,
        classes: Iterable[type],
        progress: Progress,
    ) -> None:
        self._root = root
        self._disk = disk
        self._keep = keep
        self._codec = codec
        self._encode = encode
        self._classes = (*classes, *_own_classes(root))
        self._progress = progress
        self._holders = self._find_holders()

    def _encoder(self) -> Encoder:
        return Encoder(self._classes, lambda holder: holder._attributes_to_save())

    def _find_holders(self) -> list[HoldsRows]:
        encoder = self._encoder()
        encoder.encode(self._root)
        for path in encoder.unfit:
            raise TypeError(f"{path}: {type(encoder.external[path]).__name__} cannot be saved")
        for holder in encoder.holders:
            boxed = holder._rows_to_save().layout.schema.fields
            names = [field.name for field in boxed if field.dtype.hasobject]
            if names and self._encode is None:
                refuse_objects(names[0])
        return encoder.holders

    def run(self) -> None:
        """Save; writers wait until all is there."""
        self._disk.make()
        with self._disk.locked():
            _holding(self._holders, self._save)

    def begin(self, index: type[Index]) -> _Begun:
        """Look at everything, while writers wait; the folder is locked by the caller."""
        before = Before(self._disk)
        begun: _Begun = _holding(self._holders, partial(_Begun, self, before, index))
        return begun

    def _save(self) -> None:
        begun = self.begin(Index)
        try:
            begun.write()
        except BaseException:
            begun.abandon()
            raise


def _own_classes(root: Any) -> tuple[type, ...]:
    return (type(root),) if isinstance(root, HoldsRows) else ()


def _holding(holders: list[Any], call: Callable[[], Any]) -> Any:
    """``call()`` while writers of all buffers wait; these are locked in a fixed order."""
    for holder in sorted(holders, key=id, reverse=True):
        call = partial(holder._hold, True, call)
    return call()


class _Begun:
    """A save that has seen everything, and has yet to write it."""

    def __init__(self, job: Job, before: Before, index: type[Index]) -> None:
        self._job = job
        self._before = before
        encoder = job._encoder()
        self._root = encoder.encode(job._root)
        if [id(holder) for holder in encoder.holders] != [id(h) for h in job._holders]:
            raise RuntimeError("the parts of what is saved changed meanwhile")
        self._arrays = encoder.arrays
        self._objects = encoder.objects
        self._rings: list[RingJob] = []
        try:
            for number, holder in enumerate(encoder.holders):
                self._rings.append(RingJob(holder, number, before, index))
        except BaseException:
            self.abandon()
            raise
        job._progress.total = sum(ring.nbytes for ring in self._rings) + sum(
            array.nbytes for _, array in self._arrays
        )

    def abandon(self) -> None:
        """Nothing was saved."""
        for ring in self._rings:
            ring.abandon()

    def write(self) -> None:
        """Write all files, and the manifest."""
        job, before, disk = self._job, self._before, self._job._disk
        _manifest.clean(disk, max(job._keep, 1))
        with contextlib.closing(Files(disk, before.following, job._codec, job._progress)) as files:
            manifest = self._write_files(files)
            files.sync()
        job._progress(0)
        _manifest.commit(disk, before.following, manifest)
        for ring in self._rings:
            ring.commit(manifest["id"], before.name)
        _manifest.clean(disk, job._keep)

    def _write_files(self, files: Files) -> dict[str, Any]:
        """Write all files; returns the manifest that names them."""
        job, before = self._job, self._before
        rings = [ring.write(files, before, job._encode) for ring in self._rings]
        arrays = [
            {
                "path": path,
                "dtype": dtype_to_json(array.dtype),
                "shape": list(array.shape),
                "file": files.write_array(array),
            }
            for path, array in self._arrays
        ]
        objects = [
            [*write_objects(files, values, job._encode, path), len(values)]
            for path, values in self._objects
        ]
        _holding(job._holders, partial(self._settle, rings, files, job._encode))
        return {
            "format": _manifest.FORMAT,
            "version": _manifest.VERSION,
            "id": secrets.token_hex(16),
            "number": before.following,
            "synchronised": job._disk.synchronises,
            "files": files.to_json(),
            "rings": rings,
            "arrays": arrays,
            "objects": objects,
            "root": self._root,
        }

    def _settle(self, rings: list[dict[str, Any]], files: Files, encode: Encode | None) -> None:
        for ring, saved in zip(self._rings, rings, strict=True):
            ring.settle(saved, files, encode)


class Saving:
    """A save that goes on in a thread of its own: what ``save_async`` returns.

    Attributes
    ----------
    progress : Progress
        ``progress.done`` bytes of about ``progress.total`` were written.
    """

    def __init__(self, job: Job, progress: Progress) -> None:
        self.progress = progress
        self._job = job
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="save")

    def _start(self) -> None:
        """Look at everything in this thread, write in the other one."""
        disk = self._job._disk
        disk.make()
        self._lock = disk.locked()
        self._lock.__enter__()
        try:
            self._begun = self._job.begin(IndexCopy)
            try:
                self._thread.start()
            except BaseException:
                self._begun.abandon()
                raise
        except BaseException:
            self._lock.__exit__(None, None, None)
            raise

    def _run(self) -> None:
        try:
            try:
                self._begun.write()
            except BaseException:
                self._begun.abandon()
                raise
        except BaseException as error:  # noqa: BLE001 (raised by ``result``)
            self._error = error
        finally:
            self._lock.__exit__(None, None, None)

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """End it: the folder keeps its old state, and ``result`` raises ``CancelledError``.

        A save that has written all but its manifest may still succeed.
        """
        self.progress.cancelled = True

    def result(self, timeout: float | None = None) -> None:
        """Wait until it has ended, and raise what it raised.

        Raises ``TimeoutError`` after so many seconds; it goes on then.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"the save has not ended after {timeout} seconds")
        if self._error is not None:
            raise self._error
