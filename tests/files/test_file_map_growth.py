"""What chained fields keep aside takes more of a file: a kill on the way leaves a sound file."""

from __future__ import annotations

import errno
import mmap
import os
import random
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dying_processes import Child, ended
from file_map_cases import room_for
from interruptions import killed_everywhere
from scale import KILLS

from cpprb_like import ReplayBuffer
from cpprb_like._files import file_maps
from cpprb_like._machine import file_systems

forking = pytest.mark.skipif(sys.platform == "win32", reason="there is no fork and no SIGKILL")

# Of this file; the long form has more.
files = file_maps.Files
CAPACITY = 2000
FIELDS: dict[str, Any] = {
    "x": {"shape": 5, "dtype": "i8"},
    "y": {"shape": 3, "dtype": "i8"},
}
OPTIONS: dict[str, Any] = {"next_of": ["x", "y"], "seed": 0}


def opened(folder: Path, mode: Any) -> ReplayBuffer:
    """The buffer of a folder."""
    return ReplayBuffer(CAPACITY, FIELDS, mmap_prefix=folder / "a", mmap_mode=mode, **OPTIONS)


def add(rb: ReplayBuffer, first: int, n: int) -> None:
    """Add numbered steps, none of which follows the one before: next values are stored apart."""
    for t in range(first, first + n):
        x, y = np.full(5, t), np.full(3, t)
        rb.add(x=x, next_x=-x - 1, y=y, next_y=-y - 2)


def numbers(rb: ReplayBuffer) -> list[int]:
    """The numbers of the rows, each of which is whole."""
    rb.check()
    batch = rb.get_all_transitions()
    t = batch["x"][:, :1]
    for name, values in {"x": t, "next_x": -t - 1, "y": t, "next_y": -t - 2}.items():
        assert (batch[name] == values).all(), name
    return sorted(t[:, 0].tolist())


@pytest.mark.once
@forking
def test_a_writer_that_is_killed_while_it_takes_more_of_a_file(tmp_path: Path) -> None:
    """Before whichever line: the file opens again, to be read and written, with all its rows."""

    def make(line: int) -> Path:
        folder = tmp_path / str(line)
        folder.mkdir()
        return folder

    def call(folder: Path) -> Any:
        rb = opened(folder, "x")
        add(rb, 0, 1)
        return lambda: add(rb, 1, 1)

    def look(folder: Path) -> None:
        allowed = [0], [0, 1]
        assert numbers(opened(folder, "r")) in allowed
        rb = opened(folder, "r+")
        assert numbers(rb) in allowed
        add(rb, 2, 30)
        assert numbers(rb)[-30:] == list(range(2, 32))

    assert killed_everywhere((files.prepare, files.use), make, call, look) > 4


