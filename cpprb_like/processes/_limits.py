"""The rate limiter of a shared replay: its counters in shared memory, and the ends that wait.

Each actor and each learner has a line of the counters, which only the holder of its lock writes.
When a process was killed, a waiting process finds its lock free and cancels its announcements. Not
here: formulas, counters and waiting (``limiters``).
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like.limiters import Backlog, MinSize, RateLimiter, SampleToInsertRatio
from cpprb_like.limiters._counters import Counters
from cpprb_like.limiters._gates import (
    Gate,
    LimitedAdds,
    Peers,
    StepCounter,
    begin_balanced,
    stats,
    waits,
)
from cpprb_like.processes._folder import FileLock, is_locked, is_owned, said_by, unless_gone
from cpprb_like.processes._shards import Actor

KINDS = {kind.__name__: kind for kind in (MinSize, SampleToInsertRatio, Backlog)}


def limiter_to_json(limiter: RateLimiter | None) -> dict[str, Any] | None:
    """A limiter in the form of the description of a replay."""
    if limiter is None:
        return None
    if type(limiter) not in KINDS.values():
        raise TypeError(f"limiter: expected one of {', '.join(KINDS)}, got {limiter!r}")
    return {"kind": type(limiter).__name__, **asdict(limiter)}  # type: ignore[call-overload]


def limiter_from_json(saved: Mapping[str, Any] | None) -> RateLimiter | None:
    """The limiter in a description."""
    if saved is None:
        return None
    limiter: RateLimiter = KINDS[saved["kind"]](**{k: v for k, v in saved.items() if k != "kind"})
    return limiter


class Limits(Peers):
    """The limiter of a shared replay, in one process.

    ``words`` are the memory of the counters. ``writers`` and ``readers`` are paths of locks in the
    ``folder`` of the replay.
    """

    def __init__(
        self,
        folder: Path,
        limiter: RateLimiter,
        words: NDArray[np.int64],
        writers: list[Path],
        readers: list[Path],
    ) -> None:
        self.limiter = limiter
        self._folder = folder
        self._writers = len(writers)
        self._locks = [*writers, *readers]
        self._counters = Counters(words, len(writers), len(readers), *limiter.bounds)

    def begin(self, rows: list[int]) -> None:
        """Begin with these numbers of rows of the writers: see ``begin_balanced``."""
        for line, held in enumerate(rows):
            self._counters.use(line)
            self._counters.set_rows(line, held)
        begin_balanced(self.limiter, self._counters, sum(rows))()

    def gate(self, line: int, held: Callable[[], Any] | None = None) -> Gate:
        """The gate of an actor or a learner, whose lock this process has just taken.

        Lines of actors come before lines of learners. ``held`` returns the buffer of an actor.
        """
        self._counters.void(line)
        return Gate(self.limiter, self._counters, line, self, held)

    def stats(self) -> dict[str, float]:
        self.release_dead()
        return stats(self._counters)

    def release_dead(self) -> None:
        """See ``Peers.release_dead``. ``RuntimeError`` if the replay was closed meanwhile."""
        for line, path in enumerate(self._locks):
            if self._counters.is_busy(line) and not is_locked(path):
                lock = FileLock(path)
                with unless_gone(self._folder):
                    if lock.take(shared=True):  # so that no process takes the line meanwhile
                        self._counters.void(line)
                        lock.release()

    def describe(self, lines: range) -> str:
        owners = {line: said_by(self._locks[line]) for line in lines}
        found = [self._describe(line, about) for line, about in owners.items() if about]
        what = "learner" if self._writers in lines else "actor"
        return "; ".join(found) or f"no {what} has come yet"

    def _describe(self, line: int, about: dict[str, Any]) -> str:
        (found,) = waits(self._counters, range(line, line + 1))
        ago = f"{(time.monotonic_ns() - found.last) / 1e9:.1f} s ago" if found.last else "never"
        who, did, rows = f"actor {line}", "added", f", holds {found.rows} rows"
        if line >= self._writers:
            who, did, rows = f"learner {line - self._writers}", "drew", ""
        state = "is there" if is_owned(self._locks[line]) else "has ended"
        return f"{who}, process {about['pid']}, {state}, last {did} {ago}{rows}"


class LimitedActor(LimitedAdds, Actor):
    """An actor of a replay that has a limiter: ``add`` waits until it is allowed.

    ``add`` and ``add_where`` raise the same errors as the methods of ``RateLimited``.
    """

    def limit(self, limits: Limits) -> None:
        """Make ``add`` wait for this limiter."""
        # A weak reference, as a cycle with the gate would delay the release of the lock.
        self._inserts = limits.gate(self.number, weakref.ref(self))
        self._steps = StepCounter(self.schema.fields, self.n_envs)

    @property
    def _adds(self) -> Any:
        self._check_process()
        without_gate: Any = super(LimitedAdds, self)
        return without_gate
