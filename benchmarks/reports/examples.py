"""The table of docs/examples.md: the scores of the examples over three seeds."""

from __future__ import annotations

from statistics import mean
from typing import Any

from .wording import grid, where

HEAD = ["example", "score", "least", "greatest", "stated", "seconds"]


def examples_table(results: dict[str, Any]) -> str:
    """What ``example_scores.py`` found, and on what."""
    rows = [
        _row(name, found) for name, found in results["examples"].items() if _scores(found["runs"])
    ]
    return "\n\n".join([grid([HEAD, *rows]), _remarks(results)])


def _row(name: str, found: dict[str, Any]) -> list[str]:
    scores = _scores(found["runs"])
    seconds = mean(run["seconds"] for run in found["runs"] if "score" in run)
    numbers = [mean(scores), min(scores), max(scores)]
    return [f"`{name}`", *map(_number, numbers), found["stated"], f"{seconds:.0f}"]


def _scores(runs: list[dict[str, Any]]) -> list[float]:
    return [run["score"] for run in runs if "score" in run]


def _number(score: float) -> str:
    """Whole numbers where they are large, and three digits where they are small."""
    return f"{score:.0f}" if abs(score) >= 100 else f"{score:.3g}"


def missed(found: dict[str, Any]) -> list[int]:
    """Seeds whose score is not what the docstring of the example states."""
    words = found["stated"].split()
    sign, limit = (1 if words[1] == "least" else -1), float(words[2])
    runs = [run for run in found["runs"] if "score" in run]
    return [run["seed"] for run in runs if sign * run["score"] < sign * limit]


def _remarks(results: dict[str, Any]) -> str:
    packages = ", ".join(f"{name} {release}" for name, release in results["packages"].items())
    runs = [run for found in results["examples"].values() for run in found["runs"]]
    seeds = ", ".join(map(str, sorted({run["seed"] for run in runs})))
    machines = [found["machine"] for found in results["examples"].values()]
    places = " and ".join(sorted({f"{where(one)}, {one['date']}" for one in machines}))
    lines = [
        f"Mean, least and greatest score of the seeds {seeds}, and seconds on one core. *Stated*",
        "is the score that the docstring of the example promises. Measured on",
        f"{places}; {packages}.",
    ]
    for name, found in results["examples"].items():
        lines += [f"`{name}`, seed {seed}, missed what is stated." for seed in missed(found)]
        failed = [run for run in found["runs"] if "score" not in run]
        lines += [f"`{name}`, seed {run['seed']}, failed: {run['error']}" for run in failed]
    return "\n".join(lines)
