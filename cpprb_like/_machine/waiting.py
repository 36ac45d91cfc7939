"""``wait_until``: polls a condition with short sleeps, until it is true or the time is out.

The waiting process needs no wake-up call, so the death of another one never blocks it. Not here:
the conditions (``limiters``, ``processes``).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

__all__ = ["EDIT_PATIENCE", "LOOK_PATIENCE", "PATIENCE", "PAUSE", "sleep", "wait_until"]

Found = TypeVar("Found")

PATIENCE = 10.0  # seconds: for a process that publishes, or that writes over rows that are read
EDIT_PATIENCE = 1.0  # seconds: for an edit, which takes 20 ms a million rows
LOOK_PATIENCE = 0.015  # seconds: for a lock that another process takes only to look at it
PAUSE = 0.01  # seconds between looks that cost more than a few microseconds
YIELDING = 100e-6  # seconds in which the processor is only yielded: a batch of CartPole
SHORTEST, LONGEST = 50e-6, 2e-3  # seconds of a sleep
PART = 0.1  # length of a sleep as a part of the time waited so far, within these limits

_yield: Callable[[], object] = getattr(os, "sched_yield", partial(time.sleep, 0.0))


def sleep(seconds: float) -> None:
    """Sleep; of 0 seconds yield the processor."""
    if seconds:
        time.sleep(seconds)
    else:
        _yield()


def wait_until(
    look: Callable[[], Found],
    timeout: float | None,
    why: Callable[[], BaseException] | None = None,
    *,
    since: Callable[[], float | None] | None = None,
    sleep: Callable[[float], None] = sleep,
) -> Found:
    """Look again and again until something true is found, which is returned.

    The first look comes before all waits. After ``timeout`` seconds, None for no end, the error
    of ``why()`` is raised; without it what the last look found is returned. The time-out counts
    from ``since()`` on, by ``time.monotonic``; None for never yet. ``sleep(0.0)`` yields.
    """
    began = time.monotonic()
    while True:
        found = look()
        if found:
            return found
        now = time.monotonic()
        counted = began if since is None else since()
        left = math.inf if timeout is None or counted is None else counted + timeout - now
        if left <= 0:
            if why is None:
                return found
            raise why()
        waited = now - began
        sleep(0.0 if waited < YIELDING else min(max(SHORTEST, PART * waited), LONGEST, left))
