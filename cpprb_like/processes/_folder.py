"""A folder in shared memory: made, found by name, removed when its last process has ended.

Who is alive is known by file locks, which the system takes back from a process however it ends; so
there is no thread that shows signs of life, and a process that was stopped counts as alive. Each
process that has the folder open holds the lock ``life`` with others; whoever gets it alone knows
that nobody is left, and removes the folder. Not here: what is in it (``_shards``, ``_replay``).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import stat
import sys
import tempfile
import time
import weakref
from multiprocessing import parent_process, util
from pathlib import Path
from typing import Any

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = ["FileLock", "Folder", "memory_folder", "remove_stale"]

LIFE = "life"
DESCRIPTION = "replay.json"
MEMORY = Path("/dev/shm")  # of Linux: a file system that is memory
UNFINISHED = ".new"
YOUNG = 60.0  # seconds that an unfinished folder without a lock may be at work
NAME_NBYTES = 6


class FileLock:
    """The lock of a file, and what its owner says of itself.

    A child does not have its parent's locks: they are closed at a fork.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    def take(
        self, about: dict[str, Any] | None = None, *, shared: bool = False, create: bool = False
    ) -> bool:
        """Take it if nobody has it, and say so in the file; with ``shared``, beside others."""
        flags = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | (os.O_CREAT if create else 0)
        descriptor = os.open(self.path, flags, 0o600)
        try:
            if not _try_lock(descriptor, shared) or not self._is_file(descriptor):
                os.close(descriptor)
                return False
            if about is not None:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, json.dumps(about).encode(), 0)
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(descriptor)
            raise
        self._file = descriptor
        _open_locks[id(self)] = weakref.ref(self)
        return True

    def _is_file(self, descriptor: int) -> bool:
        """Whether the file still has its name; it has not if it was removed meanwhile."""
        try:
            return os.path.samestat(os.fstat(descriptor), self.path.stat())
        except FileNotFoundError:
            return False

    @property
    def is_held(self) -> bool:
        """Whether this object has the lock."""
        return self._file is not None

    def release(self) -> None:
        """Give it back."""
        descriptor, self._file = self._file, None
        _open_locks.pop(id(self), None)
        if descriptor is not None:
            os.close(descriptor)

    def __del__(self) -> None:
        self.release()


_open_locks: dict[int, weakref.ref[FileLock]] = {}


def is_locked(path: Path) -> bool:
    """Whether some process holds the lock of a file."""
    try:
        descriptor = os.open(path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        return False
    try:
        return not _try_lock(descriptor, shared=True)
    finally:
        os.close(descriptor)


def said_by(path: Path) -> dict[str, Any]:
    """What the last owner of a lock said of itself."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _try_lock(descriptor: int, shared: bool) -> bool:
    try:
        if sys.platform == "win32":
            os.lseek(descriptor, 1 << 30, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def memory_folder() -> Path:
    """This user's folder in shared memory, or in the temporary folder where there is none."""
    user = str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    base = MEMORY if MEMORY.is_dir() else Path(tempfile.gettempdir())
    folder = base / f"cpprb_like-{user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or (
        hasattr(os, "getuid") and (found.st_uid != os.getuid() or found.st_mode & 0o077)
    ):
        raise PermissionError(
            f"{folder} is not a folder of this user alone: another user may have made it; remove it"
        )
    return folder


