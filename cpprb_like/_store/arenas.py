"""Allocates the arena of a buffer: one array of zero bytes, on the heap or in a mapped file.

Nothing else in the package knows where the bytes are.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from cpprb_like._c import machine_memory
from cpprb_like._store.schema import Layout

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = ["FileMode", "allocate", "allocate_floats", "map_file", "open_arena"]

Arena = NDArray[np.uint8]
FileMode = Literal["x", "w", "r+"]

HUGE_PAGE_NBYTES = 1 << 21
CACHE_LINE = 64
LOCKED_BYTE = 1 << 62  # where Windows locks a file: no buffer has a byte there

# The large arenas of this process: the system promises memory that nobody has written to again and
# again, so what they have yet to fill counts as taken.
_arenas: list[tuple[weakref.ref[Arena], Layout]] = []


def open_arena(
    layout: Layout, mmap_prefix: str | Path | None = None, mode: FileMode = "x"
) -> Arena:
    """Memory for a layout: on the heap, or in the file ``<mmap_prefix>.dat``.

    Raises
    ------
    MemoryError
        The machine does not have enough free memory; the message lists the bytes of each field.
    ValueError, OSError
        As ``map_file``; or a field holds Python objects, which no file can.
    """
    try:
        if mmap_prefix is None:
            return _allocate_for(layout)
        return _map_for(layout, Path(f"{mmap_prefix}.dat"), mode)
    except MemoryError as error:
        raise MemoryError(f"{error}\n{layout.table()}") from None


def _allocate_for(layout: Layout) -> Arena:
    what = f"a buffer of {layout.capacity} steps"
    untouched = sum(share for share in map(_untouched, _arenas) if share)
    if untouched:
        beside = machine_memory.format_nbytes(untouched)
        what += f" (beside {beside} that other buffers have yet to fill)"
    machine_memory.require(layout.total_nbytes + untouched, what)
    arena = allocate(layout.nbytes)
    if layout.nbytes >= HUGE_PAGE_NBYTES:
        _arenas[:] = [entry for entry in _arenas if entry[0]() is not None]
        _arenas.append((weakref.ref(arena), layout))
    return arena


def _untouched(entry: tuple[weakref.ref[Arena], Layout]) -> int:
    """Bytes of a living arena that the system has yet to find memory for."""
    arena, layout = entry[0](), entry[1]
    if arena is None:
        return 0
    written = int(layout.state(arena)[0])
    return layout.nbytes * max(0, layout.capacity - written) // layout.capacity


def _map_for(layout: Layout, path: Path, mode: FileMode) -> Arena:
    boxed = [field.name for field in layout.schema.fields if field.dtype.hasobject]
    if boxed:
        raise ValueError(f"mmap_prefix: fields {boxed} hold Python objects, which no file can")
    return map_file(path, layout.nbytes, mode, layout.identity())


def allocate(nbytes: int) -> Arena:
    """Zero bytes on the heap, with huge pages where the system has them.

    They save most misses of the address cache: sampling small rows at random takes about a
    fifth less time, wide rows about a third.
    """
    if nbytes < HUGE_PAGE_NBYTES or not hasattr(mmap, "MAP_PRIVATE"):
        return np.zeros(nbytes, np.uint8)
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)


def allocate_floats(n: int) -> NDArray[np.float64]:
    """``n`` zeros of float64, aligned to cache lines."""
    spare = allocate(8 * n + CACHE_LINE)
    start = -spare.ctypes.data % CACHE_LINE
    return spare[start : start + 8 * n].view(np.float64)


def map_file(path: Path, nbytes: int, mode: FileMode, identity: bytes) -> Arena:
    """The bytes of a file, which no other buffer of any process can map as long as these live.

    Parameters
    ----------
    path : Path
        The file.
    nbytes : int
        Its size. A new file's disk space is reserved at once where the system can.
    mode : {"x", "w", "r+"}
        Create it and fail if it exists, create it anew, or open the one that is there.
    identity : bytes
        First bytes of the file: written to a new one, required of an existing one.

    Raises
    ------
    FileExistsError, FileNotFoundError
        Mode ``"x"`` and the file exists, mode ``"r+"`` and it does not.
    ValueError
        The file was written by a buffer of other fields, size or number of environments.
    BlockingIOError
        Another buffer has the file open, in this process or another.
    """
    if mode not in ("x", "w", "r+"):
        raise ValueError(f"mmap_mode: expected 'x', 'w' or 'r+', got {mode!r}")
    if mode == "r+":
        with path.open("r+b") as file:
            _lock(file, path)
            if file.read(len(identity)) != identity or path.stat().st_size != nbytes:
                raise ValueError(f"{path} was written by a buffer of other fields, size or n_envs")
            return np.frombuffer(mmap.mmap(file.fileno(), nbytes), np.uint8)
    # A new file is complete, and locked, before it has its name.
    if mode == "x" and path.exists():
        raise FileExistsError(f"{path} exists; mmap_mode='r+' opens it, 'w' replaces it")
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.new")
    with _locked(path):
        try:
            with unfinished.open("xb+") as file:
                _lock(file, unfinished)
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, nbytes)
                file.truncate(nbytes)
                arena = np.frombuffer(mmap.mmap(file.fileno(), nbytes), np.uint8)
            arena[: len(identity)] = np.frombuffer(identity, np.uint8)
            unfinished.replace(path)
        except OverflowError:
            raise MemoryError(f"no file can have {nbytes} bytes") from None
        finally:
            unfinished.unlink(missing_ok=True)
    return arena


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of the file of this name, if it exists; ``BlockingIOError`` if it is in use."""
    try:
        old = path.open("r+b")
    except FileNotFoundError:
        yield
        return
    with old:
        _lock(old, path)
        yield


def _lock(file: BinaryIO, path: Path) -> None:
    """Lock an open file for as long as it, or a memory map of it, lives: also beyond a fork.

    The system takes the lock back when the last of them is gone, however the process ended.
    """
    try:
        if sys.platform == "win32":
            place = file.tell()
            file.seek(LOCKED_BYTE)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            file.seek(place)
        else:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                raise BlockingIOError  # replaced between opening and locking
    except (BlockingIOError, PermissionError):
        raise BlockingIOError(
            f"{path}: another buffer has this file open, in this process or another; "
            "two that write to one file would tear each other's rows"
        ) from None
