"""Waits for what another thread or process does: a look, a short sleep, another look.

No other process has to wake the one that waits, so none that dies holds it. Not here: what is
waited for (``limiters``, ``processes``).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

__all__ = ["sleep", "wait_until"]

Found = TypeVar("Found")

YIELDING = 100e-6  # seconds in which the processor is only yielded: a batch of CartPole
SHORTEST, LONGEST = 50e-6, 2e-3  # seconds of a sleep, between them ...
PART = 0.1  # ... this part of what was waited so far, so that little is waited in vain

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

    Parameters
    ----------
    look : callable
        Looks once.
    timeout : float or None
        Seconds; None for no end. The first look comes before all waits.
    why : callable, optional
        Makes the error that is raised when the time is out; without it what the last look found is
        returned.
    since : callable, optional
        The time, as of ``time.monotonic``, from which the time-out counts; None for never yet.
    sleep : callable
        Sleeps, of 0 seconds only yields.
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
