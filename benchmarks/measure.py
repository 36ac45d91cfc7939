"""Work that is repeated and timed, in the process that does it.

Nothing here needs more than the standard library: it runs in the environment of every contender.
"""

from __future__ import annotations

import gc
import timeit
from collections.abc import Callable
from time import perf_counter
from typing import Any

Work = Callable[[int], float]  # does its work that many times, returns seconds

CALIBRATIONS = 5

_nothing = timeit.Timer("pass").timeit


def statement(source: str, **names: Any) -> Work:
    """A Python statement, less what an empty loop takes."""
    loop = timeit.Timer(source, globals=names).timeit

    def work(calls: int) -> float:
        return loop(calls) - _nothing(calls)

    return work


def compiled(function: Callable[[int], object]) -> Work:
    """A function that repeats its work itself."""

    def work(calls: int) -> float:
        start = perf_counter()
        function(calls)
        return perf_counter() - start

    return work


def turn(work: Work, calls: int) -> float:
    """Seconds that one of so many calls takes."""
    gc.disable()
    try:
        return work(calls) / calls
    finally:
        gc.enable()


def calls_in(work: Work, seconds: float) -> int:
    """Calls that take so long, whatever else the machine does for a moment meanwhile.

    Too few would be measured cold: the first of them finds its memory in no cache.
    """
    work(1)
    calls = 1
    while _fastest(work, calls, seconds) < seconds:
        calls *= 2
    return calls


def _fastest(work: Work, calls: int, enough: float) -> float:
    """The fastest of some tries; one that took far longer than enough needs no other."""
    fastest = float("inf")
    for _ in range(CALIBRATIONS):
        fastest = min(fastest, work(calls))
        if fastest > 10 * enough:
            break
    return fastest
