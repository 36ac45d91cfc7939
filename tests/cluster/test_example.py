"""The example of a cluster ends with all its actors, and says how far it came."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from optional import need
from scale import LONG

need("gymnasium", "the example plays Gymnasium's CartPole")
need("matplotlib", "the example draws with matplotlib")
need("tqdm", "the example shows its progress with tqdm")

SCRIPT = Path(__file__).parents[2] / "examples" / "cartpole_cluster.py"


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The example as a program of its own, with a Ray of its own."""
    command = [sys.executable, str(SCRIPT), *options]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=900, check=False
    )


def test_actors_and_a_learner_of_the_example_keep_pace(tmp_path: Path) -> None:
    """The short form: too few steps to learn; the limiter holds, and the picture is there.

    No warning of the package: each step of a cut window has its own discount.
    """
    done = run(tmp_path, "--quick", "--picture", "short.png")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^score: \d+\.\d \(mean return of 20 episodes\)$", done.stdout, re.MULTILINE)
    assert "Warning" not in done.stderr
    learner, cluster = map(ast.literal_eval, re.findall(r"^{.*}$", done.stdout, re.MULTILINE))
    assert learner["draws"] == learner["updates"] // 64 > 1000
    assert 2500 <= cluster["inserts"] < 5000
    assert abs((cluster["inserts"] - 1000) * 64 - cluster["samples"]) <= 66 * 64
    assert (tmp_path / "short.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(not LONG, reason="takes minutes: CPPRB_LIKE_LONG=1 runs it")
def test_the_example_learns(tmp_path: Path) -> None:
    """Greedy episodes reach a mean return of 475."""
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Learned: mean return" in done.stdout
