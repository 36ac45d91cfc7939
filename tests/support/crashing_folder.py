"""A real folder of memory-mapped files, and what a crash of the machine would leave of it.

Bytes of a file are safe after the file was synchronised; a name is safe after its folder was, as
POSIX has it. Of what was done since, a crash leaves any part: each sector is as it was at any time
since, and each name is old, new, or gone. ``crashing_disk`` does the same for files that are
written and not mapped.
"""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

__all__ = ["CrashingFolder"]


class CrashingFolder:
    """Records what is done to a folder, from an empty or safe one on.

    Parameters
    ----------
    folder : Path
        What is recorded.
    beside : Path
        An empty folder on the same disk, which has a link to each file that there ever was.
    moment : callable
        Is called before each operation of the system that a crash may come before.
    """

    def __init__(
        self,
        folder: Path,
        beside: Path,
        monkeypatch: pytest.MonkeyPatch,
        moment: Callable[[], object],
    ) -> None:
        self.folder, self._beside, self._moment = folder, beside, moment
        self._versions: dict[int, list[bytes]] = {}  # of each file: the safe one, and later ones
        self._names: dict[str, list[int | None]] = {}  # the same, of what a name stands for
        self._is_inside = False
        self._link = os.link
        self.note()
        for name, inodes in self._names.items():
            self._names[name] = inodes[-1:]
        for inode, versions in self._versions.items():
            self._versions[inode] = versions[-1:]
        sync = os.fsync

        def fsync(file: int) -> None:
            self._before()
            if not self._synchronised(os.fstat(file)):
                sync(file)

        monkeypatch.setattr(os, "fsync", fsync)
        for owner, names in ((os, ["link"]), (Path, ["replace", "unlink", "rename"])):
            for name in names:
                monkeypatch.setattr(owner, name, self._watched(getattr(owner, name)))

    def _watched(self, function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            self._before()
            found = function(*arguments, **options)
            self.note()
            return found

        return call

    def _before(self) -> None:
        if not self._is_inside:
            self._is_inside = True
            try:
                self.note()
                self._moment()
            finally:
                self._is_inside = False

    def _synchronised(self, file: os.stat_result) -> bool:
        """Note what is safe now; whether it is of this folder."""
        if stat.S_ISDIR(file.st_mode):
            if not os.path.samestat(file, self.folder.stat()):
                return False
            self._names = {name: inodes[-1:] for name, inodes in self._names.items()}
        elif file.st_ino in self._versions:
            self._versions[file.st_ino] = self._versions[file.st_ino][-1:]
        else:
            return False
        return True

    def note(self) -> None:
        """Note the names and the bytes that there are now."""
        now = {path.name: path.stat().st_ino for path in self.folder.iterdir()}
        for name, inode in now.items():
            link = self._beside / str(inode)
            if not link.exists():
                self._link(self.folder / name, link)
                self._versions[inode] = [b""]
        for name in self._names.keys() | now.keys():
            inodes = self._names.setdefault(name, [None])
            if inodes[-1] != now.get(name):
                inodes.append(now.get(name))
        for inode, versions in self._versions.items():
            data = (self._beside / str(inode)).read_bytes()
            if data != versions[-1]:
                versions.append(data)

    def crash(self, to: Path, rng: random.Random, unit: int) -> None:
        """Write to an empty folder what a crash that comes now may leave."""
        share = rng.choice([0.0, rng.random(), rng.random(), 1.0])  # of what is as it is now
        for name, inodes in self._names.items():
            inode = inodes[-1] if rng.random() < share else rng.choice(inodes)
            if inode is not None:
                versions = self._versions[inode]
                chosen = [versions[-1] if rng.random() < share else rng.choice(versions)]
                if rng.random() < 0.5:
                    chosen = versions
                (to / name).write_bytes(_mixed(chosen, rng, unit, share))

    def forget(self) -> None:
        """Drop files that no name can stand for any more, to save time."""
        used = {inode for inodes in self._names.values() for inode in inodes}
        for inode in [inode for inode in self._versions if inode not in used]:
            del self._versions[inode]
        self._names = {name: inodes for name, inodes in self._names.items() if inodes != [None]}


def _mixed(versions: list[bytes], rng: random.Random, unit: int, share: float) -> bytes:
    """Bytes whose parts are those of any version, and zeros where a version is shorter."""
    length = len(versions[-1] if rng.random() < share else rng.choice(versions))
    found = bytearray(length)
    for start in range(0, length, unit):
        data = versions[-1] if rng.random() < share else rng.choice(versions)
        stop = min(start + unit, length)
        found[start:stop] = data[start:stop].ljust(stop - start, b"\0")
    return bytes(found)
