"""A folder in shared memory: made, found by name, removed when its last process has ended.

Who is alive is known by file locks, which the system takes back from a process however it ends; so
there is no thread that shows signs of life, and a process that was stopped counts as alive. Each
process that has the folder open holds the lock ``life`` with others; the process that gets it alone
is the last one, and removes the folder. Not here: what is in it (``_shards``, ``_replay``).
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import secrets
import shutil
import stat
import tempfile
import threading
import time
import weakref
from functools import partial
from multiprocessing import util
from pathlib import Path
from typing import Any

from cpprb_like._files.file_maps import Room, reserve
from cpprb_like._machine.file_systems import rename, replacing, try_lock, unlock
from cpprb_like._machine.forks import INNERMOST, tell, watch
from cpprb_like._machine.waiting import LOOK_PATIENCE, wait_until

__all__ = ["FileLock", "Folder", "memory_folder", "remove_stale"]

LIFE = "life"
DESCRIPTION = "replay.json"
IDENTITY = "identity"  # in it: no other replay has the same
MEMORY = Path("/dev/shm")  # of Linux: a file system that is memory
ELSEWHERE = "CPPRB_LIKE_SHARED_MEMORY"  # environment variable: a folder to use instead
MENDER = "mender"  # lock beside that of a writer: of a process that sets right what a dead one left
CLOSED = "the replay was closed in this process"
GONE_MESSAGE = "the replay was closed, and its memory is gone: rows find no more room"
GONE = ".gone"
YOUNG = 1.0  # seconds that a folder may have no lock yet: it is made again if that takes longer
NAME_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
NAME_NBYTES = 6
RECORD_NBYTES = 256  # what the owner of a lock says of itself, with spaces behind it
TRIES = 100
REMOVED = "other processes remove what was just made"
AFTER_CHILDREN = -100  # when a process ends: multiprocessing has ended its children before


class FileLock:
    """The lock of a file, and what its owner says of itself.

    A forked child has no lock of its parent. Of an ``inherited`` lock, which is shared, it takes a
    hold of its own before that of the parent is given up in the child.
    """

    _file: io.FileIO | None = None

    def __init__(self, path: Path, *, inherited: bool = False) -> None:
        self.path = path
        self._inherited = inherited
        self._process = os.getpid()

    def take(
        self,
        about: dict[str, Any] | None = None,
        *,
        shared: bool = False,
        create: bool = False,
        patience: float = LOOK_PATIENCE,
    ) -> bool:
        """Take it if no process has it, and say so in the file; with ``shared``, beside others.

        For ``patience`` seconds it tries again, as others hold a lock for a moment to look at it.
        """

        def look() -> bool:
            with _no_fork:
                return self._try_once(about, shared, create)

        return wait_until(look, patience)

    def _try_once(self, about: dict[str, Any] | None, shared: bool, create: bool) -> bool:
        file = None
        try:
            file = io.FileIO(self.path, "r+", opener=_create if create else None)
            if try_lock(file.fileno(), shared=shared) and self._is_file(file.fileno()):
                if about is not None:
                    # One write, over all of the last record: no kill leaves a part of either.
                    file.write(json.dumps(about).ljust(RECORD_NBYTES).encode())
                tell(self._in_child)
                self._process = os.getpid()
                self._close_when_dropped(file)
                self._file = file
            return self._file is file
        finally:
            if file is not None and self._file is not file:
                file.close()

    def _is_file(self, descriptor: int) -> bool:
        """Whether the file still has its name; false if it was removed."""
        try:
            return os.path.samestat(os.fstat(descriptor), self.path.stat())
        except FileNotFoundError:
            return False

    @property
    def is_held(self) -> bool:
        """Whether this object has the lock."""
        return self._file is not None and not self._file.closed

    def release(self) -> None:
        """Give it back; at once, although a child that was just forked still has the file open.

        After an interrupt it can be called again. In a forked child the parent's lock stays.
        """
        file = self._file
        if file is not None and not file.closed:
            if self._process == os.getpid():
                unlock(file.fileno())
            file.close()
        self._file = None

    def _in_child(self) -> None:
        parents, self._file = self._file, None
        if parents is not None and not parents.closed:
            if self._inherited:
                with contextlib.suppress(OSError):
                    self._try_once(None, shared=True, create=False)
            parents.close()

    def _close_when_dropped(self, file: io.FileIO) -> None:
        """Close a file when this object is dropped, which releases the lock.

        There is no ``__del__``: an exception of a signal handler is lost in a Python function that
        is called there. Both callbacks are one call of C.
        """
        key = id(self)
        closes: Any = file.__exit__  # with any arguments, such as the reference
        _closing[key] = weakref.ref(self, closes), weakref.ref(self, partial(_closing.pop, key))


_closing: dict[int, tuple[weakref.ref[FileLock], weakref.ref[FileLock]]] = {}


# A child would keep a lock that was taken while its parent forked, and that is in no object yet.
_no_fork = threading.RLock()
watch(_no_fork, INNERMOST)


def _create(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT, 0o666)


def is_locked(path: Path) -> bool:
    """Whether some process holds the lock of a file."""
    with _no_fork:
        try:
            descriptor = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            return not try_lock(descriptor, shared=True)
        finally:
            os.close(descriptor)


def said_by(path: Path) -> dict[str, Any]:
    """What the last owner of a lock said of itself."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def is_owned(path: Path) -> bool:
    """Whether a process has the lock of a writer, and does not only set the shard right.

    Who sets it right has the other lock, too, from before to after. A second look at the first one
    leaves out who has just done so.
    """
    return is_locked(path) and not is_locked(path.with_name(MENDER)) and is_locked(path)


