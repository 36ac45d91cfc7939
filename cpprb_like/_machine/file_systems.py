"""File locks, names of files that change in one step, and names that are on the disk.

The one place that calls ``flock`` and renames files. Some file systems refuse these calls. Not
here: which files are locked, replaced and synchronised (``_files.file_maps``,
``checkpoint._disk``, ``processes._folder``).
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = [
    "REFUSED",
    "name_new",
    "rename",
    "replacing",
    "sync",
    "sync_folder",
    "try_lock",
    "unlock",
]

LOCKED_BYTE = 1 << 62  # where Windows locks a file: no file has a byte there
# What network and user-space file systems answer to a call that they do not have.
REFUSED = (errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


def sync_folder(path: Path) -> None:
    """Return when the names of the files in a folder are on the disk, where a system has that.

    A ``RuntimeWarning`` says what may be lost where the file system refuses it.
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


def sync(path: Path) -> None:
    """Return when a file, or the names in a folder, are on the disk."""
    if path.is_dir():
        sync_folder(path)
        return
    with path.open("r+b", buffering=0) as file:
        os.fsync(file.fileno())


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file; false if another open file has its lock.

    The lock lasts as long as the open file: the system releases it however a process ends.
    ``OSError`` with a number of ``REFUSED`` where the file system has no locks.
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
    """Release a lock although a forked child has the file open too; Windows does it on closing."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def rename(old: Path, new: Path) -> None:
    """Give a file or a folder another name in one step; a file that has the name is replaced."""
    old.replace(new)


def name_new(unfinished: Path, path: Path) -> None:
    """Give a file a name that no file has, in one step; ``FileExistsError`` if one has it.

    The file may keep its old name too.
    """
    try:
        if sys.platform == "win32":
            unfinished.rename(path)
        else:
            os.link(unfinished, path)
    except FileExistsError:
        raise FileExistsError(f"{path} exists: another program has just created it") from None
    except FileNotFoundError:  # the folder was removed, or the file was
        raise
    except OSError:  # a file system without links
        with path.open("xb"):
            pass
        rename(unfinished, path)


@contextlib.contextmanager
def replacing(path: Path, *, is_new: bool = False) -> Iterator[Path]:
    """A path for a new file that takes the name ``path`` in one step, once it is complete.

    With ``is_new``, ``FileExistsError`` is raised instead of replacing a file. The new file is
    removed if an error is raised before it has its name.
    """
    unfinished = path.with_name(f"{path.name}.{secrets.token_hex(8)}.new")
    try:
        yield unfinished
        (name_new if is_new else rename)(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
