"""Waits: a look, a short sleep, another look."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from cpprb_like._machine import waiting
from cpprb_like._machine.waiting import LONGEST, PART, SHORTEST, YIELDING, wait_until


class Clock:
    """A clock that only sleeps move on, and looks a little."""

    def __init__(self, look: float = 1e-6) -> None:
        self.now = 1000.0
        self.sleeps: list[float] = []
        self._look = look

    def monotonic(self) -> float:
        """The time."""
        self.now += self._look
        return self.now

    def sleep(self, seconds: float) -> None:
        """Move on."""
        self.sleeps.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of all waits."""
    clock = Clock()
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


@pytest.mark.parametrize("seconds", [1e-5, 2e-4, 1e-3, 1e-2, 0.5])
def test_little_is_waited_in_vain(clock: Clock, seconds: float) -> None:
    """A tenth of what had to be waited, or the shortest sleep; and never more than 2 ms.

    Sleeps that double waited as long again: two sides in turn slept 1 ms for each row.
    """
    until = clock.now + seconds
    assert wait_until(lambda: clock.now >= until, None, sleep=clock.sleep)
    late = clock.now - until
    assert late <= min(max(2 * SHORTEST, 1.2 * PART * seconds), 2 * LONGEST)
    assert max(clock.sleeps, default=0.0) <= LONGEST
    assert all(pause == 0 for pause in clock.sleeps) or seconds > YIELDING


@pytest.mark.parametrize("timeout", [0.0, 1e-3, 0.3])
def test_a_wait_ends_in_time(clock: Clock, timeout: float) -> None:
    """With the error, or with what the last look found; the first look is always made."""
    began = clock.now
    looks: list[Any] = []

    def look() -> int:
        looks.append(clock.now)
        return 0

    with pytest.raises(KeyError, match="why"):
        wait_until(look, timeout, lambda: KeyError("why"), sleep=clock.sleep)
    assert timeout <= clock.now - began < timeout + 1e-3
    assert looks
    assert wait_until(look, timeout, sleep=clock.sleep) == 0
    assert wait_until(lambda: "found", 0.0) == "found"


def test_a_time_out_counts_from_when_it_is_said(clock: Clock) -> None:
    """And not at all before."""
    began = clock.now

    def since() -> float | None:
        return began + 5.0 if clock.now >= began + 5.0 else None

    with pytest.raises(TimeoutError):
        wait_until(lambda: False, 1.0, TimeoutError, since=since, sleep=clock.sleep)
    assert math.isclose(clock.now - began, 6.0, abs_tol=0.01)
