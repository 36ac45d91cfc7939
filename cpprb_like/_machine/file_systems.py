"""File locks, atomic renames, and synchronisation with the disk.

Only this module calls ``flock`` and renames files. Some file systems refuse these calls. Not here:
the choice of files to lock, replace and synchronise (``_files.file_maps``, ``checkpoint._disk``,
``processes._folder``).
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import secrets
import sys
import warnings
from pathlib import Path

from cpprb_like._arguments.arrays import Bytes

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = [
    "FULL",
    "REFUSED",
    "InRoom",
    "name_new",
    "rename",
    "replacing",
    "sync",
    "sync_folder",
    "try_lock",
    "unlock",
    "write_at",
]

LOCKED_BYTE = 1 << 62  # place of the lock on Windows, beyond the end of any file
# Errors of network and user-space file systems for calls that they do not support.
REFUSED = (errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
FULL = (errno.ENOSPC, errno.EDQUOT)  # errors of a full disk, or quota


class InRoom:
    """Context of a block that writes a file: the error of a full disk names file and remedy.

    A class and not a generator, whose frames would form a cycle with the error and hold a buffer.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if (
            isinstance(error, OSError)
            and error.errno in FULL
            and not isinstance(error, _FullDiskError)
        ):
            raise self._told(error.errno) from error  # without a name, which would form a cycle

    def _told(self, number: int) -> OSError:
        import shutil  # noqa: PLC0415 (it takes a while, and is rarely needed)

        left = ""
        with contextlib.suppress(OSError):
            left = f", {shutil.disk_usage(self._path.parent).free:,} bytes are left"
        what = f"the disk is full{left}: make room there, and try again"
        return _FullDiskError(number, what, str(self._path))


class _FullDiskError(OSError):
    """An error that names its file already."""


def sync_folder(path: Path) -> None:
    """Synchronise the names of the files in a folder with the disk, except on Windows.

    A file system that refuses the call causes a ``RuntimeWarning``.
    """
    if sys.platform == "win32":
        return
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in REFUSED:
            raise
        warnings.warn(
            f"{path}: its file system does not synchronise folders ({error.strerror}): a crash of "
            "the machine may cost the files that were made or replaced last",
            RuntimeWarning,
            stacklevel=2,
        )
    finally:
        os.close(folder)


def sync(path: Path | int) -> None:
    """Synchronise a file, which may be open, or the names in a folder, with the disk."""
    if isinstance(path, int):
        os.fsync(path)
        return
    if path.is_dir():
        sync_folder(path)
        return
    with path.open("r+b", buffering=0) as file:
        os.fsync(file.fileno())


def write_at(descriptor: int, data: Bytes, offset: int) -> None:
    """Write bytes at an offset of an open file.

    The file position is neither used nor changed, as a signal handler may write in the meantime.
    """
    if sys.platform == "win32":
        with mmap.mmap(descriptor, 0) as pages:
            pages[offset : offset + len(data)] = data.tobytes()
            pages.flush()
        return
    rest = data.data
    while rest:  # a disk that becomes full takes a part of them
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file; false if another open file has the lock.

    The lock lasts as long as the open file: the system releases the locks of a killed process.
    ``OSError`` with a number in ``REFUSED`` where the file system has no locks.
    """
    try:
        if sys.platform == "win32":
            place = os.lseek(descriptor, 0, os.SEEK_CUR)
            os.lseek(descriptor, LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            os.lseek(descriptor, place, os.SEEK_SET)
        else:
            kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def unlock(descriptor: int) -> None:
    """Release a lock, even if a forked child has the file open too; no effect on Windows."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def rename(old: Path, new: Path) -> None:
    """Rename a file or a folder atomically, and replace a file that has the new name."""
    old.replace(new)


def name_new(unfinished: Path, path: Path) -> None:
    """Give a file a new name atomically; ``FileExistsError`` if a file has the name.

    The file may keep its old name too.
    """
    try:
        if sys.platform == "win32":
            unfinished.rename(path)
        else:
            os.link(unfinished, path)
    except FileExistsError:
        raise FileExistsError(f"{path} exists: another program has just created it") from None
    except FileNotFoundError:  # the folder or the file was removed
        raise
    except OSError:  # a file system without links
        with path.open("xb"):
            pass
        rename(unfinished, path)


class replacing:  # noqa: N801 (used as a function)
    """A path for a new file that is renamed to ``path`` atomically at the end of the block.

    With ``is_new`` a file at ``path`` is not replaced; ``FileExistsError`` is raised. If an error
    is raised before the renaming, the new file is removed. No generator: see ``InRoom``.
    """

    def __init__(self, path: Path, *, is_new: bool = False) -> None:
        self._path, self._room = path, InRoom(path)
        self._name = name_new if is_new else rename
        self._unfinished = path.with_name(f"{path.name}.{secrets.token_hex(8)}.new")

    def __enter__(self) -> Path:
        return self._unfinished

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            self._room.__exit__(kind, error, traceback)
            if error is None:
                with self._room:
                    self._name(self._unfinished, self._path)
        finally:
            self._unfinished.unlink(missing_ok=True)
