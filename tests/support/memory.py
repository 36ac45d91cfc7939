"""How much memory something takes, whatever else the process does."""

from __future__ import annotations

import gc
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
TRIES = 3


def resident() -> int:
    """Bytes of this process that lie in memory, garbage aside."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE


def allocated(make: Callable[[], object]) -> int:
    """Bytes that a call of ``make``, or what it returns, keeps allocated: the least of some calls.

    The first call lets caches fill and modules be imported. What another thread allocates is
    counted too, but not in each of the calls; a leak is. Calls collect no garbage.
    """
    return min(now for now, _ in _traced(make))


def peak(job: Callable[[], object]) -> int:
    """The most bytes that a call of ``job`` has allocated at one time: the least of some calls."""
    return min(most for _, most in _traced(job))


def _traced(make: Callable[[], object]) -> list[tuple[int, int]]:
    found = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(TRIES):
            tracemalloc.start()
            kept = make()
            found.append(tracemalloc.get_traced_memory())
            tracemalloc.stop()
            del kept
    finally:
        tracemalloc.stop()
        gc.enable()
    return found
