"""Gates: a call that its limiter does not allow yet waits here, for a bounded time.

The time of a batch that is drawn ahead counts from the request for it. Not here: the counters
and the order of calls that wait (``_counters``), and the wait itself (``_machine.waiting``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cpprb_like._machine.prefetch_state import sleep, wanted_since
from cpprb_like._machine.waiting import wait_until
from cpprb_like.errors import RateLimitTimeoutError
from cpprb_like.limiters._counters import Counters, Turn, shape_for
from cpprb_like.limiters._policies import RateLimiter

__all__ = [
    "InsertGate",
    "LimiterStats",
    "Peers",
    "SampleGate",
    "begin_balanced",
    "open_counters",
    "stats",
    "words_for",
]

Found = TypeVar("Found")

ALIVE = 1e-3  # seconds of a wait before the processes of the other side are checked for life


def words_for(writers: int, readers: int) -> tuple[int, int]:
    """The shape of the memory of the counters."""
    return shape_for(writers + readers)


def open_counters(
    limiter: RateLimiter, words: NDArray[np.int64], writers: int, readers: int
) -> Counters:
    """The counters of a limiter, in memory of the shape that ``words_for`` says."""
    return Counters(words, writers, readers, *limiter.bounds)


def begin_balanced(limiter: RateLimiter, counters: Counters, rows: int) -> None:
    """Set the counts of a limiter for ``rows`` stored rows to the middle of what it allows.

    So both sides of a buffer that was loaded, or filled before, can go on. Saved counts are most
    often those of a moment at which one side waited. They would block that side for ever if the
    other side has changed.
    """
    ratio, _, low, high = limiter.bounds
    samples = 0
    if np.isfinite(low) and np.isfinite(high):
        samples = max(0, round(rows * ratio - (low + high) / 2))
    counters.set_base(rows, samples)


class Peers:
    """The other ends of a limiter. This class: threads, which do not die without their process."""

    def release_dead(self) -> None:
        """Take back announcements and waits of dead processes."""

    def describe(self, first: int, stop: int) -> str:  # noqa: ARG002
        """Processes that have the lines from ``first`` to ``stop``, for messages."""
        return ""


class Gate:
    """One end of a limiter: the line of a writer, or of a reader.

    Parameters
    ----------
    limiter : RateLimiter
        What is allowed.
    counters : Counters
        Its counters.
    line : int
        Of this end.
    peers : Peers, optional
        The other ends.
    held : callable, optional
        Of a writer: returns its buffer, or None after its end, as a weak reference does.
    """

    WHAT = ""
    OTHERS = ""

    def __init__(
        self,
        limiter: RateLimiter,
        counters: Counters,
        line: int,
        peers: Peers | None = None,
        held: Callable[[], Any] | None = None,
    ) -> None:
        self.limiter = limiter
        self.counters = counters
        self.line = line
        self.peers = Peers() if peers is None else peers
        self._held = held
        counters.use(line)
        self.count_rows()

    def run(self, n: int, call: Callable[..., Found], /, *arguments: Any, **options: Any) -> Found:
        """Make a call that adds or draws n items, when the limiter allows it."""
        turn = Turn(self.counters, self.line, n)
        try:
            if not turn.begin():
                self.wait(turn, self.limiter.timeout)
            found = call(*arguments, **options)
            turn.end(time.monotonic_ns(), self._held)
            return found
        finally:
            turn.close(self._held)  # one call of C: no signal handler can come before it

    def count_rows(self) -> None:
        """Note how many rows a writer holds now."""
        buffer = None if self._held is None else self._held()
        if buffer is not None:
            self.counters.set_rows(self.line, len(buffer.ring))

    def _check_possible(self, n: int) -> None:
        """Raise ``ValueError`` if n items are more than the limiter can ever allow at once."""
        raise NotImplementedError

    def _reason(self, n: int) -> str:
        """Why n items are not allowed now."""
        raise NotImplementedError

    def wait(self, turn: Turn, timeout: float | None) -> None:
        """Wait until a turn has begun; ``RateLimitTimeoutError`` when the time is out."""
        self._check_possible(turn.n)
        began = time.monotonic()

        def look() -> bool:
            now = time.monotonic_ns()
            turn.wait(now, wanted_since(began) is not None)
            if time.monotonic() - began > ALIVE:
                self.peers.release_dead()
            return turn.begin(now)

        wait_until(
            look,
            timeout,
            lambda: RateLimitTimeoutError(self._message(turn, began)),
            since=lambda: wanted_since(began),
            sleep=sleep,
        )

    def _message(self, turn: Turn, began: float) -> str:
        n, now = turn.n, time.monotonic_ns()
        first, stop = self._other_lines()
        others = [self.counters.waits(line, now) for line in range(first, stop)]
        last = max(when for *_, when in others)
        heard = f"the last came {(now - last) / 1e9:.1f} s ago" if last else "none came so far"
        stuck = ""
        if any(wanted for _, _, wanted, _ in others):
            stuck = "; the other side waits too, so error_buffer is too small for these batches"
        reason = self._reason(n)
        if turn.behind:
            reason = f"{self.WHAT} of {turn.behind} has waited for longer, and goes first"
        found = self.peers.describe(first, stop)
        return (
            f"{self.WHAT} of {n}: waited {time.monotonic() - began:.1f} s for {self.OTHERS}, of "
            f"which {heard}{stuck}; {reason}; {self.limiter}" + (f"\n{found}" if found else "")
        )

    def _other_lines(self) -> tuple[int, int]:
        """The lines for which this side waits: the first, and the one after the last."""
        raise NotImplementedError


class InsertGate(Gate):
    """The gate of ``add``."""

    WHAT, OTHERS = "add", "samples"

    def _other_lines(self) -> tuple[int, int]:
        return self.counters.writers, self.counters.lines

    def _check_possible(self, n: int) -> None:
        ratio, min_size, low, high = self.limiter.bounds
        least = min(low, self.counters.balance())
        if n > min_size and n * ratio + least > high:
            raise ValueError(
                f"add of {n} rows in one call: {self.limiter} can never allow that; add fewer at "
                "once, or take a greater error_buffer or size"
            )

    def _reason(self, n: int) -> str:
        inserts, rows, samples = self.counters.totals()
        others, _ = self.counters.at_work()
        more = f" and {others} of calls at work" if others else ""
        balance = self.counters.balance(n_inserts=n + others)
        return (
            f"{inserts} inserts, {samples} samples, {rows} rows: with {n} more inserts{more} "
            f"inserts * samples_per_insert - samples would be {balance:g}, of at most "
            f"{self.limiter.bounds.max_diff:g}"
        )


class SampleGate(Gate):
    """The gate of ``sample``."""

    WHAT, OTHERS = "sample", "inserts"

    def _other_lines(self) -> tuple[int, int]:
        return 0, self.counters.writers

    def _check_possible(self, n: int) -> None:
        ratio, min_size, low, high = self.limiter.bounds
        most = max(high, min_size * ratio, self.counters.balance())
        if n > most - low:
            raise ValueError(
                f"sample of {n} items in one call: {self.limiter} can never allow that; draw "
                "smaller batches, or take a greater error_buffer or size"
            )

    def _reason(self, n: int) -> str:
        inserts, rows, samples = self.counters.totals()
        _, min_size, low, _ = self.limiter.bounds
        if rows < min_size:
            return f"{rows} of {min_size} rows"
        _, others = self.counters.at_work()
        more = f" and {others} of calls at work" if others else ""
        balance = self.counters.balance(n_samples=n + others)
        return (
            f"{inserts} inserts, {samples} samples, {rows} rows: with {n} more samples{more} "
            f"inserts * samples_per_insert - samples would be {balance:g}, of at least {low:g}"
        )


@dataclass(frozen=True)
class LimiterStats:
    """What a limiter has counted.

    Attributes
    ----------
    inserts, samples : int
        Rows inserted, and items sampled, since the limiter began.
    rows : int
        Rows that are held now.
    waits_for_inserts, waits_for_samples : int
        Calls of ``sample``, and of ``add``, that had to wait for the other side.
    seconds_waiting_for_inserts, seconds_waiting_for_samples : float
        For how long, all of them together, those that wait now included.
    """

    inserts: int
    samples: int
    rows: int
    waits_for_inserts: int
    waits_for_samples: int
    seconds_waiting_for_inserts: float
    seconds_waiting_for_samples: float


def stats(counters: Counters) -> LimiterStats:
    """Statistics from the counters, as they are now."""
    inserts, rows, samples = counters.totals()
    now = time.monotonic_ns()
    writers = [counters.waits(line, now) for line in range(counters.writers)]
    readers = [counters.waits(line, now) for line in range(counters.writers, counters.lines)]

    def seconds(lines: list[tuple[int, int, int, int]]) -> float:
        return sum(waited for _, waited, _, _ in lines) / 1e9

    return LimiterStats(
        inserts=inserts,
        samples=samples,
        rows=rows,
        waits_for_inserts=sum(waits for waits, *_ in readers),
        waits_for_samples=sum(waits for waits, *_ in writers),
        seconds_waiting_for_inserts=seconds(readers),
        seconds_waiting_for_samples=seconds(writers),
    )
