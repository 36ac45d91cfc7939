"""File operations of saving.

Only the methods of ``Disk`` write a checkpoint. Tests replace ``Disk`` by a class that records the
operations, and check the files that a crash after each operation would leave. Not here: the files
of a state (``_manifest``), and their content (``_arrays``).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import sys
import warnings
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from cpprb_like._arguments.checks import as_path
from cpprb_like._machine.file_systems import (
    REFUSED,
    InRoom,
    rename,
    sync,
    sync_folder,
    try_lock,
    unlock,
)
from cpprb_like._machine.forks import tell
from cpprb_like._machine.opening import open_regular

Signature = tuple[int, ...]

LOCK = "lock"
FEW_OPEN = 128  # open files where the limit of the process is unknown
STARTED_NBYTES = 1 << 22  # bytes after which the system is asked to begin writing to the disk
SYNC_FILE_RANGE_WRITE = 2  # flag of Linux


class Output:
    """A new file, open for writing: see ``Disk.synchronises``."""

    def __init__(self, path: Path, synchronises: bool = True) -> None:
        self._in_room = InRoom(path)
        with self._in_room:
            self._file: Any = path.open("xb", buffering=0)
        self._synchronises = synchronises
        self._written = self._started = 0

    def reserve(self, nbytes: int) -> None:
        """Ask the system for the disk space of a large file.

        A hint that saves 3 of 12 ms for 46 MB. Without space, ``write`` raises ``OSError``.
        """
        reserving = _of_linux("fallocate")
        if reserving is not None and nbytes >= STARTED_NBYTES:
            reserving(self._file.fileno(), 0, 0, nbytes)

    def write(self, data: memoryview | bytes) -> int:
        """Write all bytes, and return their number."""
        rest = memoryview(data).cast("B")
        nbytes = len(rest)
        while len(rest):
            with self._in_room:
                n = self._file.write(rest)
            if not n:
                raise OSError(errno.EIO, f"{self._file.name}: no byte was written")
            rest = rest[n:]
        self._written += nbytes
        if self._synchronises and self._written - self._started >= STARTED_NBYTES:
            self._started = _start(self._file.fileno(), self._started, self._written)
        return nbytes

    def sync(self) -> None:
        """Synchronise the file: return when all bytes are on the disk."""
        if self._synchronises:
            with self._in_room:
                os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file without synchronising it."""
        self._file.close()


def _start(file: int, start: int, stop: int) -> int:
    """Ask the system to begin writing these bytes to the disk, and return ``stop``.

    A hint. Without it the disk is idle until ``sync``, and a save of 64 MB takes 20 to 40 % longer.
    """
    starting = _of_linux("sync_file_range")
    if starting is not None:
        starting(file, start, stop - start, SYNC_FILE_RANGE_WRITE)
    return stop


ARGUMENTS = {
    "fallocate": (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64),
    "sync_file_range": (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint),
}


@cache
def _of_linux(name: str) -> Any:
    """A function of the C library, or None where it is missing or sizes have 32 bits."""
    if sys.platform != "linux" or sys.maxsize < 1 << 62:
        return None
    try:
        found = getattr(ctypes.CDLL(None), name)
    except AttributeError:
        return None
    found.argtypes = ARGUMENTS[name]
    return found


