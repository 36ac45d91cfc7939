"""``Ledger``: counts and losses of all hosts of a cluster, and the credit of its limiter.

The ledger holds no rows. Only calls of ``add`` and ``sample`` that a limiter holds wait for it.
Each host keeps a copy of the ledger's counts, at most some 50 ms old. After a crash Ray restarts
the ledger, which continues from the newest copy.
"""

from __future__ import annotations

import math
import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cpprb_like.limiters import RateLimiter
from cpprb_like.limiters._formulas import (
    balance_of,
    most_inserts,
    room_for_samples,
    samples_to_begin,
)
from cpprb_like.ray._credit import CREDIT_LEASE
from cpprb_like.ray._messages import SILENT_WRITER, About, Incarnation, Loss


@dataclass
class Shards:
    """The state of the shards of one host."""

    about: About  # last report of the host
    since: float  # time of the first report
    rows: int = 0  # number of rows that the host holds
    left: float | None = None  # rows that left as a room was full; None without rooms
    # Number and total seconds of calls of ``add`` to its memory that waited.
    waits: tuple[int, float] = (0, 0.0)
    # Rows that may be written to each shard in all.
    credit: list[int] = field(default_factory=list)
    # Time of the last report, by ``time.monotonic`` of the process of the ledger.
    heard: float = field(default_factory=time.monotonic)
    silent: list[int] = field(default_factory=list)  # shards of silent writers of other nodes

    @property
    def promised(self) -> int:
        """Rows that were written or may be written by credit; of a silent host the former only.

        Actors of a silent host may still use their credit, which then is too much. Without this
        all others would wait for a host that does not come back.
        """
        is_silent = time.monotonic() - self.heard > CREDIT_LEASE
        written = self.about.written
        return sum(written if is_silent else map(max, written, self.credit))


@dataclass(frozen=True)
class Lost:
    """A memory of a host that was lost."""

    loss: Loss  # loss by the last report of the memory
    waits: tuple[int, float]  # number and total seconds of waits of ``add`` for the limiter
    written: tuple[int, ...]  # rows of each shard by the last report
    begun: int  # rows of the checkpoint with which the next memory began

    def with_rows(self, wrote: Mapping[int, int]) -> Loss:
        """The loss, with the rows of shards that their writers know of."""
        rows = sum(max(n, wrote.get(shard, 0)) for shard, n in enumerate(self.written))
        return replace(self.loss, rows=max(0, rows - self.begun))


@dataclass
class Counts:
    """The counts of a ledger, besides the rows of present hosts."""

    samples: int = 0  # number of items drawn
    waits: int = 0  # number of calls of ``sample`` that waited for the limiter
    seconds: float = 0.0  # total time of these calls
    version: int = 0  # version of the newest parameters
    gone_before: int = 0  # rows that were lost before the save with which the cluster began
    # Lost memories by their identity, oldest first.
    lost: dict[str, Lost] = field(default_factory=dict)
    # For lost memories, the rows of shards that writers of other nodes had written for sure.
    wrote: dict[str, dict[int, int]] = field(default_factory=dict)
    shift: int = 0  # items that count as drawn besides ``samples``, as the cluster was loaded
    # Whether the first call that the limiter holds may still change ``shift``.
    is_unsettled: bool = False

    @property
    def drawn(self) -> int:
        """Number of items that the limiter counts as drawn."""
        return self.samples + self.shift

    @property
    def gone(self) -> int:
        """Rows that were lost, which were inserted all the same."""
        return self.gone_before + sum(loss.rows for loss in self.losses())

    def losses(self) -> list[Loss]:
        """The losses, oldest first."""
        return [one.with_rows(self.wrote.get(name, {})) for name, one in self.lost.items()]

    def note_wrote(self, identity: str, shard: int, rows: int) -> None:
        """Note rows of a shard that its writer had written for sure."""
        shards = self.wrote.setdefault(identity, {})
        shards[shard] = max(rows, shards.get(shard, 0))

    def __add__(self, other: Counts) -> Counts:
        """The counts of one ledger after another."""
        both = Counts(
            self.samples + other.samples,
            self.waits + other.waits,
            self.seconds + other.seconds,
            self.version + other.version,
            self.gone_before + other.gone_before,
            {**self.lost, **other.lost},
            shift=self.shift + other.shift,
            is_unsettled=self.is_unsettled and not other.shift,
        )
        for one in self, other:
            for identity, shards in one.wrote.items():
                for shard, rows in shards.items():
                    both.note_wrote(identity, shard, rows)
        return both


@dataclass(frozen=True)
class Copy:
    """The state of a ledger, which a host keeps for the next one."""

    ledger: str  # name of the process that made the copy
    moment: float  # time of the copy, by ``time.time``
    counts: Counts  # counts of all ledgers so far
    hosts: dict[int, Shards]  # hosts by their numbers


