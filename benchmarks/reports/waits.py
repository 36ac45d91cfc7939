"""The table of docs/learners.md: how long a learner waits for its batches."""

from __future__ import annotations

from typing import Any

from .wording import grid, quantity, where

HEAD = ["batch", "of", "by itself", "waited for: least", "median", "a training step", "share of it"]


def waits_table(results: dict[str, Any]) -> str:
    """What ``waiting.py`` found, and on what."""
    rows = [
        [
            str(case["batch"]),
            case["name"],
            *(quantity(case[what], "s") for what in ("alone", "least", "median", "whole")),
            f"{case['median'] / case['whole']:.1%}",
        ]
        for case in sorted(results["cases"], key=lambda case: int(case["batch"]))
    ]
    return "\n\n".join([grid([HEAD, *rows]), _people(results)])


def _people(results: dict[str, Any]) -> str:
    machine = results["machine"]
    versions = ", ".join(
        f"PyTorch {about['torch']} for {'ours and ' if peer == 'stable_baselines3' else ''}{peer}"
        for peer, about in results["about"].items()
    )
    rows = next(iter(results["about"].values()))["rows"]
    lines = [f"Measured on {where(machine)}; {versions}; {rows:,} rows; {machine['date']}."]
    lines += [f"{peer} was not measured: {why}." for peer, why in results["failed"].items()]
    return " ".join(lines)
