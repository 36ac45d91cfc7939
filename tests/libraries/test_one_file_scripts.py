"""The scripts in one file learn, each in its short form."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from optional import need

need("torch")
need("jax")
need("gymnasium")

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("script", "steps", "least"),
    [
        ("one_file_dqn.py", 40_000, 120),
        ("one_file_td3.py", 7_000, -400),
        ("jax_dqn.py", 40_000, 120),
    ],
)
def test_a_script_learns(script: str, steps: int, least: float) -> None:
    """To a mean return that a random policy is far from: 20 in CartPole, -1200 in Pendulum."""
    command = [sys.executable, str(EXAMPLES / script), "--total-timesteps", str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    found = re.search(r"mean return (-?\d+) over 10 episodes", done.stdout)
    assert found is not None, done.stdout
    assert float(found[1]) > least