class Ledger:
    """The single Ray actor of a cluster that keeps its counts, from those of a save on."""

    def __init__(self, limiter: RateLimiter | None, counts: Counts) -> None:
        self._limiter = limiter
        self._name = uuid.uuid4().hex
        self._before, self._own = counts, Counts()  # of ledgers before, and of this one
        self._copied = 0.0  # when the copy was made from which it goes on
        self._hosts: dict[int, Shards] = {}
        self._parameters: list[Any] = []

    def pid(self) -> int:
        """The process of the ledger."""
        return os.getpid()

    @property
    def _counts(self) -> Counts:
        return self._before + self._own

    # ------------------------------------------------------------------ hosts

    def started(self, about: About) -> None:
        """Record a host that started or restarted."""
        known = self._hosts.get(about.number)
        found = Shards(about, about.moment, credit=list(about.written))
        if known is not None and about.is_before(known.about):
            return  # a late call of a process that has died
        if known is not None:
            self._note_loss(known, found)
            found.since = known.since
        self._hosts[about.number] = found

    def _note_loss(self, known: Shards, found: Shards) -> None:
        """Count what a host lost, if it has other memory than before.

        A loss is noted more than once after a crash of the ledger. The newest count of the rows
        that were there is the right one.
        """
        before, now = known.about, found.about
        if before.identity == now.identity or now.is_before(before):
            return
        lost = before.identity, before.written, before.moment, known.waits
        for after in now.after(before.identity):
            self._note_lost(lost, after, now.number, known.since)
            # Of a memory between two that were heard of, the loaded rows are known.
            lost = after.identity, after.loaded, after.moment, (0, 0.0)

    def _note_lost(
        self,
        lost: tuple[str, tuple[int, ...], float, tuple[int, float]],
        after: Incarnation,
        host: int,
        since: float,
    ) -> None:
        """Note the loss of a memory: identity, rows of each shard, time of these, and waits."""
        identity, written, moment, waits = lost
        noted = self._counts.lost.get(identity)
        if noted is not None and noted.loss.moment >= moment:
            return
        begun = sum(after.loaded)
        seconds = max(0.0, moment - (after.saved_at or since))
        loss = Loss(host, max(0, sum(written) - begun), seconds, moment)
        self._own.lost[identity] = Lost(loss, waits, written, begun)

    def wrote(self, written: list[tuple[str, int, int]]) -> None:
        """Note what writers know of lost memories: identity, shard, and rows of the shard.

        These rows may have been written after the last report of the memory.
        """
        for identity, shard, rows in written:
            self._own.note_wrote(identity, shard, rows)

    def report(
        self,
        about: About,
        rows: int,
        left: float | None,
        wanted: list[int],
        waits: tuple[int, float],
        copy: Copy | None,
    ) -> tuple[list[int], Copy]:
        """Take the report of a host; returns the credit of its shards, and a copy to keep.

        ``rows`` are held, and ``left`` left early as a room was full; None without rooms.
        ``wanted`` has for each shard the number of rows of a waiting call, or ``NOBODY``, or
        ``SILENT_WRITER``: the credit of these is taken back.
        ``waits`` are the number of completed waits and their seconds. ``copy`` is the copy that the
        host keeps.
        """
        if copy is not None and copy.ledger != self._name and copy.moment > self._copied:
            self._go_on(copy)
        known = self._hosts.get(about.number)
        if known is None or known.about.identity != about.identity:
            self.started(about)
            known = self._hosts[about.number]
        if known.about.identity == about.identity:
            known.about, known.rows, known.left, known.waits = about, rows, left, waits
            known.heard = time.monotonic()
        if self._limiter is not None:
            self._grant(known, wanted)
        return known.credit, Copy(self._name, time.time(), self._counts, self._hosts)

    def _go_on(self, copy: Copy) -> None:
        """Continue from the counts of a previous ledger."""
        self._before, self._copied = copy.counts, copy.moment
        for number, known in copy.hosts.items():
            known.heard = time.monotonic()  # of another process until now
            found = self._hosts.setdefault(number, known)
            if found.about.is_before(known.about) or known.about.moment > found.about.moment:
                known, found = found, known
                self._hosts[number] = found
            self._note_loss(known, found)
            found.since = min(known.since, found.since)

    # ------------------------------------------------------------------ the limiter

    def begin_balanced(self, written: int) -> None:
        """Begin in the middle of the range, with the rows that the hosts of a cluster loaded.

        See ``begin_balanced`` of the limiters for the reason.
        """
        if self._limiter is None or not written:
            return
        drawn = samples_to_begin(self._limiter.bounds, self._counts.gone + written)
        if drawn is not None:
            self._before.shift = drawn - self._before.samples
            self._before.is_unsettled = True

    def _settle(self, room: float) -> None:
        """Raise the balance by ``room``, once after a load: the limiter holds a call."""
        if self._counts.is_unsettled and math.isfinite(room):
            self._own.shift = -math.trunc(room)

    def _grant(self, known: Shards, wanted: list[int]) -> None:
        """Share the remaining inserts among the actors that have used most of their credit."""
        assert self._limiter is not None
        bounds = self._limiter.bounds
        written = known.about.written
        known.silent = [number for number, n in enumerate(wanted) if n == SILENT_WRITER]
        for number, n in enumerate(wanted):
            if n < 0:
                known.credit[number] = written[number]
        given = sum(one.promised for one in self._hosts.values())
        free = self._most_inserts() - self._counts.gone - given
        if any(n > known.credit[k] - written[k] + free for k, n in enumerate(wanted) if n > 0):
            self._settle(-room_for_samples(bounds, self.inserts, self._counts.drawn))
            free = self._most_inserts() - self._counts.gone - given
        actors = len(self._hosts) * max(1, sum(n >= 0 for n in wanted))
        for number, n in enumerate(wanted):
            ahead = known.credit[number] - written[number]
            more = max(n, 1 if free <= 2 * actors else free // (2 * actors)) - ahead
            if n >= 0 and more > 0 and free > 0:
                # A call that waits for more than there is gets it all: the rest comes later.
                known.credit[number] += min(more, free)
                free -= min(more, free)

    def _most_inserts(self) -> int:
        """Number of rows that may be inserted in all, given the draws so far."""
        assert self._limiter is not None
        deletes = self.inserts - self.rows
        return most_inserts(self._limiter.bounds, self._counts.drawn, deletes)

    @property
    def inserts(self) -> int:
        """Number of rows that were ever written."""
        return self._counts.gone + sum(sum(one.about.written) for one in self._hosts.values())

    @property
    def rows(self) -> int:
        """Number of rows held now."""
        return sum(one.rows for one in self._hosts.values())

    def heard(self) -> dict[int, tuple[About, float]]:
        """The last report of each host, and its age in seconds."""
        now = time.monotonic()
        return {number: (one.about, now - one.heard) for number, one in self._hosts.items()}

    def counts(self) -> dict[str, int]:
        """The counts that a save of the cluster includes."""
        return {"samples": self._counts.samples, "gone_before": self._counts.gone}

    def losses(self) -> list[Loss]:
        """The losses so far."""
        return self._counts.losses()

    # ------------------------------------------------------------------ draws

    def take(self, n: int, most: int) -> int:
        """How many batches of n items may be drawn now, at most ``most``; they count as drawn."""
        count = most
        if self._limiter is not None:
            bounds, inserts = self._limiter.bounds, self.inserts
            if self.rows < bounds.min_size:
                count = 0
            elif math.isfinite(bounds.min_diff):
                if room_for_samples(bounds, inserts, self._counts.drawn) < n:
                    balance = balance_of(bounds, inserts, self._counts.drawn)
                    self._settle(bounds.max_diff - balance)
                room = room_for_samples(bounds, inserts, self._counts.drawn)
                count = min(most, max(0, int(room // n)) if n else most)
        self._own.samples += count * n
        return count

    def give_back(self, n: int) -> None:
        """Take n items out of the counts, as they were not drawn after all."""
        self._own.samples -= n

    def waited(self, seconds: float) -> None:
        """Count a call of ``sample`` that waited for inserts."""
        self._own.waits += 1
        self._own.seconds += seconds

    def drew(self, n: int) -> None:
        """Count the items that a learner drew without a limiter."""
        self._own.samples += n

    def stats(self) -> dict[str, float]:
        counts, now = self._counts, time.time()
        waits = [one.waits for one in self._hosts.values()]
        waits += [one.waits for one in counts.lost.values()]
        left = {k: one.left for k, one in sorted(self._hosts.items()) if one.left is not None}
        of_rooms = {f"left_for_room_of_host_{number}": rows for number, rows in left.items()}
        if left:
            of_rooms["left_for_room"] = sum(left.values())
        return {
            "inserts": self.inserts,
            "samples": counts.samples,
            "rows": self.rows,
            "rows_lost": counts.gone,
            "hosts": len(self._hosts),
            "age_of_counts": max((now - x.about.moment for x in self._hosts.values()), default=0.0),
            "waits_for_inserts": counts.waits,
            "waits_for_samples": sum(calls for calls, _ in waits),
            "seconds_waiting_for_inserts": counts.seconds,
            "seconds_waiting_for_samples": sum(seconds for _, seconds in waits),
            **of_rooms,
        }

    def why(self) -> str:
        """The reason why calls wait, for messages."""
        now, samples = time.time(), self._counts.samples
        hosts = ", ".join(
            f"host {number} wrote {sum(one.about.written)}, {now - one.about.moment:.1f} s ago"
            + (f", and writers of its shards {one.silent} are silent" if one.silent else "")
            for number, one in sorted(self._hosts.items())
        )
        return (
            f"{self.inserts} inserts, {samples} samples, {self.rows} rows; {self._limiter}; "
            f"{hosts or 'no host has come yet'}"
        )

    # ------------------------------------------------------------------ parameters

    def publish(self, held: list[Any]) -> int:
        """The next version of the parameters, with a reference for hosts that start later."""
        self._own.version += 1
        self._parameters = held
        return self._counts.version

    def parameters(self) -> tuple[int, list[Any]]:
        """The newest version, and the reference to it."""
        return self._counts.version, self._parameters
