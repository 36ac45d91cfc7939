"""A folder in shared memory: created, found by name, and removed at the end of its last process.

File locks show which processes are alive, as the system releases the locks of a process at its end.
So no thread has to send signs of life, and a stopped process counts as alive. Each process that has
the folder open holds the lock ``life`` together with others. The last process gets this lock alone,
and removes the folder. Not here: the content of the folder (``_shards``, ``_replay``).
"""

from __future__ import annotations

import contextlib
import errno
import functools
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
from collections.abc import Callable, Iterator
from functools import partial, wraps
from multiprocessing import util
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from cpprb_like._files.file_maps import Room
from cpprb_like._machine import reserved
from cpprb_like._machine.file_systems import rename, replacing, try_lock, unlock
from cpprb_like._machine.forks import INNERMOST, tell, watch
from cpprb_like._machine.opening import read_bytes
from cpprb_like._machine.waiting import LOOK_PATIENCE, wait_until

if TYPE_CHECKING:
    from typing_extensions import Self

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

LIFE = "life"
DESCRIPTION = "replay.json"
KEPT = "kept"  # file whose modification time says until when no process removes the folder
IDENTITY = "identity"  # key in it, with an identity that no other replay has
MEMORY = Path("/dev/shm")  # a file system in memory, on Linux
ELSEWHERE = "CPPRB_LIKE_SHARED_MEMORY"  # environment variable: another folder
MENDER = "mender"  # lock in a shard, held by a process that repairs the shard of a dead writer
CLOSED = "the replay was closed in this process"
GONE_FOLDER = "the replay was closed, and its memory is gone"
GONE_MESSAGE = f"{GONE_FOLDER}: rows find no more room"
GONE = ".gone"
YOUNG = 1.0  # age in seconds from which a folder without a lock is removed
NAME_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
NAME_NBYTES = 6
LOCK_NBYTES = 4096  # memory of a small file
RECORD_NBYTES = 256  # length of the record of a lock's owner, padded with spaces
TRIES = 100
REMOVED = "other processes remove what was just made"
AFTER_CHILDREN = -100  # priority of a finalizer that runs after the end of child processes


class Closing:
    """Base class of objects that are closed at the end of a ``with`` block."""

    def close(self) -> None:
        """Release all that the object holds."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@contextlib.contextmanager
def unless_gone(path: Path) -> Iterator[None]:
    """Raise ``RuntimeError`` in place of the error of a file that went with the folder ``path``.

    Another thread may close the replay while a call waits.
    """
    try:
        yield
    except FileNotFoundError:
        if path.exists():
            raise
        raise RuntimeError(GONE_FOLDER) from None


def while_open(method: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """A method of an object with a ``_folder``, which raises ``RuntimeError`` once that is closed.

    Also if the folder is closed during the call.
    """

    @wraps(method)
    def call(*arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        folder: Folder = cast("Any", arguments[0])._folder
        folder.check_open()
        with unless_gone(folder.path):
            return method(*arguments, **options)

    return call


class FileLock:
    """The lock of a file, and a record of its owner.

    A forked child does not hold the locks of its parent. An ``inherited`` lock is shared: the child
    takes the lock itself before it closes the file of the parent.
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
        """Take the lock if no process holds it, or with ``shared`` beside others.

        ``about`` is the record of the owner, written to the file. Tries are repeated for
        ``patience`` seconds, as a test of a lock holds it for a moment.
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
                    # One write over the whole record, so that a kill leaves no partial record.
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
        """Whether an open file is the file at the path; false after a removal."""
        try:
            return os.path.samestat(os.fstat(descriptor), self.path.stat())
        except FileNotFoundError:
            return False

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock."""
        return self._file is not None and not self._file.closed

    def release(self) -> None:
        """Release the lock at once, even if a child that was just forked has the file open.

        Can be called again after an interrupt. In a forked child the parent's lock stays.
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
        """Close a file when this object is deleted, which releases the lock.

        In ``__del__`` an exception of a signal handler would be lost. Both callbacks here are one C
        call.
        """
        key = id(self)
        closes: Any = file.__exit__  # with any arguments, such as the reference
        _closing[key] = weakref.ref(self, closes), weakref.ref(self, partial(_closing.pop, key))


_closing: dict[int, tuple[weakref.ref[FileLock], weakref.ref[FileLock]]] = {}


# Without this lock, a fork during ``take`` would give the child a lock that no object knows yet.
_no_fork = threading.RLock()
watch(_no_fork, INNERMOST)


def _create(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT, 0o666)


def is_locked(path: Path) -> bool:
    """Whether any process holds the lock of a file."""
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
    """The record of the last owner of a lock; empty without one."""
    try:
        found = json.loads(read_bytes(path))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def is_owned(path: Path) -> bool:
    """Whether a writer holds this lock, and not a process that repairs the shard.

    A repair holds the lock ``mender`` too, longer than this lock. The second test of this lock
    excludes a repair that has just ended.
    """
    return is_locked(path) and not is_locked(path.with_name(MENDER)) and is_locked(path)


def memory_path() -> Path:
    """The path of ``memory_folder()``, which may not exist."""
    user = str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    return _base() / f"cpprb_like-{user}"


def memory_folder() -> Path:
    """This user's folder in shared memory, or in the temporary folder where there is none."""
    folder, found = memory_path(), None
    for _ in range(TRIES):  # the last process to leave may remove it meanwhile
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
        folder = _absolute(chosen)
        if not folder.is_dir():
            raise FileNotFoundError(errno.ENOENT, f"{ELSEWHERE} names no folder", str(folder))
        return folder
    return MEMORY if MEMORY.is_dir() else Path(tempfile.gettempdir())


