"""Has ``waiting.py`` measured in the environments of the peers that it compares with.

Not here: the table, which is ``reports.waits``.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["BESIDE", "waits"]

FOLDER = Path(__file__).resolve().parent
PATIENCE = 1200.0  # seconds
# In whose environment, and which contenders: ours stand beside Stable-Baselines3's.
BESIDE = {
    "stable_baselines3": (
        "cpprb_like",
        "cpprb_like, prefetch=1",
        "cpprb_like, prefetch=2",
        "EpochDataset, DataLoader with 1 worker",
        "DataLoader over arrays",
        "Stable-Baselines3",
    ),
    "torchrl": ("torchrl", "torchrl, prefetch=2"),
}


def waits(pythons: Mapping[str, Path], *, steps: int, rows: int) -> dict[str, Any]:
    """What was found in all environments that are there, and why not in others."""
    found: dict[str, Any] = {"about": {}, "cases": [], "failed": {}}
    for peer, names in BESIDE.items():
        if peer not in pythons:
            continue
        done = _run(pythons[peer], names, steps, rows)
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            found["failed"][peer] = lines[-1] if lines else f"ended with {done.returncode}"
            continue
        answer = json.loads(done.stdout.splitlines()[-1])
        found["about"][peer] = answer["about"]
        found["cases"] += answer["cases"]
    return found


def _run(
    python: Path, names: Iterable[str], steps: int, rows: int
) -> subprocess.CompletedProcess[str]:
    search = [str(FOLDER.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run(
        [
            str(python),
            str(FOLDER / "waiting.py"),
            f"--steps={steps}",
            f"--rows={rows}",
            "--only",
            *names,
        ],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(search), "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
