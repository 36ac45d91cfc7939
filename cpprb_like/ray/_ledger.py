"""``Ledger``: counts and losses of all hosts of a cluster, and the credit of its limiter.

It holds no rows, and no call of ``add`` or ``sample`` waits for it but those that a limiter holds.
After a crash it is started again, and the hosts tell it what they know.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

from cpprb_like.limiters import RateLimiter
from cpprb_like.ray._hosts import About, Loss

__all__ = ["Ledger"]


@dataclass
class Shards:
    """What is known of the shards of one host."""

    about: About
    rows: int = 0
    credit: list[int] = field(default_factory=list)


class Ledger:
    """The Ray actor that a cluster has once.

    Parameters
    ----------
    limiter : RateLimiter or None
        That of the cluster, whose counts are those of all hosts.
    """

    def __init__(self, limiter: RateLimiter | None) -> None:
        self._limiter = limiter
        self._hosts: dict[int, Shards] = {}
        self._losses: list[Loss] = []
        self._gone = 0  # rows of memory that was lost, which were inserted all the same
        self._samples = 0
        self._waits = [0, 0]  # calls that waited: of ``sample``, of ``add``
        self._waited = [0.0, 0.0]
        self._version = 0
        self._parameters: list[Any] = []

    # ------------------------------------------------------------------ hosts

    def started(self, about: About, saved_at: float) -> None:
        """A host is there, for the first time or again, with rows that were saved at some time."""
        known = self._hosts.get(about.number)
        if known is not None and known.about.identity != about.identity:
            before, now = sum(known.about.written), sum(about.written)
            moment = known.about.moment
            since = saved_at or moment
            self._losses.append(Loss(about.number, max(0, before - now), max(0.0, moment - since)))
            self._gone += max(0, before - now)
        self._hosts[about.number] = Shards(about, credit=list(about.written))

    def report(self, about: About, rows: int, wanted: list[int]) -> list[int]:
        """A host has written so many rows; the credit of each of its shards.

        ``wanted`` has of each shard how many rows a call that waits adds; -1 without an actor.
        """
        known = self._hosts.get(about.number)
        if known is None or known.about.identity != about.identity:
            self.started(about, 0.0)
            known = self._hosts[about.number]
        known.about, known.rows = about, rows
        if self._limiter is not None:
            self._grant(known, wanted)
        return known.credit

    def _grant(self, known: Shards, wanted: list[int]) -> None:
        """Share what may still be inserted among the actors that have used most of their credit."""
        written = known.about.written
        for number, n in enumerate(wanted):
            if n < 0:
                known.credit[number] = written[number]
        given = sum(sum(one.credit) for one in self._hosts.values())
        free = self._most_inserts() - self._gone - given
        actors = len(self._hosts) * max(1, sum(n >= 0 for n in wanted))
        for number, n in enumerate(wanted):
            ahead = known.credit[number] - written[number]
            more = max(n, 1 if free <= 2 * actors else free // (2 * actors)) - ahead
            if n >= 0 and more > 0 and free > 0:
                # A call that waits for more than there is gets it all: the rest comes later.
                known.credit[number] += min(more, free)
                free -= min(more, free)

    def _most_inserts(self) -> int:
        """Rows that may be inserted in all, as many as were drawn by now."""
        assert self._limiter is not None
        ratio, min_size, _, high = self._limiter.bounds
        if math.isinf(high):
            return 2**62
        gone = self.inserts - self.rows
        return max(int(min_size) + gone, math.floor((high + self._samples) / ratio))

    @property
    def inserts(self) -> int:
        """Rows that were ever written."""
        return self._gone + sum(sum(one.about.written) for one in self._hosts.values())

    @property
    def rows(self) -> int:
        """Rows that are held."""
        return sum(one.rows for one in self._hosts.values())

    def hosts(self) -> dict[int, About]:
        """Where the hosts are, by their numbers."""
        return {number: one.about for number, one in self._hosts.items()}

    def losses(self) -> list[Loss]:
        """What was lost so far."""
        return list(self._losses)

    # ------------------------------------------------------------------ draws

    def take(self, n: int, most: int) -> int:
        """How many batches of n items may be drawn now, ``most`` at most; they count as drawn."""
        count = most
        if self._limiter is not None:
            ratio, min_size, low, _ = self._limiter.bounds
            if self.rows < min_size:
                count = 0
            elif math.isfinite(low):
                left = self.inserts * ratio - self._samples - low
                count = min(most, max(0, int(left // n)) if n else most)
        self._samples += count * n
        return count

    def give_back(self, n: int) -> None:
        """So many items were not drawn after all."""
        self._samples -= n

    def waited(self, kind: int, seconds: float) -> None:
        """A call of ``sample`` (0) or of ``add`` (1) waited for the other side."""
        self._waits[kind] += 1
        self._waited[kind] += seconds

    def stats(self) -> dict[str, float]:
        """See ``ClusterReplay.stats``."""
        return {
            "inserts": self.inserts,
            "samples": self._samples,
            "rows": self.rows,
            "waits_for_inserts": self._waits[0],
            "waits_for_samples": self._waits[1],
            "seconds_waiting_for_inserts": self._waited[0],
            "seconds_waiting_for_samples": self._waited[1],
        }

    def why(self) -> str:
        """What is waited for, for messages."""
        now = time.time()
        hosts = ", ".join(
            f"host {number} wrote {sum(one.about.written)}, {now - one.about.moment:.1f} s ago"
            for number, one in sorted(self._hosts.items())
        )
        return (
            f"{self.inserts} inserts, {self._samples} samples, {self.rows} rows; {self._limiter}; "
            f"{hosts or 'no host has come yet'}"
        )

    # ------------------------------------------------------------------ parameters

    def publish(self, held: list[Any]) -> int:
        """The next version of the parameters, with a reference for hosts that start later."""
        self._version += 1
        self._parameters = held
        return self._version

    def parameters(self) -> tuple[int, list[Any]]:
        """The newest version, and the reference to it."""
        return self._version, self._parameters