@functools.cache
def _absolute(folder: str) -> Path:
    """The path of a folder at the first use in this process, the same after ``os.chdir``."""
    return Path(folder).absolute()


def room_for(nbytes: int, folder: Path, what: str, more: str = "", then: str = "") -> Room:
    """A ``Room`` whose error names the needed memory and how to enlarge shared memory."""
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
    """Create a file with memory for ``nbytes``; ``MemoryError`` if shared memory is full."""
    with room_for(nbytes, path.parent, what, more), path.open("xb") as file:
        reserved.reserve_file(file.fileno(), nbytes)
        reserved.use_file(file.fileno(), 0, nbytes)


def check_name(name: object) -> str:
    """The name of a replay; raises for names that are unfit for its folder."""
    if not isinstance(name, str):
        raise TypeError(f"name: expected a string, got {type(name).__name__}")
    if not name or not NAME_LETTERS.issuperset(name):
        raise ValueError(f"name: expected letters, digits, '-' and '_', got {name!r}")
    return name


class Folder:
    """A folder that exists as long as any process has it open."""

    def __init__(self, path: Path, life: FileLock) -> None:
        self.path = path
        self._life = life
        self._finalizer: util.Finalize | None = None
        self._keep()
        tell(self._in_child)
        util.register_after_fork(self, Folder._in_child)  # children drop finalizers

    def _keep(self) -> None:
        """Keep the folder open in this process, at the latest until its end.

        The finalizer is of multiprocessing, whose children do not run ``atexit``. The finalizer
        runs after the end of the children of this process, as the last process removes the folder.
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

        ``FileExistsError`` if a replay has this name.
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
        """Make the complete folder visible to other processes."""
        text = json.dumps(description | {IDENTITY: secrets.token_hex(16)})
        with replacing(self.path / DESCRIPTION) as unfinished:
            unfinished.write_text(text, encoding="utf-8")

    @classmethod
    def open(
        cls,
        name: str,
        base: Path | None = None,
        *,
        left: bool = False,
        identity: str | None = None,
    ) -> Folder:
        """The open folder with this name, in ``base`` or in ``memory_folder()``.

        With ``left`` also a folder whose processes were all killed, unless it was removed since.
        With an ``identity`` only the folder of this replay, and not of a later one of its name.
        """
        path = (memory_folder() if base is None else base) / check_name(name)
        known = _open_folders.get(str(path))
        if known is not None and known.is_open:
            known.check_identity(identity)
            return known
        if not left:
            remove_left(path)
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
        folder = cls(path, life)
        try:
            folder.check_identity(identity)
        except BaseException:
            folder.close()
            raise
        return folder

    @property
    def is_open(self) -> bool:
        """Whether this process has the folder open."""
        return self._life.is_held

    def check_open(self) -> None:
        """Raise ``RuntimeError`` unless this process has the folder open."""
        if not self.is_open:
            raise RuntimeError(CLOSED)

    def description(self) -> dict[str, Any]:
        """The description of the replay, as published."""
        found: dict[str, Any] = json.loads(read_bytes(self.path / DESCRIPTION))
        return found

    @property
    def identity(self) -> str:
        """The identity of the replay, which no other replay has."""
        return str(self.description()[IDENTITY])

    def check_identity(self, expected: str | None) -> None:
        """Raise ``FileNotFoundError`` if this is the folder of another replay than expected."""
        if expected is not None and self.identity != expected:
            raise FileNotFoundError(
                errno.ENOENT,
                "the replay that was handed on is gone, and another one has its name",
                self.path.name,
            )

    def keep_until(self, moment: float) -> None:
        """Have no process remove the folder before a time, by ``time.time``; 0 ends that.

        For a process that is started again after a kill, and attaches to its memory.
        """
        kept = self.path / KEPT
        if not moment:
            kept.unlink(missing_ok=True)
            return
        kept.touch()
        os.utime(kept, (moment, moment))

    def close(self) -> None:
        """Close the folder; the last process that closes it removes it.

        Can be called again after an interrupt.
        """
        _open_folders.pop(str(self.path), None)
        _leave(self.path, self._life)
        if self._finalizer is not None:
            self._finalizer.cancel()


_open_folders: weakref.WeakValueDictionary[str, Folder] = weakref.WeakValueDictionary()


_left: dict[tuple[int, Path], util.Finalize] = {}  # by process and folder, after ``_leave``


def _leave(path: Path, life: FileLock) -> None:
    """Release the lock of a folder, and remove the folder if no other process has it open.

    Otherwise the end of this process tries again: multiprocessing kills its daemons before, which
    cannot remove the folder themselves.
    """
    life.release()
    remove_left(path)
    for gone in [known for known in _left.copy() if not known[1].exists()]:
        _left.pop(gone).cancel()
    key = os.getpid(), path
    if path.exists() and key not in _left:
        _left[key] = util.Finalize(None, remove_left, (path,), exitpriority=AFTER_CHILDREN)


def remove_left(path: Path, *, is_awaited: bool = True) -> None:
    """Remove a folder whose lock no process holds, unless it is kept for a process.

    One try is enough: any process that holds the lock alone removes the folder. If the process is
    not ``is_awaited`` any more, a kept folder is removed, too.
    """
    lock = FileLock(path / LIFE)
    try:
        if not lock.take(patience=0.0):
            return
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    try:
        if is_awaited and kept_until(path) > time.time():
            return
        gone = path.with_name(f"{path.name}.{secrets.token_hex(4)}{GONE}")
        with contextlib.suppress(OSError):  # a renaming frees the name at once
            rename(path, gone)
            path = gone
        shutil.rmtree(path, ignore_errors=True)
    finally:
        lock.release()
    with contextlib.suppress(OSError):  # other folders are in it
        path.parent.rmdir()


def kept_until(path: Path) -> float:
    """The time until which a folder is kept for a process; 0 without such a time."""
    try:
        return (path / KEPT).stat().st_mtime
    except OSError:
        return 0.0


def is_any_awaited(base: Path) -> bool:
    """Whether a folder is kept for a process, and no process has the folder open."""
    for path in base.glob("*"):
        lock = FileLock(path / LIFE)
        try:
            if kept_until(path) > time.time() and lock.take(patience=0.0):
                return True
        except FileNotFoundError:  # it has just been removed
            pass
        finally:
            lock.release()
    return False


def remove_stale(base: Path) -> None:
    """Remove folders whose processes were all killed."""
    try:
        there = list(base.iterdir())
    except FileNotFoundError:
        return
    for path in there:
        if (path / LIFE).exists():
            remove_left(path)
            continue
        with contextlib.suppress(FileNotFoundError):
            if path.suffix == GONE or time.time() - path.stat().st_mtime > YOUNG:
                shutil.rmtree(path, ignore_errors=True)
