"""The table of docs/benchmarks-whole-run.md: rollouts, windows and checkpoints beside floors."""

from __future__ import annotations

from typing import Any

from .wording import grid, quantity, where


def whole_run_table(results: dict[str, Any]) -> str:
    """What ``whole_run.py`` found, and on what."""
    rows = [["what", "cpprb_like", "floor", "takes", "ours / floor"]]
    for case in results["cases"]:
        ours, floor = case["seconds"]
        numbers = quantity(floor, "s"), f"{ours / floor:.2f}"
        rows.append([case["case"], quantity(ours, "s"), case["floor"], *numbers])
    machine = results["machine"]
    load = "" if machine["load"] is None else f", load {machine['load'][0]:.1f}"
    about = (
        f"Medians of turns in one process. Measured on {where(machine)}{load}; NumPy "
        f"{results['numpy']}; {machine['date']}."
    )
    return f"{grid(rows)}\n\n{about}"
