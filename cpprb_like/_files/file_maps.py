"""The files of a buffer: created, locked, mapped, and opened again.

The file ``<prefix>.dat`` has the arena, then data that make a kill at any time harmless. Not here:
repairs after a kill (``recovery``), memory on the heap (``arenas``), and the reads and writes of
rows (``_core``).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import mmap
import os
import re
import secrets
import shutil
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Bytes, Floats
from cpprb_like._arguments.checks import as_path
from cpprb_like._core import (
    FLAG_ABSENT,
    WORD_CLEARS,
    WORD_EDITS,
    WORD_HANDLE_BASE,
    WORD_RESERVED,
    WORD_WRITTEN,
    Ring,
)
from cpprb_like._fields.item_places import laps_of
from cpprb_like._fields.layout import CACHE_LINE, Aside, Items, Layout, align
from cpprb_like._files.arenas import allocate
from cpprb_like._files.dirty_chunks import DirtyChunks
from cpprb_like._files.recovery import end_before, hide, recover, restore
from cpprb_like._machine.file_systems import (
    FULL,
    REFUSED,
    InRoom,
    name_new,
    rename,
    replacing,
    sync,
    try_lock,
)
from cpprb_like._machine.forks import OneProcess
from cpprb_like._machine.opening import open_regular
from cpprb_like._machine.reserved import reserve, reserve_file, use, use_file
from cpprb_like._machine.waiting import PAUSE, sleep
from cpprb_like._rows.edits import Undo

__all__ = ["KEPT_ASIDE", "NOTHING_ADDED", "FileMode", "Files", "Room", "check_mode"]

FileMode = Literal["x", "w", "r", "r+", "a"]

WORD = 8
MAGIC = b"cpprb_like ring, version "
VERSION_NBYTES = 32  # first bytes of the identity of a layout
SIDE_NBYTES = 64  # header of a side file, which ends with the incarnation and three words
SIDE_MAGIC = b"cpprb_like, 1"
INCARNATION_NBYTES = 16
MARK_NBYTES = 8  # digest of the content of the file of a sampler
SAMPLER, FLUSHES = "sampler", "flushed"  # names of side files
SIDE_NAME = rf"({SAMPLER}|{FLUSHES})\.(\d+)"  # name and number
COMPLETE = 1  # state of a side file that can be used
BOOT_NBYTES = 36
CHANGES_AT = 40  # place, in the part ``boot``, of the change counter for followers of a shard
TRIES = 100  # copies of a file whose rows are being edited
NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
NO_BYTES: Bytes = np.empty(0, np.uint8)
KEPT_ASIDE = "what fields of next_of and stack_compress keep aside"
NOTHING_ADDED = "; nothing was added, and no row is lost"
SHARED_FILE = (
    "the parent process writes to this file; a forked process can only read it, and only until the "
    "parent writes again. Open the file here with mmap_mode='r' for its rows of that moment. "
    "SharedReplay is for processes that read while others write"
)
READ_ONLY = "the buffer was opened with mmap_mode='r', to be read and not written"
WRITES_ELSEWHERE = (
    "another buffer has this file open, in this process or another; two that write to one file "
    "would tear each other's rows. A process that was forked from a writer has the file open until "
    "it ends"
)

NO_LOCKS = (
    "the file system has no locks, which keep a second writer out; mmap_prefix needs a folder on a "
    "file system with flock, such as a local disk"
)


def check_mode(mode: object) -> None:
    """Raise ``ValueError`` for an unknown mode."""
    if mode not in ("x", "w", "r", "r+", "a"):
        raise ValueError(f"mmap_mode: expected 'x', 'w', 'r', 'r+' or 'a', got {mode!r}")


@dataclass(frozen=True)
class _Places:
    """Offset and length of each part of the rows file behind the arena."""

    boot: tuple[int, int]
    lens: tuple[int, int]  # lengths of open episodes before the rows that are being added
    log: tuple[int, int]  # undo log
    gone: tuple[int, int]  # word of rows that left early; without named axes there is none
    nbytes: int  # length of the file

    @classmethod
    def of(cls, layout: Layout) -> _Places:
        boot = align(layout.length, CACHE_LINE), CACHE_LINE
        lens = sum(boot), WORD * layout.n_envs
        row = sum(2 * WORD + align(field.nbytes, WORD) for field in layout.schema.fields)
        state = 2 * WORD + layout.state_nbytes
        log = sum(lens), WORD + max(row, state)
        gone = sum(log), WORD if layout.schema.axes else 0
        return cls(boot, lens, log, gone, sum(gone))


@dataclass(frozen=True)
class _Side:
    """The file of a sampler: a header, and numbers."""

    memory: Bytes
    number: int  # in the name of the file

    @property
    def floats(self) -> Floats:
        """The numbers of the sampler."""
        return self.memory[SIDE_NBYTES:].view(np.float64)


Copies = Callable[[str, Mapping[str, int]], tuple[dict[str, Floats], bool]]  # as ``Files.floats``


def _split(
    floats: Floats | None,
    what: str,  # noqa: ARG001 (as ``Files.floats``)
    sizes: Mapping[str, int],
) -> tuple[dict[str, Floats], bool]:
    """Arrays in ``floats``, by name, and that they hold values; see ``Files.floats``."""
    if floats is None:
        raise MemoryError("no memory was left for a copy of its values")
    stops = np.cumsum(list(sizes.values()))[:-1]
    return dict(zip(sizes, np.split(floats, stops), strict=True)), True


class Files:
    """The files of one buffer, open as long as this object or its memory lives.

    ``mode`` is that of ``ReplayBuffer(mmap_mode=)``, where "a" is as "r+". Raises ``ValueError``
    for a field of Python objects, a file of another buffer and a damaged file. Raises
    ``BlockingIOError`` while another buffer writes to the files, or reads files that this buffer
    is to write.
    """

    def __init__(self, layout: Layout, prefix: str | Path, mode: FileMode) -> None:
        names = [field.name for field in layout.schema.fields if field.dtype.hasobject]
        if names:
            raise ValueError(f"mmap_prefix: fields {names} hold Python objects, which no file can")
        self.layout = layout
        self.path = as_path("mmap_prefix", prefix, ".dat")
        self.mode = mode = "r+" if mode == "a" else mode
        self.frozen = READ_ONLY if mode == "r" else None
        self._places = _Places.of(layout)
        if self._places.nbytes > sys.maxsize:
            raise MemoryError(f"no file can have {self._places.nbytes} bytes")
        self._sampler: _Side | None = None
        self._process = os.getpid()
        self._chunks = DirtyChunks(layout)
        self._file = -1  # descriptor of the rows file, to be written
        self._is_copy = False  # whether the memory is a copy beside a writer
        self._staged = ""  # suffix of names of new files before ``publish``
        self._old: BinaryIO | None = None  # the file that ``publish`` replaces, locked
        self._unpublished: list[Path] = []
        self.one_process = OneProcess(f"{self.path}: {SHARED_FILE}")
        """Lock that only this process can take, for writing."""
        self._at_fork: tuple[NDArray[np.int64], Floats | None] | None = None
        try:
            with InRoom(self.path):
                if mode in ("r", "r+"):
                    memory = self._read() if mode == "r" else self._open()
                else:
                    memory = self._create(mode)
        except OSError as error:
            if error.filename is None and error.errno is not None:
                error.filename = str(self.path)
            if error.errno == errno.EFBIG:
                error.strerror = (
                    f"the file system, or a limit of the process, allows no file of "
                    f"{self._places.nbytes:,} bytes; holes for {self._what_has_holes} count"
                )
            if error.errno == errno.ENOMEM:
                raise MemoryError(
                    f"{self.path}: no memory left to map {self._places.nbytes:,} bytes"
                ) from error
            raise
        self._memory = memory
        self.arena = memory[: layout.length]
        self._flushing = threading.RLock()
        if mode in ("r", "r+"):
            self._recover()
        self.undo = self._make_undo()
        """The undo log of the ring."""

    def _make_undo(self) -> Undo:
        lens = self._part(self._places.lens).view(np.int64)
        return Undo(self.arena, lens, self._part(self._places.log), chunks=self._chunks)

    # ------------------------------------------------------------------ flushing

    def flush(self, hold: Callable[..., Any]) -> None:
        """Synchronise all rows with the disk: see ``dirty_chunks``.

        ``hold(True, call)`` returns ``call()``, while writers wait.
        """
        with self._flushing, InRoom(self.path):
            if self._chunks.path is None:
                self._create_flushes()
            hold(True, self._begin_flush)
            sync(self._file)  # its path may name another file by now
            if self._sampler is not None:
                sync(self._side_path(SAMPLER, self._sampler.number))
            self._chunks.commit()

    def publish(self) -> None:
        """Give a new rows file its final name, after all files of the buffer are complete.

        The new buffer exists from this step on. A process that is killed before this step leaves
        the old files, or none. Unused files are removed.
        """
        if self._staged:
            self.flush(lambda _, call: call())
            unpublished = self._unpublished[:]
            self._unpublished.clear()  # an interrupt must not remove a published file
            try:
                if self._old is None:
                    name_new(self._rows_path, self.path)
                    self._rows_path.unlink(missing_ok=True)
                else:
                    rename(self._rows_path, self.path)
            except OSError:
                self._unpublished += unpublished
                raise
            self._sync(self.path.parent)
            if self._old is not None:
                self._old.close()
            self._staged, self._old = "", None
        self._forget_sides()

    def _sync(self, path: Path) -> None:
        """Synchronise a file, or the names in a folder, with the disk."""
        sync(path)

    def note_fork(self) -> None:
        """Copy the header and what the sampler has in its file, before a fork."""
        if not self.is_inherited:
            header = self.layout.state(self.arena).copy()
            self._at_fork = header, None  # if there is no memory for the sampler's values
            if self._sampler is not None:
                self._at_fork = header, self._sampler.floats.copy()

    def leave(self) -> tuple[NDArray[np.int64], Copies | None] | None:
        """In a forked child: the header at the fork, and copies in place of ``floats``.

        No copies if the sampler has no file. None if the process has left the files already.
        """
        found, self._at_fork = self._at_fork, None
        if found is None:
            return None
        header, floats = found
        return header, None if self._sampler is None else functools.partial(_split, floats)

    @property
    def is_inherited(self) -> bool:
        """Whether this process was forked, and its parent writes to the files."""
        return not self.frozen and os.getpid() != self._process

    @property
    def _rows_path(self) -> Path:
        """Path of the rows file, which has its final name after ``publish``."""
        return self.path.with_name(self.path.name + self._staged)

    def flush_at_the_end(self) -> None:
        """Flush a buffer at its deletion, with a warning in place of an error."""
        if os.getpid() != self._process or not (self._is_dirty() and self.path.exists()):
            return
        try:
            self.flush(lambda _, call: call())
        except OSError as error:
            warnings.warn(f"{self.path}: not flushed: {error}", RuntimeWarning, stacklevel=1)

    def _is_dirty(self) -> bool:
        state, flushes = self.layout.state(self.arena), self._chunks.flushes
        return len(flushes) != 1 or not np.array_equal(state, flushes[0].state)

    def _begin_flush(self) -> None:
        """Begin a flush of the present rows. The caller holds the lock of the buffer."""
        state = self.layout.state(self.arena)
        tag = int(state[WORD_HANDLE_BASE]) + int(state[WORD_WRITTEN])
        newest = [NO_BYTES]
        for tags, values in self.layout.newest(self.arena):
            newest.append(values[1 if tags[1] == tag else 0])
        extents = [self.layout.extent(self.arena, aside) for aside in self.layout.asides]
        self._chunks.begin(state, extents, np.concatenate(newest))

    def _create_flushes(self) -> None:
        """Create the file of flushes, which has none."""
        path = self._side_path(FLUSHES, self._next_number(FLUSHES))
        with replacing(path, is_new=True) as unfinished:
            unfinished.write_bytes(self._chunks.content(self._incarnation))
            sync(unfinished)
        self._unpublished += [path] if self._staged else []
        sync(self.path.parent)
        self._chunks.keep_open(path)

    def _read_flushes(self) -> bool:
        """Read the last flush; false without a file of flushes of this buffer."""
        paths = [path for _, path in self._all_sides()[FLUSHES]]
        is_found = any(self._chunks.read(path, self._incarnation) for path in paths)
        if self._chunks.path is not None and not self.frozen:
            self._chunks.keep_open(self._chunks.path)
        return is_found

    def _after_a_crash(self) -> None:
        """Restore the state of the last flush after a restart of the machine."""
        is_known = self._read_flushes()
        lost = restore(self.layout, self.arena, self._chunks.last())
        self._part(self._places.log)[:WORD] = 0
        what = f"{len(lost)} rows that may have changed since" if is_known else "all rows"
        if len(lost) or not is_known:
            warnings.warn(
                f"{self.path}: the machine was started anew since this file was open; what the "
                f"last flush wrote is there, and {what} are left out",
                RuntimeWarning,
                stacklevel=3,
            )

    @property
    def _is_of_this_start(self) -> bool:
        """Whether the machine has not restarted since a process last opened the file."""
        boot, now = self._part(self._places.boot), _boot_id()
        return boot[:BOOT_NBYTES].tobytes() == now.ljust(BOOT_NBYTES, b"\0")

    def _part(self, place: tuple[int, int]) -> Bytes:
        return self._part_of(self._memory, place)

    def keep(self, ring: Ring) -> None:  # noqa: ARG002
        """Begin to write: the rows of a ring over this memory are there."""
        is_flushed = self._is_of_this_start and self._chunks.flushes
        if not (self.mode in ("x", "w") or self.frozen or is_flushed):
            self.flush(lambda _, call: call())
            _sign(self._part(self._places.boot))

    def prepare(self) -> None:
        """Mark the chunks of the rows that an ``add`` wanted to write."""
        wanted, self.undo.wanted = self.undo.wanted, 0
        self._chunks.mark_for(wanted)  # a flush in progress does not make this wait

    def use(self, part: Aside | Items, first: int, stop: int) -> None:
        """Reserve the disk space of units of a part; ``MemoryError`` if the disk is full."""
        spans = part.spans(first, stop)
        what = KEPT_ASIDE if isinstance(part, Aside) else _memory_of(part)
        with self._room_for(sum(end - start for start, end in spans), what):
            for start, end in spans:
                use_file(self._file, start, end)

    @property
    def _what_has_holes(self) -> str:
        """What makes the file longer than the bytes in use."""
        rings = self.layout.item_rings
        return " and ".join([KEPT_ASIDE] * bool(self.layout.asides) + [*map(_memory_of, rings)])

    def _room_for(self, nbytes: int, what: str) -> Room:
        """The error for a full disk: see ``Room``."""
        folder = self.path.parent
        return Room(
            lambda: (
                f"{what} needs {nbytes:,} bytes on the disk, and in {folder} there are "
                f"{shutil.disk_usage(folder).free:,} left: make room there, and add again"
                f"{NOTHING_ADDED}"
            )
        )

    def floats(self, what: str, sizes: Mapping[str, int]) -> tuple[dict[str, Floats], bool]:
        """Arrays in the file of the sampler, by name, and whether their values were loaded.

        ``what`` is the content in words. Raises ``ValueError`` if the file has another content.
        """
        mark = hashlib.sha256(repr((what, dict(sizes))).encode()).digest()[:MARK_NBYTES]
        side = None
        try:
            side = self._open_side(mark, what) if self.mode in ("r", "r+") else None
        except FileNotFoundError:
            if self.layout.state(self.arena)[WORD_WRITTEN]:
                warnings.warn(
                    f"{self._side_path(SAMPLER, '*')} is missing, or of another buffer: all rows "
                    "have the priority of new ones",
                    RuntimeWarning,
                    stacklevel=2,
                )
        there = side is not None
        if side is None:
            side = self._create_side(sum(sizes.values()), mark)
            if not self.frozen:
                self._sync(self.path.parent)
        self._sampler = side
        return _split(side.floats, what, sizes)[0], there

    def naming_priorities(self) -> NamingPriorities:
        """An error in the values of ``floats`` names the file, and says what to do."""
        return NamingPriorities(self)

    # ------------------------------------------------------------------ side files

    @property
    def _incarnation(self) -> bytes:
        """The random bytes in all files of this buffer, which no other buffer has."""
        return self._part(self._places.boot)[-INCARNATION_NBYTES:].tobytes()

    def _all_sides(self) -> dict[str, list[tuple[int, Path]]]:
        """The numbers of each side file, newest first, including files of old buffers.

        Cost: proportional to the files of the folder.
        """
        name = re.compile(rf"{re.escape(self.path.name)}\.{SIDE_NAME}", re.ASCII)
        found: dict[str, list[tuple[int, Path]]] = {SAMPLER: [], FLUSHES: []}
        with os.scandir(self.path.parent) as entries:
            for entry in entries:
                match = name.fullmatch(entry.name)
                if match:
                    found[match[1]].append((int(match[2]), self.path.with_name(entry.name)))
        return {name: sorted(paths, reverse=True) for name, paths in found.items()}

    def _next_number(self, name: str) -> int:
        """The number of a new side file, greater than any in the folder."""
        return 1 + max((number for number, _ in self._all_sides()[name]), default=0)

    def _side_path(self, name: str, number: int | str) -> Path:
        """Path of a side file; no rows file has such a name, as those end in .dat."""
        return self.path.with_name(f"{self.path.name}.{name}.{number}")

    def _create_side(self, n: int, mark: bytes) -> _Side:
        """A new file of the sampler, with n zeros.

        The file gets its name when its bytes are on the disk, so no process finds it without them,
        and no crash leaves it so.
        """
        number = self._next_number(SAMPLER)
        path = self._side_path(SAMPLER, number)
        nbytes, incarnation = SIDE_NBYTES + WORD * n, self._incarnation
        words = np.array([COMPLETE, n, 0], np.int64).tobytes()
        head = SIDE_MAGIC + mark
        head = head.ljust(SIDE_NBYTES - len(incarnation + words), b"\0") + incarnation + words
        if self.frozen:
            memory = allocate(nbytes)
            memory[:SIDE_NBYTES] = np.frombuffer(head, np.uint8)
        else:
            with replacing(path, is_new=True) as unfinished:
                with unfinished.open("xb") as file:
                    reserve_file(file.fileno(), nbytes)
                    use_file(file.fileno(), 0, nbytes)
                    file.write(head)
                self._sync(unfinished)
            self._unpublished += [path] if self._staged else []
            try:
                memory = self._map_side(path)
            except OSError:
                path.unlink(missing_ok=True)
                raise
        return _Side(memory, number)

    def _open_side(self, mark: bytes, what: str) -> _Side:
        """The newest file of the sampler of this buffer.

        A file without a header, which a killed process may have left, is skipped. ``mark`` is the
        begin of its header, which says what kind of priorities the file holds.
        """
        damaged = None
        for number, path in self._all_sides()[SAMPLER]:
            try:
                memory = self._map_side(path)
            except FileNotFoundError:
                damaged = path
                continue
            head = memory[:SIDE_NBYTES].tobytes()
            if len(head) < SIDE_NBYTES or not head.startswith(SIDE_MAGIC):
                damaged = path
                continue
            place = SIDE_NBYTES - 3 * WORD - INCARNATION_NBYTES
            _, n, _ = np.frombuffer(head, np.int64)[-3:].tolist()
            if head[place : place + INCARNATION_NBYTES] != self._incarnation:
                continue
            if head[len(SIDE_MAGIC) :][: len(mark)] != mark:
                raise ValueError(
                    f"{path} holds no priorities of this kind: expected {what}; a sampler of other "
                    "parameters wrote them, or the file was damaged. Without it all rows have the "
                    "priority of new ones"
                )
            expected = SIDE_NBYTES + WORD * n
            if len(memory) != expected:
                raise ValueError(
                    f"{path}: expected {expected} bytes, got {len(memory)}: it was cut off, or "
                    "something was added to it"
                )
            return _Side(memory, number)
        if damaged is not None:
            raise ValueError(f"{damaged} is no file of a buffer, or was cut off")
        raise FileNotFoundError(
            errno.ENOENT, "the file of the sampler is missing",
            str(self._side_path(SAMPLER, "*")),
        )  # fmt: skip

    def _sweep(self) -> None:
        """Remove unfinished files of killed processes.

        The caller holds the lock that excludes other writers.
        """
        name = re.escape(self.path.name)
        left = re.compile(rf"{name}(\.{SIDE_NAME})?(\.[0-9a-f]{{16}}\.new)+", re.ASCII)
        for path in self.path.parent.iterdir():
            if left.fullmatch(path.name):
                with contextlib.suppress(OSError):  # removed when the buffer is opened again
                    path.unlink()

    def _forget_sides(self) -> None:
        """Remove all side files but the present ones.

        A buffer without priorities leaves the file of the sampler.
        """
        if self.frozen or self._staged:
            return
        used = {self._chunks.path}
        if self._sampler is not None:
            used.add(self._side_path(SAMPLER, self._sampler.number))
        for name, found in self._all_sides().items():
            for _, path in found:
                if path not in used and (name != SAMPLER or self._sampler is not None):
                    with contextlib.suppress(OSError):  # removed when the buffer is opened again
                        path.unlink()

    def _recover(self) -> None:
        """Repair the rows after a kill of the process or a crash of the machine."""
        if self.mode == "r+":
            self._sweep()
        if self._is_copy:
            pass
        elif self._is_of_this_start:
            if self.mode == "r+" and self._read_flushes():
                sync(cast(Path, self._chunks.path))  # a kill may have come before
        else:
            self._after_a_crash()
        try:
            torn = recover(
                self.layout,
                self.arena,
                self._part(self._places.lens).view(np.int64),
                self._part(self._places.log),
            )
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from None
        if len(torn):
            self._tell_torn(torn)

    def _tell_torn(self, torn: NDArray[np.int64]) -> None:
        warnings.warn(
            f"{self.path}: {len(torn)} rows (ids {torn[0]} to {torn[-1]}) are left out: "
            "newer ones were being written in their place, and were not finished",
            RuntimeWarning,
            stacklevel=3,
        )

    def _map_side(self, path: Path) -> Bytes:
        if self._is_copy:
            with open_regular(path) as file:
                return np.fromfile(file, np.uint8)
        access = mmap.ACCESS_COPY if self.mode == "r" else mmap.ACCESS_WRITE
        with open_regular(path, os.O_RDONLY if self.mode == "r" else os.O_RDWR) as file:
            nbytes = os.fstat(file.fileno()).st_size
            return _array(mmap.mmap(file.fileno(), nbytes, access=access)) if nbytes else NO_BYTES

    # ------------------------------------------------------------------ opening

    def _open(self) -> Bytes:
        with open_regular(self.path, os.O_RDWR) as file:
            self._lock(file, self.path)
            self._check(file)
            self._keep_open(file)
            return _array(mmap.mmap(file.fileno(), self._places.nbytes))

    def _keep_open(self, file: BinaryIO) -> None:
        """Keep the rows file open, as its path may come to name another file."""
        self._file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file).atexit = False  # exit handlers may add rows

    def _lock(self, file: BinaryIO, path: Path) -> None:
        """Exclude other writers as long as the memory lives."""
        _lock(file, path)

    def _read(self) -> Bytes:
        """The bytes of the file for mode "r": private pages, or a copy while a process writes.

        Changes of private pages do not reach the file.
        """
        with open_regular(self.path) as file:
            try:
                _lock(file, self.path, shared=True)
            except OSError as error:  # a writer has the lock, or the file system has no locks
                if not isinstance(error, BlockingIOError) and error.errno not in REFUSED:
                    raise
                self._check(file)
                return self._copy(file)
            self._check(file)
            return self._map_privately(file)

    def _map_privately(self, file: BinaryIO) -> Bytes:
        """Private pages of the rows file. A limit of the system does not count what is not used."""
        if not hasattr(mmap, "MAP_PRIVATE"):
            return _array(mmap.mmap(file.fileno(), self._places.nbytes, access=mmap.ACCESS_COPY))
        flags = mmap.MAP_PRIVATE | NORESERVE
        return _array(mmap.mmap(file.fileno(), self._places.nbytes, flags=flags))

    def _copy(self, file: BinaryIO) -> Bytes:
        """Copy a file that another process writes, without the rows that changed during the copy.

        A copy that lost many rows is repeated. Each try may lose more rows than the one before.
        The newest values of chained fields are copied first, as the next ``add`` replaces them.
        """
        live = np.frombuffer(
            mmap.mmap(file.fileno(), self._places.nbytes, access=mmap.ACCESS_READ), np.uint8
        )
        state = self.layout.state(live[: self.layout.nbytes])
        for attempt in range(TRIES):
            before, edits = self._header(live), self._edits_in_place(live)
            memory, written = self._memory_of_copy(file), int(before[WORD_WRITTEN])
            memory[self.layout.length :] = live[self.layout.length :]
            for name in self.layout.newest_blocks:
                self.layout.block(memory, name)[:] = self.layout.block(live, name)
            tag = int(before[WORD_HANDLE_BASE]) + written
            has_newest = not written or self._have_tag(tag, memory, live)
            for offset, nbytes in self._spans_to_copy(written):
                memory[offset : offset + nbytes] = live[offset : offset + nbytes]
            self._copy_asides(memory, live)
            self._copy_items(memory, live)
            copied = self.layout.state(memory)
            self._is_copy = True
            left = self._hide_left(memory, live, written)
            after = state.copy()
            same = before[WORD_CLEARS] == after[WORD_CLEARS]
            begun = max(before[WORD_RESERVED], after[WORD_RESERVED])
            lost = begun - written + left
            is_sound = same and edits % 2 == 0 and edits == self._edits_in_place(live)
            if is_sound and TRIES * lost <= attempt * self.layout.capacity:
                copied[:] = before
                copied[WORD_RESERVED] = begun
                self._part_of(memory, self._places.lens)[:] = before[-self.layout.n_envs :].view(
                    np.uint8
                )
                self._part_of(memory, self._places.log)[:WORD] = 0
                if not has_newest:
                    self._hide_newest(memory, written)
                return memory
            sleep(PAUSE)
        raise BlockingIOError(
            f"{self.path}: {WRITES_ELSEWHERE.partition(';')[0]}, and changes its rows faster than "
            "they can be read"
        )

    def _memory_of_copy(self, file: BinaryIO) -> Bytes:  # noqa: ARG002
        """Memory for a copy of a live file."""
        memory = reserve(self._places.nbytes, self.layout.nbytes)
        use(memory, self.layout.length, self._places.nbytes)
        return memory

    def _spans_to_copy(self, written: int) -> list[tuple[int, int]]:
        """Offset and length of the bytes of the arena to copy, for ``written`` rows."""
        return self.layout.spans(written)

    def _header(self, live: Bytes) -> NDArray[np.int64]:
        """A copy of the header of a live file, as before an unfinished ``add``."""
        return self.layout.state(live[: self.layout.nbytes]).copy()

    def _edits_in_place(self, live: Bytes) -> int:
        """Edit counter of the live file, odd during an edit."""
        return int(self.layout.state(live)[WORD_EDITS])

    def _copy_asides(self, memory: Bytes, live: Bytes) -> None:
        """Copy what chained fields keep aside."""
        for aside in self.layout.asides:
            extent = self.layout.extent(live, aside)
            self.layout.words(memory, aside)[0] = extent
            for start, stop in aside.spans(0, extent):
                self._use_of_copy(memory, start, stop)
                memory[start:stop] = live[start:stop]

    def _use_of_copy(self, memory: Bytes, start: int, stop: int) -> None:
        use(memory, start, stop)

    _copies_items = True  # whether a copy has items of its own

    def _copy_items(self, memory: Bytes, live: Bytes) -> None:
        """Copy the items of named axes, after the rows, whose places are of then or before."""
        for items in self.layout.item_rings:
            words, now = self.layout.item_words(memory, items), self.layout.item_words(live, items)
            words[:] = now
            while (words != now).any():  # a writer may have placed items meanwhile
                words[:] = now
            laps = laps_of(words)
            if not laps.are_sound(items):
                raise ValueError(
                    f"{self.path}: the laps of axis {items.axis!r} were damaged: {laps}"
                )
            for start, stop in items.spans(0, laps.extent if self._copies_items else 0):
                self._use_of_copy(memory, start, stop)
                memory[start:stop] = live[start:stop]

    def _hide_left(self, memory: Bytes, live: Bytes, written: int) -> int:
        """Hide the rows that left for the room of others, after their items were copied.

        Returns the number of rows that did since they were copied themselves.
        """
        layout = self.layout
        if not layout.schema.axes:
            return 0
        slots = np.arange(max(0, written - layout.capacity), written) % layout.capacity
        now = layout.flags(live)[slots] & FLAG_ABSENT
        copied = layout.flags(memory)
        left = int(np.count_nonzero(now & ~copied[slots]))
        copied[slots] |= now
        return left

    def _have_tag(self, tag: int, memory: Bytes, live: Bytes) -> bool:
        """Whether the newest values have this tag, in a copy and still in the live file.

        Newest values without the tag are marked as missing in the copy.
        """
        have_all = True
        newest = zip(self.layout.newest(memory), self.layout.newest(live), strict=True)
        for (copied, _), (now, _) in newest:
            if not ((copied == tag) & (now == tag)).any():
                copied[:] = -1
                have_all = False
        return have_all

    def _hide_newest(self, arena: Bytes, written: int) -> None:
        """Hide the newest rows of a copy, which lack next values."""
        layout = self.layout
        newest = np.arange(written - layout.n_envs, written)
        hide(layout, arena, newest)
        end_before(layout, arena, newest)
        layout.state(arena)[WORD_EDITS] += 1  # so that ``recover`` recounts
        layout.state(arena)[WORD_EDITS] |= 1

    @staticmethod
    def _part_of(memory: Bytes, place: tuple[int, int]) -> Bytes:
        offset, nbytes = place
        return memory[offset : offset + nbytes]

    def _check(self, file: BinaryIO) -> None:
        """Raise ``ValueError`` unless an open file is of a buffer with this layout."""
        identity, nbytes = self.layout.identity(), os.fstat(file.fileno()).st_size
        given = file.read(len(identity))
        version = identity[:VERSION_NBYTES]
        if not given.startswith(MAGIC):
            what = "is empty" if nbytes == 0 else "is no file of a buffer"
            raise ValueError(f"{self.path} {what}")
        if not given.startswith(version):
            found = given[:VERSION_NBYTES].decode(errors="replace").rstrip()
            raise ValueError(f"{self.path}: expected {version.decode().rstrip()!r}, got {found!r}")
        if given != identity:
            rooms = self.layout.schema.rooms
            another = f"another room than {rooms}, " if rooms else ""
            raise ValueError(
                f"{self.path} was written by a buffer of other fields, size or n_envs, "
                f"{another}or other options"
            )
        if nbytes != self._places.nbytes:
            raise ValueError(
                f"{self.path}: expected {self._places.nbytes} bytes, got {nbytes}: it was cut off, "
                "or something was added to it"
            )

    # ------------------------------------------------------------------ creating

    def _create(self, mode: str) -> Bytes:
        """Create and lock the rows file, which gets its name in ``publish``."""
        if mode == "x" and self.path.exists():
            raise FileExistsError(f"{self.path} exists; mmap_mode='r+' opens it, 'w' replaces it")
        self._old = _open_locked(self.path)
        if self._old is not None:
            self._sweep()
        incarnation = secrets.token_bytes(INCARNATION_NBYTES)
        self._staged = f".{incarnation[:8].hex()}.new"  # see ``_sweep``
        path = self._rows_path
        weakref.finalize(self, _remove, self._unpublished, self._process, self._old)
        self._unpublished.append(path)
        with path.open("xb+") as file:
            self._lock(file, path)
            self._keep_open(file)
            reserve_file(file.fileno(), self._places.nbytes)
            if self.layout.has_parts:  # byte rings and items are not used yet
                use_file(file.fileno(), 0, self.layout.nbytes)
                use_file(file.fileno(), self.layout.length, self._places.nbytes)
            else:
                use_file(file.fileno(), 0, self._places.nbytes)
            memory = _array(mmap.mmap(file.fileno(), self._places.nbytes))
        boot = self._part_of(memory, self._places.boot)
        boot[-INCARNATION_NBYTES:] = np.frombuffer(incarnation, np.uint8)
        _sign(boot)
        self._memory = memory
        identity = self.layout.identity()
        memory[: len(identity)] = np.frombuffer(identity, np.uint8)
        return memory


class Room:
    """Raises ``MemoryError`` with a message in place of the error of a full disk or memory.

    This is no generator: the frames of a generator and of its error would form a cycle, which would
    hold the buffer until the garbage collector runs.
    """

    def __init__(self, message: Callable[[], str]) -> None:
        self._message = message

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OSError) and error.errno in (*FULL, errno.ENOMEM):
            raise MemoryError(self._message()) from error


def _memory_of(items: Items) -> str:
    """The memory of an axis in words."""
    return f"memory of room={{{items.axis!r}: {items.room}}}"


def _remove(paths: list[Path], process: int, old: BinaryIO | None) -> None:
    """Close and unlock the old file; remove unpublished files, unless in a forked child."""
    if old is not None:
        old.close()
    for path in paths if os.getpid() == process else []:
        with contextlib.suppress(OSError):
            path.unlink()


def _array(pages: mmap.mmap) -> Bytes:
    return np.frombuffer(pages, np.uint8)


@functools.cache
def _boot_id() -> bytes:
    """The system's identifier of the present boot; empty if the system has none."""
    with contextlib.suppress(OSError):
        if sys.platform == "darwin":
            import subprocess  # noqa: PLC0415 (only needed here)

            command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
            return subprocess.run(command, capture_output=True, check=False).stdout.strip()[:36]
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()[:BOOT_NBYTES]
    return b""