@pytest.mark.once
@forking
def test_a_writer_that_is_killed_while_it_creates_its_files(tmp_path: Path) -> None:
    """The next one creates them anew, or opens them empty; no warning says that rows are lost.

    The file had its name before it said when the machine was started.
    """

    def make(line: int) -> Path:
        folder = tmp_path / str(line)
        folder.mkdir()
        return folder

    def call(folder: Path) -> Any:
        return lambda: opened(folder, "x")

    def look(folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            rb = opened(folder, "r+" if (folder / "a.dat").exists() else "x")
        assert numbers(rb) == []
        add(rb, 0, 30)
        assert numbers(rb) == list(range(30))

    creating = files._create, files.keep, files.publish, file_systems.name_new
    assert killed_everywhere(creating, make, call, look) > 30


@pytest.mark.once
@forking
@pytest.mark.filterwarnings("ignore:.* do not follow:UserWarning")
@pytest.mark.parametrize("seed", range(-(-KILLS // 4)))
def test_kills_at_random_moments(tmp_path: Path, seed: int) -> None:
    """The next writer finds all rows, and so does who reads beside the one that is alive."""
    chance = random.Random(seed)

    def write(child: Child) -> None:
        rb = opened(tmp_path, "r+" if (tmp_path / "a.dat").exists() else "x")
        first = len(rb)
        child.beat()
        add(rb, first, CAPACITY - first)
        while True:
            time.sleep(1)

    found = 0
    for _ in range(4):
        child = Child("writer", write)
        with ended([child]):
            child.wait_for_beats(1)
            if chance.random() < 0.5:
                beside = opened(tmp_path, "r")
                # The newest row is left out if the next one is being written.
                assert len(numbers(beside)) >= found - 1
            time.sleep(chance.random() * 0.01)
            child.kill()
        rb = opened(tmp_path, "r+")
        rows = numbers(rb)
        assert rows == list(range(len(rows)))
        assert len(rows) >= found
        found = len(rows)
        del rb


def test_files_that_were_not_finished_are_removed(tmp_path: Path) -> None:
    """By who opens the buffer to write; those of other buffers in the folder are left."""
    rb = opened(tmp_path, "x")
    add(rb, 0, 4)
    token = "0123456789abcdef"
    own = [f"a.dat.{kind}{token}.new" for kind in ("", "flushed.3.", "sampler.1.")]
    others = [f"a.{kind}.dat.{token}.new" for kind in ("b", "sampler.1")]
    others += [f"ab.dat.{token}.new", "a.dat.new"]
    for name in own + others:
        (tmp_path / name).write_bytes(b"")
    assert numbers(opened(tmp_path, "r")) == list(range(4))
    assert {path.name for path in tmp_path.glob("*.new")} == {*own, *others}
    del rb
    opened(tmp_path, "r+")
    assert {path.name for path in tmp_path.glob("*.new")} == set(others)


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="no disk space is reserved here")
@pytest.mark.parametrize("calls", [0, 1, 2, 3])
def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    """``add`` says what to do and adds nothing; it goes on when there is room.

    Keys, values and other fields take disk space one after the other.
    """
    rb = opened(tmp_path, "x")
    add(rb, 0, 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", room_for(calls))
        expected_error = r"keep aside needs [\d,]+ bytes .*make room"
        with pytest.raises(MemoryError, match=expected_error) as caught:
            add(rb, 1, 30)
        assert str(tmp_path) in str(caught.value)
        assert numbers(rb) == [0]
    add(rb, 1, 30)
    assert numbers(rb) == list(range(31))
    del rb, caught  # whose frames hold the buffer
    assert numbers(opened(tmp_path, "r+")) == list(range(31))


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="no disk space is reserved here")
@pytest.mark.filterwarnings("ignore:.* do not follow:UserWarning")
def test_a_full_disk_under_a_reopened_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``add`` uses all the room that the file has, before it says that the disk is full.

    The first value kept aside needed room for further ones too.
    """
    pages: set[int] = set()
    is_full, reserve = False, os.posix_fallocate

    def reserve_on_the_disk(file: int, offset: int, nbytes: int) -> None:
        wanted = range(offset // mmap.PAGESIZE, -(-(offset + nbytes) // mmap.PAGESIZE))
        if is_full and not pages.issuperset(wanted):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        pages.update(wanted)
        reserve(file, offset, nbytes)

    monkeypatch.setattr(os, "posix_fallocate", reserve_on_the_disk)
    rb = opened(tmp_path, "x")
    add(rb, 0, 1200)
    del rb
    is_full = True
    rb = opened(tmp_path, "r+")
    add(rb, 1200, 100)
    with pytest.raises(MemoryError, match="make room"):
        add(rb, 1300, 500)
    n = len(rb)
    assert numbers(rb) == list(range(n))
    is_full = False
    add(rb, n, 500)
    assert numbers(rb) == list(range(n + 500))


def test_an_error_of_another_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is raised as it is: there is nothing to make room for."""

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    rb = opened(tmp_path, "x")
    add(rb, 0, 1)
    with monkeypatch.context() as patch:
        patch.setattr(file_maps, "use_file", fail)
        with pytest.raises(OSError) as caught:
            add(rb, 1, 30)
    assert caught.value.errno == errno.EIO
    assert numbers(rb) == [0]
