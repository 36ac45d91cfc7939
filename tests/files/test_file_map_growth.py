"""Files of chained fields grow: what a process that is killed on the way leaves can be opened."""

from __future__ import annotations

import errno
import os
import random
import shutil
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


@pytest.fixture(autouse=True)
def _little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files begin with room for four values, so that they grow often."""
    monkeypatch.setattr(file_maps, "FIRST_ROOM", 4)


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


def look(folder: Path) -> None:
    """What was left by a writer that was killed in the sixth ``add`` can be read, and goes on."""
    allowed = list(range(5)), list(range(6))
    assert numbers(opened(folder, "r")) in allowed
    rb = opened(folder, "r+")
    assert numbers(rb) in allowed
    add(rb, 6, 30)
    assert numbers(rb)[-30:] == list(range(6, 36))
    rb.flush()  # which needed the smaller files until now
    assert len(list(folder.glob("a.dat.?-0.*"))) == 2
    assert not list(folder.glob("*.new"))


@forking
def test_a_writer_that_is_killed_while_its_files_grow(tmp_path: Path) -> None:
    """Before whichever line: the file opens again, to be read and written, with all its rows.

    A larger file had its name before its header, and no process could open the buffer any more.
    """

    def make(line: int) -> Path:
        folder = tmp_path / str(line)
        folder.mkdir()
        return folder

    def call(folder: Path) -> Any:
        rb = opened(folder, "x")
        add(rb, 0, 5)
        return lambda: add(rb, 5, 1)

    growing = files.grow, files._create_side, file_maps.reserve, file_systems.name_new
    assert killed_everywhere(growing, make, call, look) > 25


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


@forking
@pytest.mark.filterwarnings("ignore:.* do not follow:UserWarning")
@pytest.mark.parametrize("seed", range(-(-KILLS // 4)))
def test_kills_at_random_moments_while_files_grow(tmp_path: Path, seed: int) -> None:
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


@pytest.mark.parametrize("left", [b"", bytes(1000), b"cpprb"], ids=["empty", "zeros", "begun"])
def test_a_larger_file_that_has_no_header(tmp_path: Path, left: bytes) -> None:
    """It hinders no process, as the one before has all values; who writes removes it."""
    rb = opened(tmp_path, "x")
    add(rb, 0, 10)
    del rb
    (tmp_path / "a.dat.0-0.99").write_bytes(left)
    assert numbers(opened(tmp_path, "r")) == list(range(10))
    rb = opened(tmp_path, "r+")
    assert numbers(rb) == list(range(10))
    assert not (tmp_path / "a.dat.0-0.99").exists()


def test_a_file_that_was_damaged_beside_one_that_it_replaced(tmp_path: Path) -> None:
    """The older one, which a kill may leave, is not taken for it: it lacks what came since."""
    live, copy = tmp_path / "live", tmp_path / "copy"
    live.mkdir()
    rb = opened(live, "x")
    add(rb, 0, 4)
    (older,) = live.glob("a.dat.0-0.*")
    add(rb, 4, 2)
    (newer,) = [path for path in live.glob("a.dat.0-0.*") if path != older]
    shutil.copytree(live, copy)
    assert numbers(opened(copy, "r")) == list(range(6))
    (copy / newer.name).write_bytes(b"")
    with pytest.raises(ValueError, match=newer.name):
        opened(copy, "r+")


def test_files_that_were_not_finished_are_removed(tmp_path: Path) -> None:
    """By who opens the buffer to write; those of other buffers in the folder are left."""
    rb = opened(tmp_path, "x")
    add(rb, 0, 4)
    token = "0123456789abcdef"
    own = [f"a.dat.{kind}{token}.new" for kind in ("", "flushed.3.", "sampler.1.", "0-0.7.")]
    others = [f"a.{kind}.dat.{token}.new" for kind in ("b", "sampler.1", "dat.0-0.7")]
    others += [f"ab.dat.{token}.new", "a.dat.new"]
    for name in own + others:
        (tmp_path / name).write_bytes(b"")
    assert numbers(opened(tmp_path, "r")) == list(range(4))
    assert {path.name for path in tmp_path.glob("*.new")} == {*own, *others}
    del rb
    opened(tmp_path, "r+")
    assert {path.name for path in tmp_path.glob("*.new")} == set(others)


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="no disk space is reserved here")
@pytest.mark.parametrize("calls", [0, 1])
def test_a_disk_that_is_full_when_files_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """``add`` says what to do and adds nothing; it goes on when there is room.

    It was an ``OSError`` that did not say of which file. One file may have grown before another.
    """
    rb = opened(tmp_path, "x")
    add(rb, 0, 3)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", room_for(calls))
        expected_error = r"keep aside needs [\d,]+ bytes .*make room"
        with pytest.raises(MemoryError, match=expected_error) as caught:
            add(rb, 3, 30)
        assert str(tmp_path) in str(caught.value)
        there = numbers(rb)
        assert there == list(range(len(there)))
        assert 3 <= len(there) < 33
        assert not list(tmp_path.glob("*.new"))
    add(rb, len(there), 30)
    expected = list(range(len(there) + 30))
    assert numbers(rb) == expected
    del rb, caught  # whose frames hold the buffer
    assert numbers(opened(tmp_path, "r+")) == expected


def test_an_error_of_another_kind_when_files_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is raised as it is: there is nothing to make room for."""

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    rb = opened(tmp_path, "x")
    add(rb, 0, 3)
    with monkeypatch.context() as patch:
        patch.setattr(file_maps, "reserve", fail)
        with pytest.raises(OSError) as caught:
            add(rb, 3, 30)
    assert caught.value.errno == errno.EIO
