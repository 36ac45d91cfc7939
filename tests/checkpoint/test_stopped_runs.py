"""A whole run that is killed at random moments ends as one that was never stopped, bit for bit."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import stopped_dqn
from scale import PYTHONS, STOPS

from cpprb_like import checkpoint

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no kill -9"),
]

STEPS, EVERY = 100 * STOPS, 10


def started(python: str, folder: Path) -> subprocess.Popen[str]:
    """The program, which begins, or goes on from a folder."""
    line = [python, stopped_dqn.__file__, str(folder), str(STEPS), str(EVERY)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, text=True)


def killed(python: str, folder: Path, rng: random.Random) -> list[str]:
    """Start it, and kill it at a random moment; the lines that it has printed."""
    lines: list[str] = []
    steps = rng.randrange(120)
    with started(python, folder) as run:
        assert run.stdout is not None
        if rng.random() < 0.9:  # otherwise it may be starting
            for line in run.stdout:
                lines.append(line)
                if len(lines) > steps:
                    break
        time.sleep(rng.random() * (0.01 if lines else 0.5))
        run.kill()
        lines += run.stdout
    return lines


def elsewhere(folder: Path, new: Path, rng: random.Random) -> Path:
    """The folder with the checkpoint: moved, copied in one of two ways, or where it was."""
    if not checkpoint.states(folder):
        return folder
    how = rng.randrange(4)
    if how == 0:
        return folder.rename(new)
    if how == 1:
        return shutil.copytree(folder, new)
    if how == 2:
        checkpoint.copy(folder, new, sync=False)
        return new
    return folder


def test_a_stopped_run_ends_as_one_that_was_not(tmp_path: Path) -> None:
    """Each time another interpreter goes on with it, and mostly in another folder."""
    rng = random.Random(0)
    with started(PYTHONS[0], tmp_path / "whole") as whole:
        assert whole.stdout is not None
        *_, expected = whole.stdout
    assert len(expected.strip()) == 64

    folder, reached, repeated = tmp_path / "0", 0, 0
    for number in range(STOPS):
        lines = killed(PYTHONS[number % len(PYTHONS)], folder, rng)
        assert expected not in lines, "it has ended before it was stopped so often"
        if lines:
            repeated += reached + 1 - int(lines[0])
            assert reached - 2 * EVERY < int(lines[0]) <= reached + 1
            reached = int(lines[-1])
        folder = elsewhere(folder, tmp_path / str(number + 1), rng)
    with started(PYTHONS[STOPS % len(PYTHONS)], folder) as last:
        assert last.stdout is not None
        lines = [*last.stdout]
    repeated += reached + 1 - int(lines[0])
    assert lines[-1] == expected
    print(f"{STOPS} stops of {STEPS} steps, of which {repeated} were made again")
