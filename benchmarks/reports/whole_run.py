"""The tables of docs/benchmarks-whole-run.md and docs/benchmarks-rules.md: calls beside others."""

from __future__ import annotations

from typing import Any

from .wording import grid, quantity, where


def whole_run_table(results: dict[str, Any]) -> str:
    """What ``whole_run.py`` found, and on what."""
    return _table(results, "floor", "ours / floor")


def rules_table(results: dict[str, Any]) -> str:
    """What ``rules.py`` found, and on what."""
    return _table(results, "beside", "ours / theirs")


def _table(results: dict[str, Any], beside: str, ratio: str) -> str:
    rows = [["what", "cpprb_like", beside, "takes", ratio]]
    for case in results["cases"]:
        ours, floor = case["seconds"]
        times = ours / floor
        numbers = quantity(floor, "s"), f"{times:.2f}" if times >= 0.1 else f"{times:.1g}"
        rows.append([case["case"], quantity(ours, "s"), case["floor"], *numbers])
    machine = results["machine"]
    load = "" if machine["load"] is None else f", load {machine['load'][0]:.1f}"
    about = (
        f"Medians of turns in one process. Measured on {where(machine)}{load}; NumPy "
        f"{results['numpy']}; {machine['date']}."
    )
    return f"{grid(rows)}\n\n{about}"
