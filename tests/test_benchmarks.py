"""The benchmarks run, and print a row for each thing that they promise to measure."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
MEASURED = (
    "add 1 step, Python scalars",
    "add 1 step, NumPy scalars",
    "add 64 steps",
    "add 1024 steps",
    "sample(0)",
    "sample(256)",
    "sample(32) of image pairs",
    "memory of small steps",
    "set 256 of",
    "search for 256 in",
    "sample(256) and update_priorities",
    "add 1 step, prioritized",
    "sample(256) of 1e+04 rows, 3-step",
    "sample(32) of stacked pairs, frames last",
    "memory of stacked pairs",
    "add 1 step of a stacked pair",
    "sequences of steps",
    "sequences of frames",
    "keras-gym: ",
    "coax: ",
    "ReAgent's SumTree of",
    "compat.dqn: sample(32)",
    "ReplayMemory: append",
)


@pytest.mark.skipif(
    not FOLDER.exists() or not (shutil.which("cc") or shutil.which("gcc")),
    reason="the benchmarks compile what they compare with, and are not part of a wheel",
)
def test_a_quick_run_prints_every_row(tmp_path: Path) -> None:
    """A run with little effort ends with the whole table, whatever this machine is busy with."""
    done = subprocess.run(
        [sys.executable, str(FOLDER / "run.py"), "--quick"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr  # 1: a budget was missed
    for what in MEASURED:
        assert f"| {what}" in done.stdout, done.stdout
