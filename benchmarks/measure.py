"""Times that can be compared on a noisy machine, and the table they are printed in.

What is to be compared runs in turns, a few milliseconds each, and the fastest turn of each counts:
noise only ever adds.
"""

from __future__ import annotations

import gc
import timeit
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

__all__ = ["Effort", "Row", "Work", "compiled", "interleave", "statement", "table"]

Work = Callable[[int], float]  # does its work that many times, returns seconds

CALIBRATIONS = 5


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    turns: int
    turn_seconds: float
    rows: int  # of the buffer of small steps
    image_pairs: int
    growth: tuple[int, ...]  # rows of the buffers that grow
    leaves: int  # of the trees of weights, and rows of the buffers that have one


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    measured: float
    floor: float | None = None
    budget: str = ""  # for people
    held: bool | None = None  # None where nothing was promised
    unit: str = "us"
    ratio: float | None = None

    @classmethod
    def of(
        cls, what: str, measured: float, floor: float, times: float | None = None, plus: float = 0.0
    ) -> Row:
        """Microseconds, and how many times the floor (plus some) they may be."""
        budget, held = "", None
        if times is not None:
            budget = f"<= {times:g} x" + (f" + {plus:g} us" if plus else "")
            held = measured <= times * floor + plus
        return cls(what, measured, floor, budget, held, ratio=measured / floor)

    @classmethod
    def faster(cls, what: str, ours: float, theirs: float, times: float | None = None) -> Row:
        """Microseconds of ours and of a peer, and how many times faster ours has to be."""
        budget = "" if times is None else f">= {times:g} x"
        held = None if times is None else theirs >= times * ours
        return cls(what, ours, theirs, budget, held, ratio=theirs / ours)


def statement(source: str, **names: Any) -> Work:
    """A Python statement."""
    return timeit.Timer(source, globals=names).timeit


def compiled(function: Callable[[int], object]) -> Work:
    """A function that repeats its work itself."""

    def work(calls: int) -> float:
        start = perf_counter()
        function(calls)
        return perf_counter() - start

    return work


def interleave(effort: Effort, *works: Work) -> list[float]:
    """Microseconds that each of the works takes once: the fastest of their turns."""
    calls = [_calls_in(work, effort.turn_seconds) for work in works]
    best = [float("inf")] * len(works)
    gc.disable()
    for _ in range(effort.turns):
        for place, work in enumerate(works):
            best[place] = min(best[place], work(calls[place]) / calls[place])
    gc.enable()
    return [1e6 * seconds for seconds in best]


def _calls_in(work: Work, seconds: float) -> int:
    """Calls that take so long, whatever else the machine does for a moment meanwhile.

    Too few would be measured cold: the first of them finds its memory in no cache.
    """
    work(1)
    calls = 1
    while min(work(calls) for _ in range(CALIBRATIONS)) < seconds:
        calls *= 2
    return calls


def table(heading: tuple[str, ...], rows: Iterable[Row]) -> str:
    """The rows as a table in Markdown."""
    verdicts = {None: "", True: "pass", False: "FAIL"}
    lines = [
        (
            row.what,
            f"{row.measured:.4g} {row.unit}",
            "" if row.floor is None else f"{row.floor:.4g} {row.unit}",
            "" if row.ratio is None else f"{row.ratio:.3g}",
            row.budget,
            verdicts[row.held],
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(heading, *lines, strict=True)]
    rule = tuple("-" * width for width in widths)
    return "\n".join(
        "| " + " | ".join(map(str.ljust, cells, widths)) + " |" for cells in (heading, rule, *lines)
    )
