"""The file operations of saving, on a real folder."""

from __future__ import annotations

import errno
import os
import stat
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpprb_like import ReplayBuffer
from cpprb_like.checkpoint import _disk, load
from cpprb_like.checkpoint._disk import Disk, Output


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The bytes that the system was asked to put on the disk: from where, and how many."""
    found: list[tuple[int, int]] = []

    def start(file: int, begin: int, nbytes: int, what: int) -> None:
        assert what == 2  # begin, and do not wait
        found.append((begin, nbytes))

    monkeypatch.setattr(_disk, "STARTED_NBYTES", 1000)
    monkeypatch.setattr(_disk, "_of_linux", {"sync_file_range": start}.get)
    return found


def test_the_disk_begins_while_a_file_is_written(
    tmp_path: Path, started: list[tuple[int, int]]
) -> None:
    """Each byte is asked for once, in order; the rest is left to ``sync``."""
    output = Disk(tmp_path).create("x")
    for nbytes in (400, 700, 10, 2500, 999):
        output.write(bytes(nbytes))
    assert started == [(0, 1100), (1100, 2510)]
    output.sync()
    output.close()
    assert (tmp_path / "x").stat().st_size == 4609


@pytest.mark.parametrize("there", [True, False])
def test_files_are_the_same_with_and_without_it(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call of the C library itself, and a system that has none."""
    monkeypatch.setattr(_disk, "STARTED_NBYTES", 1000)
    if not there:
        monkeypatch.setattr(_disk, "_of_linux", lambda _: None)
    data: Any = np.random.default_rng(0).integers(0, 256, 5000, np.uint8)
    output = Output(tmp_path / "x")
    output.reserve(5000)
    for start in range(0, 5000, 700):
        output.write(data[start : start + 700].data)
    output.sync()
    output.close()
    assert (tmp_path / "x").read_bytes() == data.tobytes()


@pytest.mark.parametrize("codec", [None, "zlib"])
def test_room_is_reserved_for_what_will_be_written(
    codec: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For large files whose length is known; that the system refuses is no error."""
    asked: list[int] = []

    def refuse(file: int, mode: int, start: int, nbytes: int) -> int:
        assert (mode, start) == (0, 0)
        asked.append(nbytes)
        return -1

    monkeypatch.setattr(_disk, "STARTED_NBYTES", 10_000)
    monkeypatch.setattr(_disk, "_of_linux", {"fallocate": refuse}.get)
    rb = ReplayBuffer(3000, {"x": {"shape": 3}, "done": {"shape": (), "dtype": bool}})
    x = np.arange(9000).reshape(3000, 3)
    rb.add(x=x, done=np.zeros(3000))
    rb.save(tmp_path, codec=codec)
    sizes = [path.stat().st_size for path in tmp_path.glob("s1-*.npy")]
    assert asked == ([] if codec else sizes)
    assert (ReplayBuffer.load(tmp_path).get_all_transitions()["x"] == x).all()


def test_room_is_reserved_by_the_system(tmp_path: Path) -> None:
    """Where it has that: the file has its length, and what is written to it later."""
    output = Output(tmp_path / "x")
    output.reserve(_disk.STARTED_NBYTES)
    reserved = (tmp_path / "x").stat().st_size
    output.write(bytes([1]) * 5000)
    output.close()
    assert reserved in (0, _disk.STARTED_NBYTES)
    assert (tmp_path / "x").read_bytes()[:5001].rstrip(bytes(1)) == bytes([1]) * 5000


@pytest.mark.skipif(sys.platform == "win32", reason="there is no flock and no fsync of folders")
def test_a_file_system_that_refuses_locks_and_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save says what that may cost, and goes on; the state is whole. It was an ``OSError``."""
    import fcntl  # noqa: PLC0415 (not on Windows)

    sync = os.fsync

    def fsync(file: int) -> None:
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        sync(file)

    def flock(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(fcntl, "flock", flock)
    rb = ReplayBuffer(10, {"x": {"dtype": "i8"}})
    rb.add(x=np.arange(5))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rb.save(tmp_path / "saved")
        rb.add(x=7)
        rb.save(tmp_path / "saved")
    said = " ".join(str(one.message) for one in caught)
    assert "has no locks" in said
    assert "does not synchronise folders" in said
    found = load(tmp_path / "saved").get_all_transitions()["x"]
    assert found[:, 0].tolist() == [0, 1, 2, 3, 4, 7]