class Folder:
    """A folder that is there as long as some process has it open."""

    def __init__(self, path: Path, life: FileLock) -> None:
        self.path = path
        self._life = life
        self._finalizer = weakref.finalize(self, _leave, path, life, os.getpid())
        _open_folders[str(path)] = self
        _at_exit(self)
        util.register_after_fork(self, _at_exit)  # a child forgets what its parent registered

    @classmethod
    def make(cls, name: str | None, description: dict[str, Any]) -> tuple[Folder, Path]:
        """A new folder, not yet under its name: ``publish`` gives it that."""
        base = memory_folder()
        remove_stale(base)
        wanted = secrets.token_hex(NAME_NBYTES) if name is None else name
        path = base / wanted
        if path.exists():
            raise FileExistsError(
                f"name: there is a replay of the name {name!r}; SharedReplay.attach opens it"
            )
        unfinished = base / f"{wanted}.{secrets.token_hex(4)}{UNFINISHED}"
        unfinished.mkdir(mode=0o700)
        life = FileLock(unfinished / LIFE)
        life.take(shared=True, create=True)
        (unfinished / DESCRIPTION).write_text(json.dumps(description), encoding="utf-8")
        return cls(unfinished, life), path

    def publish(self, path: Path) -> None:
        """Give a folder that is complete its name."""
        try:
            self.path.rename(path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            raise FileExistsError(f"{path.name}: another process has just made it") from None
        self._finalizer.detach()
        _open_folders.pop(str(self.path), None)
        self.path = path
        self._life.path = path / LIFE
        self._finalizer = weakref.finalize(self, _leave, path, self._life, os.getpid())
        _open_folders[str(path)] = self
        _at_exit(self)

    @classmethod
    def open(cls, name: str) -> Folder:
        """The folder of this name, which some process has open."""
        path = memory_folder() / name
        known = _open_folders.get(str(path))
        if known is not None and known.is_open:
            return known
        life = FileLock(path / LIFE)
        try:
            taken = life.take(shared=True)
        except FileNotFoundError:
            taken = False
        if not taken or not (path / DESCRIPTION).exists():
            life.release()
            raise FileNotFoundError(
                errno.ENOENT,
                "there is no replay of this name: was it closed, or have all its processes ended?",
                name,
            )
        return cls(path, life)

    @property
    def is_open(self) -> bool:
        """Whether this process keeps the folder."""
        return self._life.is_held

    def description(self) -> dict[str, Any]:
        """What was said of the replay when it was made."""
        found: dict[str, Any] = json.loads((self.path / DESCRIPTION).read_text(encoding="utf-8"))
        return found

    def close(self) -> None:
        """Keep the folder no longer; the last process that does so removes it."""
        _open_folders.pop(str(self.path), None)
        self._finalizer()

    def discard(self) -> None:
        """Remove a folder that was never published."""
        self.close()


_open_folders: weakref.WeakValueDictionary[str, Folder] = weakref.WeakValueDictionary()


def _leave(path: Path, life: FileLock, process: int) -> None:
    """Let go of a folder, and remove it if nobody else has it."""
    if os.getpid() == process:
        life.release()
        _remove_if_left(path)


def _remove_if_left(path: Path) -> None:
    """Remove a folder whose lock nobody holds."""
    lock = FileLock(path / LIFE)
    try:
        if not lock.take():
            return
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    try:
        shutil.rmtree(path, ignore_errors=True)
    finally:
        lock.release()


def remove_stale(base: Path) -> None:
    """Remove the folders whose processes have all ended without doing so: they were killed."""
    for path in base.iterdir():
        if not path.is_dir():
            continue
        if (path / LIFE).exists():
            _remove_if_left(path)
        elif time.time() - path.stat().st_mtime > YOUNG:
            shutil.rmtree(path, ignore_errors=True)


def _at_exit(folder: Folder) -> None:
    """Have a folder closed by multiprocessing too, whose children do not end as others do."""
    if parent_process() is not None:
        util.Finalize(folder, folder._finalizer, exitpriority=0)


def _in_child() -> None:
    """After a fork: give up the parent's locks, and hold the folders for this process."""
    folders = list(_open_folders.values())
    for folder in folders:
        old, folder._life = folder._life, FileLock(folder.path / LIFE)
        folder._life.take(shared=True)
        old.release()
        folder._finalizer.detach()
        folder._finalizer = weakref.finalize(folder, _leave, folder.path, folder._life, os.getpid())
    for ref in list(_open_locks.values()):
        lock = ref()
        if lock is not None and id(lock) not in {id(folder._life) for folder in folders}:
            lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