class Disk:
    """A folder, and the operations that saving needs. Each ``name`` names a file in the folder.

    Without ``synchronises`` the system chooses the time and order of writing. A killed program then
    loses nothing. After a crash of the machine, files and names of about the last half-minute are
    present, missing, or torn. A folder that ``make`` created is present.
    """

    def __init__(self, folder: str | Path, synchronises: bool = True) -> None:
        self.folder = as_path("folder", folder)
        self.synchronises = synchronises

    # ------------------------------------------------------------------ changes of the folder

    def make(self) -> None:
        """Create the folder and its parents where they are missing."""
        missing = []
        path = self.folder
        while not path.is_dir():
            missing.append(path)
            path = path.parent
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            sync_folder(path.parent)

    def create(self, name: str) -> Any:
        """An ``Output`` for a new file; ``FileExistsError`` if the name is taken."""
        return Output(self.folder / name, self.synchronises)

    def rename(self, old: str, new: str) -> None:
        """Rename a file, and replace a file that has the new name."""
        rename(self.folder / old, self.folder / new)

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        (self.folder / name).unlink(missing_ok=True)

    def sync(self, name: str) -> None:
        """Synchronise a file that an earlier save has written."""
        if self.synchronises:
            sync(self.folder / name)

    def sync_names(self) -> None:
        """Synchronise the names of the files."""
        if self.synchronises:
            sync_folder(self.folder)

    # ------------------------------------------------------------------ reads, lock

    def names(self) -> list[str]:
        """The sorted names of all files; empty for a missing folder."""
        try:
            return sorted(os.listdir(self.folder))  # noqa: PTH208 (half the time of iterdir)
        except FileNotFoundError:
            return []

    def size(self, name: str) -> int:
        """The number of bytes of a file."""
        return (self.folder / name).stat().st_size

    def signature(self, name: str) -> Signature | None:
        """A value that another file of this name would not have; None for a missing file."""
        try:
            found = (self.folder / name).stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def open(self, name: str) -> BinaryIO:
        """A regular file, open for reading; ``FileNotFoundError`` if it is missing."""
        return open_regular(self.folder / name)

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Hold the lock of the folder, which excludes saves of other threads and processes.

        The system releases the lock of a process that died. A forked child does not hold it.
        ``BlockingIOError`` if another save holds the lock.
        """
        return _Lock(self.folder)


class OpenFiles(Disk):
    """A folder whose files are held open, so they can be read after they were removed.

    At most half of the files that the process may open are held open. On Windows no file is held
    open: an open file cannot be removed there, so a save would fail.
    """

    def __init__(self, disk: Disk, names: Iterable[str]) -> None:
        super().__init__(disk.folder)
        self._disk = disk
        self._files: dict[str, BinaryIO] = {}
        try:
            for name in [] if sys.platform == "win32" else list(names)[: _most_open()]:
                with contextlib.suppress(FileNotFoundError):
                    self._files[name] = disk.open(name)
        except BaseException:
            self.close()
            raise

    def names(self) -> list[str]:
        return self._disk.names()

    def open(self, name: str) -> BinaryIO:
        """A file at its beginning. The second call for a name opens the file again."""
        return self._files.pop(name, None) or self._disk.open(name)

    def close(self) -> None:
        """Close the files that were not read."""
        while self._files:
            self._files.popitem()[1].close()


def _most_open() -> int:
    """The greatest number of files to have open."""
    try:
        import resource  # noqa: PLC0415 (of Unix)
    except ImportError:
        return FEW_OPEN
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return FEW_OPEN if most < 0 else most // 2


class _Lock(contextlib.AbstractContextManager[None]):
    """The lock of a folder."""

    _file: Any = None

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> None:
        self._file = open_regular(self._folder / LOCK, os.O_RDWR | os.O_CREAT)
        tell(self._close)
        with contextlib.ExitStack() as undo:
            undo.callback(self._close)
            try:
                if not try_lock(self._file.fileno()):
                    raise BlockingIOError(
                        errno.EWOULDBLOCK,
                        f"{self._folder}: another save to this folder is in progress; result() of "
                        "a save_async() of your own waits for its end",
                    )
            except OSError as error:
                if error.errno not in REFUSED:
                    raise
                warnings.warn(
                    f"{self._folder}: its file system has no locks ({error.strerror}): two "
                    "programs that save to this folder at the same time would damage it",
                    RuntimeWarning,
                    stacklevel=2,
                )
            undo.pop_all()

    def __exit__(self, *error: object) -> None:
        """Release the lock. Can be called again, and after an interrupt of ``__enter__``."""
        if self._file is not None and not self._file.closed:
            unlock(self._file.fileno())  # a child that was just forked may have the file open too
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
