"""Opens files that exist: regular files only.

An untrusted folder may have FIFOs, devices and sockets, or links to them, under any name. Opening a
FIFO may block for ever, and ``/dev/zero`` has no end. New files need no check: mode "x" opens none
that exists.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, cast

__all__ = ["expect_regular", "open_regular", "read_bytes"]

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: Path, flags: int = os.O_RDONLY) -> BinaryIO:
    """Open a regular file; ``FileNotFoundError`` for anything else, in place of waiting for it.

    ``flags`` are those of ``os.open``. The file is binary; with ``os.O_RDWR`` it can be written.
    """
    expect_regular(path)  # before opening, which may have an effect
    flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)

    def opener(name: str, _: int) -> int:
        """The descriptor of the file object, which closes it."""
        descriptor = os.open(name, flags, 0o666)
        try:
            _check(path, os.fstat(descriptor))
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    mode = "rb" if flags & os.O_ACCMODE == os.O_RDONLY else "r+b"
    return cast(BinaryIO, open(path, mode, opener=opener))


def read_bytes(path: Path) -> bytes:
    """The content of a regular file."""
    with open_regular(path) as file:
        return file.read()


def expect_regular(path: Path) -> None:
    """Raise ``FileNotFoundError`` for what exists and is no regular file.

    For libraries that open a path themselves.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    _check(path, found)


def _check(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise FileNotFoundError(errno.ENOENT, f"no regular file, but {kind}", str(path))
