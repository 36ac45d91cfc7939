"""Runs ``waiting.py`` in the environments of the peers that it compares with.

Not here: the table, which is ``reports.waits``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from programs import answer

__all__ = ["BESIDE", "waits"]

PATIENCE = 1200.0  # seconds
# Contenders by the environment in which they run; ours run in that of Stable-Baselines3.
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
    """Results of all environments that are there, and the reasons of those that failed."""
    found: dict[str, Any] = {"about": {}, "cases": [], "failed": {}}
    for peer in (peer for peer in BESIDE if peer in pythons):
        options = f"--steps={steps}", f"--rows={rows}", "--only", *BESIDE[peer]
        one = answer(pythons[peer], "waiting.py", *options, timeout=PATIENCE)
        if "error" in one:
            found["failed"][peer] = one["error"]
        else:
            found["about"][peer] = one["about"]
            found["cases"] += one["cases"]
    return found
