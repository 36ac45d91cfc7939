"""``wait_until``: polls a condition with short sleeps, until it is true or the time is out.

No other process has to wake the waiting one, so the death of a process never blocks another. Not
here: the conditions (``limiters``, ``processes``).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

__all__ = ["EDIT_PATIENCE", "LOOK_PATIENCE", "PATIENCE", "PAUSE", "every", "sleep", "wait_until"]

Found = TypeVar("Found")

PATIENCE = 10.0  # seconds to wait for a publisher, or for rows that are not overwritten
HOST_PATIENCE = 60.0  # seconds to wait for a host of a cluster, which may be started again
EDIT_PATIENCE = 1.0  # seconds to wait for an edit, which takes 20 ms a million rows
LOOK_PATIENCE = 0.015  # seconds to wait for a lock that another process only tests
PAUSE = 0.01  # seconds between tests that cost more than a few microseconds
YIELDING = 100e-6  # first seconds of a wait, without sleeps: the time of a batch of CartPole
SHORTEST, LONGEST = 50e-6, 2e-3  # limits of a sleep in seconds
PART = 0.1  # length of a sleep as a part of the time waited so far, within these limits

_yield: Callable[[], object] = getattr(os, "sched_yield", partial(time.sleep, 0.0))


def sleep(seconds: float) -> None:
    """Sleep, or yield the processor for 0 seconds."""
    if seconds:
        time.sleep(seconds)
    else:
        _yield()


def every(seconds: float) -> Callable[[float], None]:
    """A ``sleep`` for ``wait_until`` that is always so long, for looks that cost more."""
    return lambda _: time.sleep(seconds)


def wait_until(
    look: Callable[[], Found],
    timeout: float | None,
    why: Callable[[], BaseException] | None = None,
    *,
    since: Callable[[], float | None] | None = None,
    sleep: Callable[[float], None] = sleep,
) -> Found:
    """Call ``look()`` until its result is true, and return the result.

    The first call comes before all waits. After ``timeout`` seconds (None: no limit), the error of
    ``why()`` is raised; without ``why`` the last result is returned. The time-out counts from the
    time ``since()`` of ``time.monotonic``, and not while that is None. ``sleep(0.0)`` yields.
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
