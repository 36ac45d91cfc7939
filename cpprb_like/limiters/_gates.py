"""Gates: a call that its limiter does not allow yet waits here, for a bounded time.

Waiting is a short sleep and another look at the counters. There is nothing that somebody else would
have to do before he dies: no lock, no signal. The time of a batch that is drawn ahead counts from
when it is asked for. Not here: the counters (``_counters``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cpprb_like._c.drawn_ahead import asked_since, sleep
from cpprb_like.errors import RateLimitTimeoutError
from cpprb_like.limiters._counters import Counters, shape_for
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

FIRST_SLEEP, LONGEST_SLEEP = 50e-6, 2e-3  # seconds; a batch of CartPole takes 100 microseconds


def words_for(writers: int, readers: int) -> tuple[int, int]:
    """The shape of the memory of the counters."""
    return shape_for(writers + readers)


def open_counters(
    limiter: RateLimiter, words: NDArray[np.int64], writers: int, readers: int
) -> Counters:
    """The counters of a limiter, in memory of the shape that ``words_for`` says."""
    return Counters(words, writers, readers, *limiter.bounds)


def begin_balanced(limiter: RateLimiter, counters: Counters, rows: int) -> None:
    """Let a limiter begin with ``rows`` that are there, in the middle of what it allows.

    So a buffer that was loaded, or filled before, lets both sides go on. The counts of the program
    that saved it would be those of a moment at which one side waited, most often: they would hold
    it for ever if the other side is not what it was.
    """
    ratio, _, low, high = limiter.bounds
    samples = 0
    if np.isfinite(low) and np.isfinite(high):
        samples = max(0, round(rows * ratio - (low + high) / 2))
    counters.set_base(rows, samples)


class Peers:
    """Who is at the other gates. Here: threads of this process, which do not die alone."""

    def void_dead(self) -> None:
        """Void what calls of dead processes have announced, or that they wait."""

    def describe(self, first: int, stop: int) -> str:  # noqa: ARG002
        """Who has the lines from ``first`` to ``stop``, for messages."""
        return ""


class Gate:
    """One end of a limiter: the line of a writer, or of a reader.

    ``run`` makes a call of n items when they are allowed: ``begin`` waits until they are, ``end``
    counts them, and ``cancel`` takes them back if the call failed.
    """

    WHAT = ""
    OTHERS = ""

    def __init__(
        self, limiter: RateLimiter, counters: Counters, line: int, peers: Peers | None = None
    ) -> None:
        self.limiter = limiter
        self.counters = counters
        self.line = line
        self.peers = Peers() if peers is None else peers
        self._waiting = 0
        counters.use(line)

    def run(self, n: int, call: Callable[..., Found], /, *arguments: Any, **options: Any) -> Found:
        """Make a call that adds or draws n items, when the limiter allows it."""
        self.begin(n)
        try:
            found = call(*arguments, **options)
        except BaseException:
            self.cancel(n)
            raise
        self.end(n)
        return found

    def begin(self, n: int, timeout: float | None = None) -> None:
        """Wait until n items are allowed; ``RateLimitTimeoutError`` when the time is out."""
        if not self._try(n):
            self._wait(n, self.limiter.timeout if timeout is None else timeout)

    def end(self, n: int) -> None:
        """The n items have been added, or drawn."""
        self.counters.end(self.line, n, time.monotonic_ns())

    def cancel(self, n: int) -> None:
        """The call that began has failed."""
        self.counters.cancel(self.line, n)

    def _try(self, n: int) -> bool:
        """Announce n items, if the limiter allows them now."""
        raise NotImplementedError

    def _check_possible(self, n: int) -> None:
        """Raise ``ValueError`` if n items are more than the limiter can ever allow at once."""
        raise NotImplementedError

    def _reason(self, n: int) -> str:
        """Why n items are not allowed now."""
        raise NotImplementedError

    def _wait(self, n: int, timeout: float | None) -> None:
        self._check_possible(n)
        began = time.monotonic_ns()
        pause = FIRST_SLEEP
        self._waiting += 1
        self.counters.begin_wait(self.line, n, began)
        try:
            while True:
                since = asked_since(began)
                left = np.inf
                if timeout is not None and since is not None:
                    left = timeout - (time.monotonic_ns() - since) / 1e9
                if left <= 0:
                    raise RateLimitTimeoutError(self._message(n, began))
                sleep(min(pause, left))
                pause = min(2 * pause, LONGEST_SLEEP)
                self.peers.void_dead()
                if self._try(n):
                    return
        finally:
            self._waiting -= 1
            waited = time.monotonic_ns() - began
            self.counters.end_wait(self.line, waited, self._waiting > 0)

    def _message(self, n: int, began: int) -> str:
        now = time.monotonic_ns()
        first, stop = self._other_lines()
        others = [self.counters.waits(line, now) for line in range(first, stop)]
        last = max(when for *_, when in others)
        heard = f"the last came {(now - last) / 1e9:.1f} s ago" if last else "none came so far"
        stuck = ""
        if any(wanted for _, _, wanted, _ in others):
            stuck = "; the other side waits too, so error_buffer is too small for these batches"
        found = self.peers.describe(first, stop)
        return (
            f"{self.WHAT} of {n}: waited {(now - began) / 1e9:.1f} s for {self.OTHERS}, of which "
            f"{heard}{stuck}; {self._reason(n)}; {self.limiter}" + (f"\n{found}" if found else "")
        )

    def _other_lines(self) -> tuple[int, int]:
        """The lines of those for whom this side waits: the first, and the one after the last."""
        raise NotImplementedError


class InsertGate(Gate):
    """The gate of ``add``, to a buffer that says how many rows it holds."""

    WHAT, OTHERS = "add", "samples"

    def __init__(
        self,
        limiter: RateLimiter,
        counters: Counters,
        line: int,
        rows: Callable[[], int],
        peers: Peers | None = None,
    ) -> None:
        super().__init__(limiter, counters, line, peers)
        self._rows = rows

    def end(self, n: int) -> None:
        """The n rows have been added."""
        self.count_rows()
        super().end(n)

    def count_rows(self) -> None:
        """The rows that are held have changed."""
        self.counters.set_rows(self.line, self._rows())

    def _try(self, n: int) -> bool:
        return self.counters.begin_insert(self.line, n)

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
        return (
            f"{inserts} inserts, {samples} samples, {rows} rows: with {n} more inserts inserts * "
            f"samples_per_insert - samples would be {self.counters.balance(n_inserts=n):g}, of at "
            f"most {self.limiter.bounds.max_diff:g}"
        )


class SampleGate(Gate):
    """The gate of ``sample``."""

    WHAT, OTHERS = "sample", "inserts"

    def _try(self, n: int) -> bool:
        return self.counters.begin_sample(self.line, n)

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
        return (
            f"{inserts} inserts, {samples} samples, {rows} rows: with {n} more samples inserts * "
            f"samples_per_insert - samples would be {self.counters.balance(n_samples=n):g}, of at "
            f"least {low:g}"
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
    """What the counters say now."""
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
