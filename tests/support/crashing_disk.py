"""A disk in memory that records what is done to it, and what a crash of the machine would leave.

A file's bytes are safe once the file was synchronised, and its name once the names were. Of what
was done since, a crash leaves any part: bytes are there, or zeros, or nothing, or the first
sectors; a name is new, old, both or gone. That is worse than any file system is.
"""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

from cpprb_like.checkpoint._disk import Disk

SECTOR = 512

Folder = dict[str, bytes]
Operation = tuple[Any, ...]


class MemoryOutput:
    """As ``_disk.Output``."""

    def __init__(self, disk: MemoryDisk, inode: int) -> None:
        self._disk = disk
        self._inode = inode

    def reserve(self, nbytes: int) -> None:
        """Nothing: what is not written yet may be zeros after a crash anyway."""

    def write(self, data: memoryview | bytes) -> None:
        """Add bytes."""
        more = bytes(data)

        def part() -> None:
            self._disk.inodes[self._inode] += more[: len(more) // 2]

        def all_of_it() -> None:
            self._disk.inodes[self._inode] += more

        self._disk.do(("write", self._inode, more), all_of_it, part)

    def sync(self) -> None:
        """Keep the bytes."""
        self._disk.do(("sync", self._inode))

    def close(self) -> None:
        """Nothing."""
        self._disk.do(("close", self._inode))


class MemoryDisk(Disk):
    """As ``_disk.Disk``; ``log`` has what was done, and ``before`` may raise instead of doing it.

    Parameters
    ----------
    files : dict
        What is there, and safe.
    """

    def __init__(self, files: Folder | None = None) -> None:
        super().__init__("memory")
        self.inodes: list[bytes] = []
        self.entries: dict[str, int] = {}
        for name, data in (files or {}).items():
            self.entries[name] = len(self.inodes)
            self.inodes.append(data)
        self.start = dict(self.entries)
        self.start_inodes = list(self.inodes)
        self.log: list[Operation] = []
        self.is_locked = False
        self.before: Callable[[int, Operation], str | None] = lambda number, operation: None

    def do(
        self,
        operation: Operation,
        act: Callable[[], None] = lambda: None,
        part: Callable[[], None] = lambda: None,
    ) -> None:
        """Do something, unless ``before`` raises, or says ``full``, ``broken`` or ``cut``."""
        number = len(self.log)
        self.log.append(operation)
        what = self.before(number, operation)
        if what == "full":
            part()
            raise OSError(errno.ENOSPC, "no space left (a test)")
        if what == "broken":
            raise OSError(errno.EIO, "input/output error (a test)")
        if what == "cut before":
            raise KeyboardInterrupt
        act()
        if what == "cut after":
            raise KeyboardInterrupt

    def files(self) -> Folder:
        """What is there now."""
        return {name: self.inodes[inode] for name, inode in self.entries.items()}

    def make(self) -> None:
        """Nothing: the folder is there."""
        self.do(("make",))

    def create(self, name: str) -> MemoryOutput:
        """See ``Disk``."""
        if name in self.entries:
            raise FileExistsError(errno.EEXIST, name)
        inode = len(self.inodes)

        def act() -> None:
            self.inodes.append(b"")
            self.entries[name] = inode

        self.do(("create", name, inode), act)
        return MemoryOutput(self, inode)

    def rename(self, old: str, new: str) -> None:
        """See ``Disk``."""

        def act() -> None:
            self.entries[new] = self.entries.pop(old)

        self.do(("rename", old, new, self.entries[old]), act)

    def remove(self, name: str) -> None:
        """See ``Disk``."""
        if name in self.entries:
            self.do(("remove", name), lambda: self.entries.__delitem__(name))

    def sync(self, name: str) -> None:
        """See ``Disk``."""
        self.do(("sync", self.entries[name]))

    def sync_names(self) -> None:
        """See ``Disk``."""
        self.do(("sync_names",))

    def names(self) -> list[str]:
        """See ``Disk``."""
        return sorted(self.entries)

    def signature(self, name: str) -> None:
        """Nothing: each manifest is read."""

    def size(self, name: str) -> int:
        """See ``Disk``."""
        return len(self._data(name))

    def open(self, name: str) -> Any:
        """See ``Disk``."""
        return io.BytesIO(self._data(name))

    def _data(self, name: str) -> bytes:
        if name not in self.entries:
            raise FileNotFoundError(errno.ENOENT, name)
        return self.inodes[self.entries[name]]

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """See ``Disk``."""
        if self.is_locked:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked")
        self.is_locked = True
        try:
            yield
        finally:
            self.is_locked = False


class UnsynchronisedOutput(MemoryOutput):
    """As ``_disk.Output`` of a disk that does not synchronise."""

    def sync(self) -> None:
        """Nothing."""


class UnsynchronisedMemoryDisk(MemoryDisk):
    """As a disk that does not synchronise: folder and log are those of a disk in memory."""

    def __init__(self, disk: MemoryDisk) -> None:
        self.__dict__ = {**disk.__dict__, "synchronises": False}

    def create(self, name: str) -> MemoryOutput:
        """See ``Disk``."""
        output = super().create(name)
        return UnsynchronisedOutput(self, output._inode)

    def sync(self, name: str) -> None:
        """Nothing."""

    def sync_names(self) -> None:
        """Nothing."""


def kills(disk: MemoryDisk) -> Iterator[tuple[int, Folder]]:
    """For each prefix of the operations, its length and the folder that a killed program leaves.

    Everything that was done is there, synchronised or not; the last write may be half of one.
    """
    names, inodes = dict(disk.start), dict(enumerate(disk.start_inodes))
    for length, (kind, *rest) in enumerate(disk.log, 1):
        if kind == "create":
            names[rest[0]] = rest[1]
            inodes[rest[1]] = b""
        elif kind == "write":
            before = inodes[rest[0]]
            inodes[rest[0]] = before + rest[1][: len(rest[1]) // 2]
            yield length - 1, {name: inodes[inode] for name, inode in names.items()}
            inodes[rest[0]] = before + rest[1]
        elif kind == "rename":
            names[rest[1]] = names.pop(rest[0])
        elif kind == "remove":
            del names[rest[0]]
        yield length, {name: inodes[inode] for name, inode in names.items()}


Effect = tuple[tuple[str, int | None], ...]  # names, and the inodes that they have afterwards


class _Unsafe:
    """What is safe after a prefix of the operations, and what is not."""

    def __init__(self, disk: MemoryDisk) -> None:
        self.safe = dict(disk.start)
        self.safe_bytes: dict[int, bytes] = dict(enumerate(disk.start_inodes))
        self.bytes: dict[int, bytes] = dict(self.safe_bytes)
        self.pending: list[list[Effect]] = []  # of each operation on names, what it may have left

    def do(self, operation: Operation) -> None:
        """One more operation."""
        kind, *rest = operation
        if kind == "create":
            name, inode = rest
            self.bytes[inode] = b""
            self.pending.append([((name, inode),), ()])
        elif kind == "write":
            inode, data = rest
            self.bytes[inode] += data
        elif kind == "sync":
            self.safe_bytes[rest[0]] = self.bytes[rest[0]]
        elif kind == "rename":
            old, new, inode = rest
            both: list[Effect] = [((new, inode), (old, None)), (), ((new, inode),), ((old, None),)]
            self.pending.append(both)
        elif kind == "remove":
            self.pending.append([((rest[0], None),), ()])
        elif kind == "sync_names":
            for choices in self.pending:
                _apply(self.safe, choices[0])
            self.pending = []


def _apply(names: dict[str, int], effect: Effect) -> None:
    for name, inode in effect:
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode


def _leftovers(data: bytes) -> list[bytes]:
    """What may be left of bytes that were not synchronised."""
    n = len(data)
    found = [data, b"", bytes(n)]
    for stop in range(SECTOR, n, SECTOR):
        found += [data[:stop], data[:stop] + bytes(n - stop), bytes(stop) + data[stop:]]
    return list(dict.fromkeys(found))


def crashes(disk: MemoryDisk, most: int, seed: int) -> Iterator[tuple[int, Iterator[Folder]]]:
    """For each prefix of the operations, its length and the folders that a crash then may leave.

    All of them, if these are at most ``most``, else so many drawn ones.
    """
    rng = random.Random(seed)
    state = _Unsafe(disk)
    for length in range(len(disk.log) + 1):
        if length:
            state.do(disk.log[length - 1])
        yield length, _folders(state, most, rng)


def _folders(state: _Unsafe, most: int, rng: random.Random) -> Iterator[Folder]:
    unsafe = [i for i, data in state.bytes.items() if state.safe_bytes.get(i) != data]
    choices: list[list[Any]] = [*state.pending, *(_leftovers(state.bytes[i]) for i in unsafe)]
    n_names = len(state.pending)
    chosen: Iterator[tuple[Any, ...]]
    if math.prod(len(some) for some in choices) <= most:
        chosen = itertools.product(*choices)
    else:
        chosen = (tuple(rng.choice(some) for some in choices) for _ in range(most))
    for choice in chosen:
        names = dict(state.safe)
        for effect in choice[:n_names]:
            _apply(names, effect)
        left = state.safe_bytes | dict(zip(unsafe, choice[n_names:], strict=True))
        yield {name: left[inode] for name, inode in names.items()}
