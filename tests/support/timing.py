"""Costs of calls relative to each other."""

from __future__ import annotations

from collections.abc import Callable
from time import process_time


def ratio(
    usual: Callable[[], object], case: Callable[[], object], turns: int = 40, number: int = 5
) -> float:
    """The processor time of a case over the usual one.

    Both take turns, and the least time of each counts: the ratio holds on a busy machine.
    """
    best = [float("inf"), float("inf")]
    for _ in range(turns):
        for place, call in enumerate((usual, case)):
            start = process_time()
            for _ in range(number):
                call()
            best[place] = min(best[place], process_time() - start)
    return best[1] / best[0]
