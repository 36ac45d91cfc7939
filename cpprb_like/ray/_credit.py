"""``CreditedActor``: an actor of a host, which waits for the limiter of the cluster.

Each shard has words in shared memory: how many rows may be written to the shard in all, how many a
waiting call needs, and how long calls have waited. The host exchanges these words with the ledger.
So an actor with credit makes no call.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cpprb_like._machine.waiting import wait_until
from cpprb_like.errors import RateLimitTimeoutError
from cpprb_like.limiters import RateLimiter
from cpprb_like.limiters._formulas import check_add
from cpprb_like.limiters._gates import StepCounter
from cpprb_like.processes._limits import LimitedActor

CREDIT_LEASE = 5.0  # seconds after which the credit of a silent writer or host is taken back
CREDIT = "credit"  # file in the folder of the replay
# Words of a shard: rows that may be written to it in all, rows that a call waits for, calls that
# have waited, how long, and when the host brought counts of the ledger, by ``time.time_ns``.
WORDS = GIVEN, WANTED, WAITS, NANOSECONDS, HEARD = range(5)
Found = TypeVar("Found")


def note_wait(words: NDArray[np.int64], seconds: float) -> None:
    """Count a call that waited, in the words of its shard."""
    words[WAITS] += 1
    words[NANOSECONDS] += int(seconds * 1e9)


class Credit:
    """The gate of an actor: a call waits until its shard has credit for its rows."""

    def __init__(
        self, limiter: RateLimiter, words: NDArray[np.int64], held: Callable[[], Any]
    ) -> None:
        self._limiter, self._words, self._held = limiter, words, held

    def run(self, n: int, call: Callable[..., Found], /, *arguments: Any, **options: Any) -> Found:
        """Make a call that adds n rows, when there is credit for them."""
        self.wait(n)
        return call(*arguments, **options)

    def wait(self, n: int) -> None:
        """Wait for credit for n rows; ``RateLimitTimeoutError`` when the time is out."""
        if self._left() >= n:
            return
        check_add(self._limiter, n)
        began = time.monotonic()
        self._words[WANTED] = n
        try:
            wait_until(
                lambda: self._left() >= n,
                self._limiter.timeout,
                lambda: RateLimitTimeoutError(
                    f"add of {n}: waited {time.monotonic() - began:.1f} s for learners; the host "
                    f"brought their counts {self._age():.1f} s ago; {self._limiter}"
                ),
            )
        finally:
            self._words[WANTED] = 0
            note_wait(self._words, time.monotonic() - began)

    def _age(self) -> float:
        """Seconds since the host brought the counts of the ledger; infinity before."""
        heard = int(self._words[HEARD])
        return time.time() - heard / 1e9 if heard else math.inf

    def _left(self) -> int:
        return int(self._words[GIVEN]) - int(self._held().ring.written)

    def count_rows(self) -> None:
        """Do nothing, as the host counts the rows."""


class CreditedActor(LimitedActor):
    """An actor of a host whose cluster has a limiter."""

    def take_credit(self, limiter: RateLimiter, words: NDArray[np.int64]) -> None:
        """Wait for the credit of this shard from now on."""
        gate: Any = Credit(limiter, words, weakref.ref(self))
        self._inserts = gate
        self._steps = StepCounter(self.schema.fields, self.n_envs)
