"""Picture of ``inspect --plot``: lengths of episodes, returns over time, priorities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cpprb_like.checkpoint import Rows

__all__ = ["draw"]

BINS = 50


def draw(rows: dict[str, Rows], path: Path) -> None:
    """Write a picture, of one line of axes for each buffer.

    Raises ``ImportError`` if matplotlib is not there, ``ValueError`` if there is nothing to draw or
    it does not know the suffix of the file.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 (optional)
    except ImportError:
        raise ImportError("--plot needs matplotlib: pip install 'cpprb_like[plot]'") from None
    if not rows:
        raise ValueError("--plot: there are no rows that tell of episodes")
    figure = Figure(figsize=(12, 3.2 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), 3, squeeze=False)
    for line, (name, found) in zip(axes, rows.items(), strict=True):
        _draw_line(line, name, found)
    figure.savefig(path)


def _draw_line(line: Any, name: str, rows: Rows) -> None:
    complete = [episode for episode in rows.episodes if episode.complete]
    lengths, returns, priorities = line
    _histogram(lengths, [episode.length for episode in complete], "rows of an episode", "episodes")
    lengths.set_title(name.replace("$", r"\$"))
    returns.plot([episode.return_ for episode in complete if episode.return_ is not None], ".")
    returns.set(xlabel="complete episode, oldest first", ylabel="return")
    known: Any = [] if rows.priorities is None else rows.priorities[np.isfinite(rows.priorities)]
    _histogram(priorities, known, "priority", "rows")


def _histogram(axes: Any, values: Any, of: str, what: str) -> None:
    if len(values):
        axes.hist(values, bins=BINS)
    else:
        axes.text(0.5, 0.5, "none", ha="center", transform=axes.transAxes)
    axes.set(xlabel=of, ylabel=what)