def memory_folder() -> Path:
    """This user's folder in shared memory, or in the temporary folder where there is none."""
    user = str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    folder, found = _base() / f"cpprb_like-{user}", None
    for _ in range(TRIES):  # the process that leaves last may remove it at this moment
        with contextlib.suppress(FileExistsError):
            folder.mkdir(0o700)
        with contextlib.suppress(FileNotFoundError):
            found = folder.lstat()
            break
    if found is None:
        raise OSError(f"{folder}: {REMOVED}")
    if not stat.S_ISDIR(found.st_mode) or (
        hasattr(os, "getuid") and (found.st_uid != os.getuid() or found.st_mode & 0o077)
    ):
        raise PermissionError(
            f"{folder} is not a folder of this user alone: another user may have made it; remove it"
        )
    return folder


def _base() -> Path:
    chosen = os.environ.get(ELSEWHERE)
    if chosen:
        if not Path(chosen).is_dir():
            raise FileNotFoundError(errno.ENOENT, f"{ELSEWHERE} names no folder", chosen)
        return Path(chosen)
    return MEMORY if MEMORY.is_dir() else Path(tempfile.gettempdir())


def room_for(nbytes: int, folder: Path, what: str, more: str = "", then: str = "") -> Room:
    """Say what to do where shared memory is full."""
    where = MEMORY if MEMORY in folder.parents else folder
    each = f" {more}" if more else ""
    return Room(
        lambda: (
            f"{what} needs {nbytes:,} bytes of shared memory{each}, and on {where} there are "
            f"{shutil.disk_usage(folder).free:,} left: enlarge it (mount -o remount,size=8G "
            f"/dev/shm; in a container docker run --shm-size=8g), or make capacity smaller{then}"
        )
    )


def reserve_file(path: Path, nbytes: int, what: str, more: str = "") -> None:
    """Make a file with memory for so many bytes; ``MemoryError`` if there is no room."""
    with room_for(nbytes, path.parent, what, more), path.open("xb") as file:
        reserve(file, nbytes)


def check_name(name: object) -> str:
    """Raise unless this can be the name of a replay, which is that of a folder."""
    if not isinstance(name, str):
        raise TypeError(f"name: expected a string, got {type(name).__name__}")
    if not name or not NAME_LETTERS.issuperset(name):
        raise ValueError(f"name: expected letters, digits, '-' and '_', got {name!r}")
    return name


