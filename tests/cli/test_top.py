"""``cpprb_like top``: a look at a running replay from another process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optional import need

from cpprb_like import ReplayBuffer
from cpprb_like.limiters import MinSize
from cpprb_like.processes import SharedReplay

pytestmark = pytest.mark.once

need("click")
need("rich")

FIELDS: dict[str, Any] = {"x": {"shape": ()}, "done": {"shape": (), "dtype": bool}}


def top(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    command = [sys.executable, "-m", "cpprb_like", "top", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stderr
    return done


def test_a_shared_replay() -> None:
    """Its counts and members, as text and as JSON; the job keeps its rows."""
    with SharedReplay(100, FIELDS, writers=2, terminated="done", limiter=MinSize(1)) as replay:
        actor, learner = replay.actor(), replay.learner(seed=0)
        actor.add(x=np.arange(30), done=np.arange(30) % 10 == 9)
        learner.sample(8)
        found = json.loads(top(replay.name, "--once", "--json").stdout)
        assert found["stats"] == replay.stats()
        assert found["stats"]["episodes"] == 3
        assert [(one["kind"], one["alive"]) for one in found["members"]] == [
            ("actor", True),
            ("learner", True),
        ]
        text = top(replay.name, "--once").stdout
        for wanted in ("actor 0", "learner 0", "age at draw p90", "seconds waiting for inserts"):
            assert wanted in text
        assert learner.sample(8)["x"].shape == (8,)


def test_it_ends_with_the_replay() -> None:
    """With rates from the second look on; and it does not hold the memory of the replay."""
    replay = SharedReplay(100, FIELDS, writers=1)
    actor = replay.actor()
    command = [sys.executable, "-m", "cpprb_like", "top", replay.name, "--json", "--every", "0.1"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as job:
        assert job.stdout is not None
        assert "rates" not in json.loads(job.stdout.readline())
        actor.add(x=np.arange(50), done=np.zeros(50))
        until = time.monotonic() + 30
        while json.loads(job.stdout.readline())["rates"]["adds_per_second"] == 0:
            assert time.monotonic() < until
        folder = replay.folder
        actor.close()
        replay.close()
        _, error = job.communicate(timeout=30)
        assert job.returncode == 0
        assert "has ended" in error
    assert not folder.exists()


def test_a_buffer_in_files(tmp_path: Path) -> None:
    """By its prefix or by its file, while it is written."""
    rb = ReplayBuffer(100, FIELDS, terminated="done", mmap_prefix=str(tmp_path / "rows"))
    rb.add(x=np.arange(250), done=np.arange(250) % 10 == 9)
    for name in ("rows", "rows.dat"):
        stats = json.loads(top(str(tmp_path / name), "--once", "--json").stdout)["stats"]
        assert (stats["adds"], stats["episodes"], stats["clears"]) == (250, 25, 0)
    assert "mapped buffer" in top(str(tmp_path / "rows"), "--once").stdout


@pytest.mark.parametrize("name", ["nothing", "folder", "other.dat", "empty.dat"])
def test_what_is_no_replay(name: str, tmp_path: Path) -> None:
    """One line, which names it."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "other.dat").write_bytes(bytes(1000))
    (tmp_path / "empty.dat").write_bytes(b"")
    error = top(str(tmp_path / name) if name != "nothing" else name, "--once", code=1).stderr
    assert name in error
    assert len(error.strip().splitlines()) == 1
