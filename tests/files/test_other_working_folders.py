"""``os.chdir`` after a path was given: the path still names the same file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpprb_like import DrawLog, LoggedDraws, ReplayBuffer, checkpoint
from cpprb_like.checkpoint._save import Snapshot
from cpprb_like.datasets import describe
from cpprb_like.processes import SharedReplay

FIELDS: Any = {"x": {"shape": 4}, "done": {"shape": (), "dtype": bool}}


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The folders of this run and of another one. The first is the working folder."""
    mine, other = tmp_path / "mine", tmp_path / "other"
    for folder in (mine, other):
        folder.mkdir()
        monkeypatch.chdir(folder)
        run(50 if folder == other else 20).flush()
    monkeypatch.chdir(mine)
    return mine, other


def run(n: int, mode: Any = "x") -> ReplayBuffer:
    """A buffer in files of the working folder, with n further rows."""
    rb = ReplayBuffer(200, FIELDS, next_of="x", mmap_prefix="replay", mmap_mode=mode)
    rb.add(x=np.full((n, 4), n), next_x=np.full((n, 4), n + 1), done=np.zeros(n))
    return rb


def content(folder: Path) -> dict[str, bytes]:
    """The bytes of each file."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_mapped_buffer(folders: tuple[Path, Path]) -> None:
    """A flush wrote the log of another run, and removed the files of its chained fields."""
    mine, other = folders
    rb = run(120, "r+")
    before = content(other)
    os.chdir(other)
    rb.add(x=np.full((30, 4), 7), next_x=np.full((30, 4), 9), done=np.ones(30))
    rb.flush()
    assert content(other) == before
    del rb
    os.chdir(mine)
    assert len(ReplayBuffer(200, FIELDS, next_of="x", mmap_prefix="replay", mmap_mode="r")) == 170


def test_save_async(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread wrote its files into a checkpoint of another run."""
    mine, other = folders
    write = Snapshot.write

    def elsewhere(snapshot: Snapshot) -> None:
        os.chdir(other)
        write(snapshot)

    monkeypatch.setattr(Snapshot, "write", elsewhere)
    rb = ReplayBuffer(10, FIELDS)
    before = content(other)
    rb.save_async("saved").result()
    assert content(other) == before
    assert checkpoint.states(mine / "saved") == [1]


def test_logs_of_draws_and_data_sets(folders: tuple[Path, Path]) -> None:
    """``path`` of a log and of the description of a data set was the relative one."""
    mine, other = folders
    fields: Any = {name: {} for name in ("obs", "next_obs", "act", "rew", "done")}
    rb = ReplayBuffer(10, fields)
    rb.add(obs=range(10), next_obs=range(1, 11), act=range(10), rew=range(10), done=[0] * 10)
    rb.export("rows", "rlds")
    found, log = describe("rows"), LoggedDraws(rb, "draws")
    log.sample(3)
    os.chdir(other)
    log.close()
    assert len(DrawLog(log.path)) == 1
    assert describe(found.path).rows == 10
    assert log.path.parent == found.path.parent == mine


def test_shared_memory(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """``CPPRB_LIKE_SHARED_MEMORY=memory``: ``attach`` looked into another folder."""
    mine, other = folders
    (mine / "memory").mkdir()
    monkeypatch.setenv("CPPRB_LIKE_SHARED_MEMORY", "memory")
    with SharedReplay(100, FIELDS, writers=1) as replay:
        os.chdir(other)
        actor = replay.actor()
        actor.add(x=np.zeros(4), done=False)
        with SharedReplay.attach(replay.name) as again:
            assert again.stats()["adds"] == 1
        actor.close()
    assert not list((mine / "memory").rglob("*.dat"))
    assert "memory" not in content(other)
