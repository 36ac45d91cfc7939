"""A full disk: the error names the file, says what to do, and nothing is left behind."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from file_map_cases import room_for

from cpprb_like import LoggedDraws, PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like._files import file_maps
from cpprb_like.processes import SharedReplay
from cpprb_like.processes._folder import FileLock

FULL = Path("/dev/full")
FIELDS: Any = {name: {} for name in ("obs", "next_obs", "act", "rew", "done")}

pytestmark = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")


def filled() -> ReplayBuffer:
    """A buffer of ten rows."""
    rb = ReplayBuffer(10, FIELDS, seed=0)
    rb.add(obs=range(10), next_obs=range(1, 11), act=range(10), rew=range(10), done=[0] * 10)
    return rb


def raise_full(*_: object, **__: object) -> None:
    """As an operation of a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """New files have no room."""
    opened = Path.open

    def open_full(path: Path, mode: str = "r", *given: Any, **options: Any) -> Any:
        if set(mode) & set("wx"):
            path, mode = FULL, mode.replace("x", "w")
        return opened(path, mode, *given, **options)

    monkeypatch.setattr(Path, "open", open_full)


def log(path: Path) -> None:
    """A log of draws."""
    rb = filled()
    with LoggedDraws(rb, path) as logged:
        logged.sample(3)


WRITERS: dict[str, Callable[[Path], object]] = {
    "save": lambda path: filled().save(path),
    "save compressed": lambda path: filled().save(path, codec="zlib"),
    "save_async": lambda path: filled().save_async(path).result(),
    "save_transitions": lambda path: filled().save_transitions(path.with_suffix(".npz")),
    "LoggedDraws": log,
    "report": lambda path: filled().report(path),
    "rlds": lambda path: filled().export(path, "rlds"),
    "dreamerv3": lambda path: filled().export(path, "dreamerv3"),
}


@pytest.mark.usefixtures("full_disk")
@pytest.mark.parametrize("writer", WRITERS)
def test_files_that_are_written(writer: str, tmp_path: Path) -> None:
    """It was "No space left on device", without the name of a file."""
    with pytest.raises(OSError, match=r"disk is full.*bytes are left: make room there") as caught:
        WRITERS[writer](tmp_path / "rows")
    assert caught.value.errno == errno.ENOSPC
    assert str(caught.value.filename).startswith(str(tmp_path / "rows"))
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "lock"]


def test_mapped_buffers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Creation and ``flush``, after which the buffer can be flushed again."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", room_for(0))
        with pytest.raises(OSError, match=r"disk is full.*rows\.dat"):
            ReplayBuffer(10, FIELDS, mmap_prefix=tmp_path / "rows")
    assert not list(tmp_path.iterdir())
    rb = ReplayBuffer(10, FIELDS, mmap_prefix=tmp_path / "rows")
    with monkeypatch.context() as patch:
        patch.setattr(file_maps, "sync", raise_full)
        with pytest.raises(OSError, match=r"disk is full.*rows\.dat"):
            rb.flush()
    rb.flush()


def test_marks_of_rows_that_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``add`` names the file and changes nothing, also if the disk took a part of the marks."""
    rb = ReplayBuffer(10, {"x": {}}, mmap_prefix=tmp_path / "rows")
    rb.add(x=range(10))
    rb.flush()
    write, given = os.pwrite, []

    def write_a_part(file: int, data: Any, offset: int) -> int:
        given.append(len(data))
        if len(given) == 2:
            raise_full()
        return write(file, data[:100], offset)

    monkeypatch.setattr(os, "pwrite", write_a_part)
    with pytest.raises(OSError, match=r"disk is full.*rows\.dat\.flushed"):
        rb.add(x=11)
    assert given == [2048, 1948]
    assert rb.get_all_transitions()["x"].ravel().tolist() == list(range(10))
    rb.add(x=11)
    assert rb.get_all_transitions()["x"].ravel().tolist() == [11, *range(1, 10)]


@pytest.mark.parametrize("value", [np.nan, -1.0])
def test_damaged_priorities(value: float, tmp_path: Path) -> None:
    """The error did not name the file, and not what to do without it."""
    options: Any = {"mmap_prefix": tmp_path / "rows"}
    rb = PrioritizedReplayBuffer(10, {"x": {}}, **options)
    rb.add(x=range(5), priorities=[1] * 5)
    del rb
    (path,) = tmp_path.glob("*sampler*")
    with path.open("r+b") as file:
        file.seek(64)
        file.write(np.array([value]).tobytes())
    for mode in ("r", "r+"):
        with pytest.raises(ValueError, match=rf"^{path}: the priorities .* remove this file"):
            PrioritizedReplayBuffer(10, {"x": {}}, mmap_mode=mode, **options)
    path.unlink()
    with pytest.warns(RuntimeWarning, match="is missing"):
        assert len(PrioritizedReplayBuffer(10, {"x": {}}, mmap_mode="r+", **options)) == 5


def test_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """``publish`` of parameters, where the lock or the values have no room."""
    with SharedReplay(100, FIELDS, writers=1) as replay:
        for owner, name in ((FileLock, "take"), (os, "posix_fallocate")):
            with monkeypatch.context() as patch:
                patch.setattr(owner, name, raise_full)
                with pytest.raises(MemoryError, match=r"bytes of shared memory.*enlarge it"):
                    replay.parameters.publish([1.0])
        assert replay.parameters.publish([1.0]) == 1
