"""File operations of saving.

Only the methods of ``Disk`` write a checkpoint. A test replaces ``Disk`` by a class that records
the operations. It then checks what files a crash after each operation would leave. Not here: which
files there are (``_manifest``), and what is in them (``_arrays``).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import sys
import warnings
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, cast

from cpprb_like._arguments.checks import as_path
from cpprb_like._machine.file_systems import REFUSED, rename, sync, sync_folder, try_lock, unlock
from cpprb_like._machine.forks import tell

__all__ = ["Disk", "OpenFiles", "Output", "open_regular"]

LOCK = "lock"
FEW_OPEN = 128
STARTED_NBYTES = 1 << 22  # of a file go to the disk while the next ones are written
SYNC_FILE_RANGE_WRITE = 2  # of Linux


class Output:
    """A new file, open for writing: see ``Disk.synchronises``."""

    def __init__(self, path: Path, synchronises: bool = True) -> None:
        self._file: Any = path.open("xb", buffering=0)
        self._synchronises = synchronises
        self._written = self._started = 0

    def reserve(self, nbytes: int) -> None:
        """Have the system find room for a file that will have so many bytes, if they are many.

        A hint: 46 MB take 3 ms of 12 less to copy. If there is no room, ``write`` says so.
        """
        reserving = _of_linux("fallocate")
        if reserving is not None and nbytes >= STARTED_NBYTES:
            reserving(self._file.fileno(), 0, 0, nbytes)

    def write(self, data: memoryview | bytes) -> int:
        """Write all of it, and return its length; the system may take it piece by piece."""
        rest = memoryview(data).cast("B")
        nbytes = len(rest)
        while len(rest):
            n = self._file.write(rest)
            if not n:
                raise OSError(errno.EIO, f"{self._file.name}: no byte was written")
            rest = rest[n:]
        self._written += nbytes
        if self._synchronises and self._written - self._started >= STARTED_NBYTES:
            self._started = _start(self._file.fileno(), self._started, self._written)
        return nbytes

    def sync(self) -> None:
        """Return when all bytes are on the disk."""
        if self._synchronises:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; it is not synchronised by that."""
        self._file.close()


def _start(file: int, start: int, stop: int) -> int:
    """Have the system begin to put these bytes on the disk; returns where they end.

    A hint: without it the disk is idle until ``sync``, and a save of 64 MB takes 20 to 40 % longer.
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
    """A function for files, where the C library has it, and sizes of 64 bits."""
    if sys.platform != "linux" or sys.maxsize < 1 << 62:
        return None
    try:
        found = getattr(ctypes.CDLL(None), name)
    except AttributeError:
        return None
    found.argtypes = ARGUMENTS[name]
    return found


class Disk:
    """A folder, and the operations that saving needs; names are those of files in it.

    A disk that does not synchronise leaves time and order of writing to the system. A killed
    program loses nothing by that. A crash of the machine may: files and names of the last
    half-minute or so are present, missing, or torn. A folder that ``make`` creates is present.
    """

    def __init__(self, folder: str | Path, synchronises: bool = True) -> None:
        self.folder = as_path("folder", folder)
        self.synchronises = synchronises

    # ------------------------------------------------------------------ what changes the folder

    def make(self) -> None:
        """Create the folder, unless it is there; its parents too."""
        missing = []
        path = self.folder
        while not path.is_dir():
            missing.append(path)
            path = path.parent
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            sync_folder(path.parent)

    def create(self, name: str) -> Any:
        """A new file of this name: an ``Output``. ``FileExistsError`` if there is one."""
        return Output(self.folder / name, self.synchronises)

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, in place of a file that may have it."""
        rename(self.folder / old, self.folder / new)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        (self.folder / name).unlink(missing_ok=True)

    def sync(self, name: str) -> None:
        """Return when all bytes of a file, which another save may have written, are on the disk."""
        if self.synchronises:
            sync(self.folder / name)

    def sync_names(self) -> None:
        """Return when the names of the files are on the disk."""
        if self.synchronises:
            sync_folder(self.folder)

    # ------------------------------------------------------------------ what does not

    def names(self) -> list[str]:
        """The names of all files, in order; none if there is no folder."""
        try:
            return sorted(os.listdir(self.folder))  # noqa: PTH208 (half the time of iterdir)
        except FileNotFoundError:
            return []

    def size(self, name: str) -> int:
        """Bytes of a file."""
        return (self.folder / name).stat().st_size

    def open(self, name: str) -> BinaryIO:
        """A regular file, open for reading; ``FileNotFoundError`` if there is none."""
        return open_regular(self.folder / name)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only one that saves to the folder: no other thread, and no other process.

        The system takes the lock of a process that died back; a forked child has no part in it.
        ``BlockingIOError`` if there is another one.
        """
        lock = _Lock(self.folder)
        try:
            yield
        finally:
            lock.release()


class OpenFiles(Disk):
    """A folder of which files are open from now on: they can be read after they were removed.

    As many as half of those that the process may have open; on Windows none, as open files cannot
    be removed there, and a save would fail.
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
        """See ``Disk``."""
        return self._disk.names()

    def open(self, name: str) -> BinaryIO:
        """A file from its beginning; one that was read before is opened again."""
        return self._files.pop(name, None) or self._disk.open(name)

    def close(self) -> None:
        """Close what was not read."""
        while self._files:
            self._files.popitem()[1].close()


def _most_open() -> int:
    """How many files may be held."""
    try:
        import resource  # noqa: PLC0415 (of Unix)
    except ImportError:
        return FEW_OPEN
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return FEW_OPEN if most < 0 else most // 2


class _Lock:
    """The lock of a folder, held from now on."""

    def __init__(self, folder: Path) -> None:
        self._file: Any = open_regular(folder / LOCK, os.O_RDWR | os.O_CREAT)
        tell(self._close)
        try:
            if not try_lock(self._file.fileno()):
                raise BlockingIOError(
                    errno.EWOULDBLOCK,
                    f"{folder}: another save to this folder is in progress; result() of a "
                    "save_async() of your own waits for its end",
                )
        except OSError as error:
            if isinstance(error, BlockingIOError) or error.errno not in REFUSED:
                self._close()
                raise
            warnings.warn(
                f"{folder}: its file system has no locks ({error.strerror}): two programs that "
                "save to this folder at the same time would damage it",
                RuntimeWarning,
                stacklevel=2,
            )
        except BaseException:
            self._close()
            raise

    def release(self) -> None:
        """Give it back, even if a child that was forked a moment ago has the file open too."""
        if not self._file.closed:
            unlock(self._file.fileno())
        self._close()

    def _close(self) -> None:
        self._file.close()


def open_regular(path: Path, flags: int = os.O_RDONLY) -> BinaryIO:
    """Open a regular file, without a wait; ``FileNotFoundError`` for a FIFO, a device or a folder.

    A folder of a stranger may have these, or links to them, under any name: a FIFO would have
    the caller wait for ever, and ``/dev/zero`` has no end.
    """
    with contextlib.suppress(FileNotFoundError):
        _expect_regular(path, path.stat())  # before it is opened, as that may do something
    flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)

    def opener(name: str, _: int) -> int:
        """The descriptor, which the file closes from then on."""
        descriptor = os.open(name, flags, 0o666)
        try:
            _expect_regular(path, os.fstat(descriptor))
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    mode = "rb" if flags & os.O_ACCMODE == os.O_RDONLY else "r+b"
    return cast(BinaryIO, open(path, mode, opener=opener))


def _expect_regular(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise FileNotFoundError(errno.ENOENT, "it is no regular file", str(path))
