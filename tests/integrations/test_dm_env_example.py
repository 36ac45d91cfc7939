"""The grid world is learned, on dm_env alone; when it is not, the program says so."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from optional import need

need("dm_env")

SCRIPT = Path(__file__).parents[2] / "examples" / "gridworld_tf_agents.py"


def run(*options: str) -> subprocess.CompletedProcess[str]:
    """The example as a program of its own."""
    command = [sys.executable, str(SCRIPT), "--environment", "dm_env", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize("seed", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 2))])
def test_the_agent_walks_a_shortest_way(seed: int) -> None:
    """From corner to corner of a grid of 4 by 4 it is three steps down and three to the right."""
    done = run("--seed", str(seed))
    assert done.returncode == 0, done.stderr
    found = re.search(r"Learned in \d+ steps: (.*)\.", done.stdout)
    assert found is not None
    assert sorted(found[1].split(", ")) == ["down"] * 3 + ["right"] * 3
    assert "Environment: dm_env" in done.stdout


def test_an_agent_that_did_not_learn_fails() -> None:
    """Too few steps end with an error that shows the walk."""
    done = run("--steps", "5")
    assert done.returncode != 0
    assert re.search(r"Not learned: (\w+, )*\w+ is no shortest walk", done.stderr)
