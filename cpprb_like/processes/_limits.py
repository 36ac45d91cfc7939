"""The rate limiter of a shared replay: its counters in shared memory, and the ends that wait.

Each actor and each learner has a line of the counters, and only the process that holds its lock
writes to it. What a process had begun when it was killed is void: a process that waits finds the
lock free, and takes the announcement back. Not here: formulas, counters and waiting (``limiters``).
"""

from __future__ import annotations

import mmap
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cpprb_like.limiters._gates import (
    InsertGate,
    LimiterStats,
    Peers,
    SampleGate,
    begin_balanced,
    open_counters,
    stats,
    words_for,
)
from cpprb_like.limiters._policies import Backlog, MinSize, RateLimiter, SampleToInsertRatio
from cpprb_like.limiters._rate_limited import StepCounter
from cpprb_like.processes._folder import FileLock, is_locked, is_there, said_by
from cpprb_like.processes._shards import Actor

__all__ = ["LimitedActor", "Limits", "limiter_from_json", "limiter_to_json"]

FILE = "limiter"
KINDS = {kind.__name__: kind for kind in (MinSize, SampleToInsertRatio, Backlog)}


def limiter_to_json(limiter: RateLimiter | None) -> dict[str, Any] | None:
    """A limiter as the description of a replay has it."""
    if limiter is None:
        return None
    if type(limiter) not in KINDS.values():
        raise TypeError(f"limiter: expected one of {', '.join(KINDS)}, got {limiter!r}")
    return {"kind": type(limiter).__name__, **asdict(limiter)}  # type: ignore[call-overload]


def limiter_from_json(saved: Mapping[str, Any] | None) -> RateLimiter | None:
    """The limiter that a description has."""
    if saved is None:
        return None
    options = dict(saved)
    limiter: RateLimiter = KINDS[options.pop("kind")](**options)
    return limiter


class Limits(Peers):
    """The limiter of a shared replay, in one process.

    Parameters
    ----------
    folder : Path
        Of the replay.
    limiter : RateLimiter
        What is allowed.
    writers, readers : list of Path
        The lock of each actor, and of each learner.
    """

    def __init__(
        self, folder: Path, limiter: RateLimiter, writers: list[Path], readers: list[Path]
    ) -> None:
        self.limiter = limiter
        self._writers = len(writers)
        self._locks = [*writers, *readers]
        shape = words_for(len(writers), len(readers))
        with (folder / FILE).open("r+b") as file:
            memory = mmap.mmap(file.fileno(), int(np.prod(shape)) * 8)
        words = np.frombuffer(memory, np.int64).reshape(shape)
        self._counters = open_counters(limiter, words, len(writers), len(readers))

    @staticmethod
    def make(folder: Path, writers: int, readers: int) -> None:
        """Make the memory of the counters."""
        (folder / FILE).write_bytes(bytes(8 * int(np.prod(words_for(writers, readers)))))

    def begin(self, rows: list[int]) -> None:
        """Let the limiter begin with so many rows of each writer, in the middle of its range."""
        for line, held in enumerate(rows):
            self._counters.use(line)
            self._counters.set_rows(line, held)
        begin_balanced(self.limiter, self._counters, sum(rows))

    def inserts(self, number: int, held: Callable[[], Any]) -> InsertGate:
        """The gate of an actor, whose lock this process has just taken."""
        self._counters.void(number)
        return InsertGate(self.limiter, self._counters, number, self, held)

    def samples(self, number: int) -> SampleGate:
        """The gate of a learner, whose lock this process has just taken."""
        line = self._writers + number
        self._counters.void(line)
        return SampleGate(self.limiter, self._counters, line, self)

    def stats(self) -> LimiterStats:
        """What was inserted and sampled, and for how long each side waited for the other."""
        self.release_dead()
        return stats(self._counters)

    def release_dead(self) -> None:
        """See ``Peers.release_dead``."""
        for line, path in enumerate(self._locks):
            if self._counters.is_busy(line) and not is_locked(path):
                lock = FileLock(path)
                if lock.take(shared=True):  # so that no process takes the line over now
                    self._counters.void(line)
                    lock.release()

    def describe(self, first: int, stop: int) -> str:
        """See ``Peers.describe``."""
        said = {line: said_by(self._locks[line]) for line in range(first, stop)}
        found = [self._describe(line, about) for line, about in said.items() if about]
        what = "actor" if first == 0 else "learner"
        return "; ".join(found) or f"no {what} has come yet"

    def _describe(self, line: int, about: dict[str, Any]) -> str:
        is_actor = line < self._writers
        what, number = ("actor", line) if is_actor else ("learner", line - self._writers)
        path = self._locks[line]
        *_, last = self._counters.waits(line, 0)
        since = f"{(time.monotonic_ns() - last) / 1e9:.1f} s ago" if last else "never"
        did = "added" if is_actor else "drew"
        rows = f", holds {self._counters.rows(line)} rows" if is_actor else ""
        return (
            f"{what} {number}, process {about['pid']}, "
            f"{'is there' if is_there(path, about) else 'has ended'}, last {did} {since}{rows}"
        )


class LimitedActor(Actor):
    """An actor of a replay that has a limiter: ``add`` waits until it is allowed.

    ``add`` and ``add_where`` raise ``RateLimitTimeoutError``, and nothing was added, if that takes
    longer than the limiter's time-out; or ``ValueError`` if it can never be. See ``RateLimited``.
    """

    _inserts: InsertGate
    _steps: StepCounter

    def limit(self, limits: Limits) -> None:
        """Wait for this limiter from now on."""
        # A weak reference: the gate is of the actor, and a cycle would keep its lock.
        self._inserts = limits.inserts(self.number, weakref.ref(self))
        self._steps = StepCounter(self.schema.fields, self.n_envs)

    def add(self, **fields: Any) -> int | None:
        """Add one step, or several, when the limiter allows them: see ``RateLimited.add``."""
        self._check_process()
        return self._inserts.run(self._steps(fields), super().add, **fields)

    def add_where(self, present: ArrayLike, /, **fields: Any) -> int | None:
        """As ``add``, where only some environments have a step."""
        self._check_process()
        mask = np.array(present)
        return self._inserts.run(int(np.count_nonzero(mask)), super().add_where, mask, **fields)

    def on_episode_end(self, env: int | None = None) -> None:
        """End the open episodes as truncated: see ``ReplayBuffer.on_episode_end``."""
        super().on_episode_end(env)
        self._inserts.count_rows()

    def clear(self) -> None:
        """Forget the rows of this actor; to the limiter they are deleted."""
        super().clear()
        self._inserts.count_rows()