def _sign(boot: Bytes) -> None:
    boot[:BOOT_NBYTES] = np.frombuffer(_boot_id().ljust(BOOT_NBYTES, b"\0"), np.uint8)


def _open_locked(path: Path) -> BinaryIO | None:
    """The file at a path, locked until it is closed; None if it is missing.

    Raises ``BlockingIOError`` if the file is in use.
    """
    try:
        file = open_regular(path, os.O_RDWR)
    except FileNotFoundError:
        if path.exists():  # a folder, for example
            raise
        return None
    try:
        _lock(file, path)
    except OSError:
        file.close()
        raise
    return file


class NamingPriorities:
    """See ``Files.naming_priorities``.

    A class and not a generator: from CPython 3.13 on, an error thrown into a generator forms a
    cycle with its frames, which holds the buffer and its lock.
    """

    def __init__(self, files: Files) -> None:
        self._files = files

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        files = self._files
        side = files._sampler
        if not isinstance(error, ValueError) or side is None or str(files.path) in str(error):
            return
        path = files._side_path(SAMPLER, side.number)
        raise ValueError(
            f"{path}: {error}; remove this file, and all rows have the priority of new ones"
        ) from None


def _lock(file: BinaryIO, path: Path, *, shared: bool = False) -> None:
    """Lock an open file as long as the file or a memory map of it lives, in forked children too.

    The system releases the lock when the last of these is closed, by a kill too.
    """
    try:
        is_ours = try_lock(file.fileno(), shared=shared)
        # Another file may have taken the name between opening and locking.
        if not is_ours or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
            raise BlockingIOError(f"{path}: {WRITES_ELSEWHERE}")
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno not in REFUSED:
            raise
        raise OSError(error.errno, f"{NO_LOCKS} ({error.strerror})", str(path)) from None