class Folder:
    """A folder that is there as long as some process has it open."""

    def __init__(self, path: Path, life: FileLock) -> None:
        self.path = path
        self._life = life
        self._finalizer: util.Finalize | None = None
        self._keep()
        tell(self._in_child)
        util.register_after_fork(self, Folder._in_child)  # its children drop finalizers at first

    def _keep(self) -> None:
        """Hold the folder of this path for this process, until it ends at the latest.

        The finalizer is one of multiprocessing and not of ``atexit``, which its children do not
        run. It comes after the end of the children of this process, as the last process removes
        the folder.
        """
        if self._finalizer is not None:
            self._finalizer.cancel()
        self._finalizer = util.Finalize(
            self, _leave, (self.path, self._life), exitpriority=AFTER_CHILDREN
        )
        _open_folders[str(self.path)] = self

    def _in_child(self) -> None:
        if self.is_open:
            self._keep()

    @classmethod
    def make(cls, name: str | None) -> Folder:
        """A new folder, which no other process opens before ``publish``.

        ``FileExistsError`` if there is a replay of this name.
        """
        wanted = secrets.token_hex(NAME_NBYTES) if name is None else check_name(name)
        for _ in range(TRIES):
            base = memory_folder()
            remove_stale(base)
            life = FileLock(base / wanted / LIFE, inherited=True)
            try:
                life.path.parent.mkdir(mode=0o700)
            except FileExistsError:
                raise FileExistsError(
                    f"name: there is a replay of the name {wanted!r}; SharedReplay.attach opens it"
                ) from None
            except FileNotFoundError:
                continue
            with contextlib.suppress(FileNotFoundError):  # another process has just removed it
                if life.take(shared=True, create=True):
                    return cls(life.path.parent, life)
        raise OSError(f"{base}: {REMOVED}")

    def publish(self, description: dict[str, Any]) -> None:
        """Let other processes open the folder, whose files are complete."""
        text = json.dumps(description | {IDENTITY: secrets.token_hex(16)})
        with replacing(self.path / DESCRIPTION) as unfinished:
            unfinished.write_text(text, encoding="utf-8")

    @classmethod
    def open(cls, name: str, base: Path | None = None, *, left: bool = False) -> Folder:
        """The folder of this name, which some process has open; in this base, if one is given.

        With ``left`` also a folder whose processes were all killed, unless it was removed since.
        """
        path = (memory_folder() if base is None else base) / check_name(name)
        known = _open_folders.get(str(path))
        if known is not None and known.is_open:
            return known
        if not left:
            _remove_if_left(path)
        life = FileLock(path / LIFE, inherited=True)
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

    def check_open(self) -> None:
        """Raise ``RuntimeError`` unless this process keeps the folder."""
        if not self.is_open:
            raise RuntimeError(CLOSED)

    def description(self) -> dict[str, Any]:
        """What was said of the replay when it was made."""
        found: dict[str, Any] = json.loads((self.path / DESCRIPTION).read_text(encoding="utf-8"))
        return found

    def close(self) -> None:
        """Let go of the folder; the last process that does so removes it.

        After an interrupt it can be called again.
        """
        _open_folders.pop(str(self.path), None)
        _leave(self.path, self._life)
        if self._finalizer is not None:
            self._finalizer.cancel()


_open_folders: weakref.WeakValueDictionary[str, Folder] = weakref.WeakValueDictionary()


_left: dict[tuple[int, Path], util.Finalize] = {}  # by the process that has left the folder


def _leave(path: Path, life: FileLock) -> None:
    """Let go of a folder, and remove it if no other process has it.

    If one has, look again when this process ends: multiprocessing ends daemons before, without a
    chance to remove the folder themselves.
    """
    life.release()
    _remove_if_left(path)
    for gone in [known for known in _left.copy() if not known[1].exists()]:
        _left.pop(gone).cancel()
    key = os.getpid(), path
    if path.exists() and key not in _left:
        _left[key] = util.Finalize(None, _remove_if_left, (path,), exitpriority=AFTER_CHILDREN)


def _remove_if_left(path: Path) -> None:
    """Remove a folder whose lock no process holds.

    It tries once: a process that holds the lock alone, even for a moment, removes the folder.
    """
    lock = FileLock(path / LIFE)
    try:
        if not lock.take(patience=0.0):
            return
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    try:
        gone = path.with_name(f"{path.name}.{secrets.token_hex(4)}{GONE}")
        with contextlib.suppress(OSError):  # so that its name is free at once
            rename(path, gone)
            path = gone
        shutil.rmtree(path, ignore_errors=True)
    finally:
        lock.release()
    with contextlib.suppress(OSError):  # there are others in it
        path.parent.rmdir()


def remove_stale(base: Path) -> None:
    """Remove the folders whose processes have all ended without doing so: they were killed."""
    try:
        there = list(base.iterdir())
    except FileNotFoundError:
        return
    for path in there:
        if (path / LIFE).exists():
            _remove_if_left(path)
            continue
        with contextlib.suppress(FileNotFoundError):
            if path.suffix == GONE or time.time() - path.stat().st_mtime > YOUNG:
                shutil.rmtree(path, ignore_errors=True)
