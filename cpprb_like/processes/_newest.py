"""The newest rows of all actors together, where each keeps as many as there may be in all.

A row that is too old is left out by the learner that reads it, as if it had been deleted; the actor
that holds it does not know. Not here: which rows are drawn (``_learner``).
"""

from __future__ import annotations

import mmap
from collections import deque
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cpprb_like._store.gather import take
from cpprb_like._store.schema import read_columns
from cpprb_like.processes._learner import Learner
from cpprb_like.processes._sharded import Sharded
from cpprb_like.processes._shards import Reader

__all__ = ["NewestLearner", "NewestRows"]

FILE = "cleared"
STEPS = 512  # moments that are remembered, of a window


class NewestRows:
    """Which rows of several counts are the newest ``size`` in all, as one reader saw them come.

    What came between two looks came evenly, as far as anybody knows.

    Parameters
    ----------
    size : int
        Rows in all.
    writers : int
        How many counts there are.

    Examples
    --------
    >>> import numpy as np
    >>> newest = NewestRows(10, 2)
    >>> newest.starts(np.array([6, 0])).tolist()
    [0, 0]
    >>> newest.starts(np.array([6, 8])).tolist()  # the first four are too old
    [4, 0]
    >>> newest.starts(np.array([6, 18])).tolist()
    [6, 8]
    """

    def __init__(self, size: int, writers: int) -> None:
        self._size = size
        self._starts = np.zeros(writers, np.int64)
        self._seen = deque([np.zeros(writers, np.int64)])

    def starts(self, written: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first row of each writer that is new enough, now that so many are written."""
        seen = self._seen
        if (written != seen[-1]).any():
            if len(seen) > 2 and int((written - seen[-2]).sum()) * STEPS < self._size:
                seen.pop()
            seen.append(written.copy())
        excess = int(written.sum()) - self._size
        while len(seen) > 1 and int(seen[1].sum()) <= excess:
            seen.popleft()
        if excess > 0 and len(seen) > 1:
            before, after = seen[0], seen[1]
            came, wanted = after - before, excess - int(before.sum())
            shares = came * wanted // int(came.sum())
            last = np.flatnonzero(shares < came)[: wanted - int(shares.sum())]
            shares[last] += 1
            self._starts = np.maximum(self._starts, before + shares)
        return self._starts


class NewestLearner(Learner):
    """A learner that reads the newest rows of all actors together, since the last ``clear_all``.

    An actor may say the priority of a row in a field of its own: see ``keep``.
    """

    _newest: NewestRows | None
    _cleared: NDArray[np.int64]
    _said_in: str | None
    _heard: list[int]

    @staticmethod
    def make(folder: Path, writers: int) -> None:
        """Make the words that say what was cleared."""
        (folder / FILE).write_bytes(bytes(8 * writers))

    def keep(self, size: int | None, priorities: str | None) -> None:
        """Read so many rows from now on, or all; a field has their first priorities, or NaN."""
        self._newest = None if size is None else NewestRows(size, len(self._shards))
        self._said_in = priorities
        self._heard = [0] * len(self._shards)
        with (self._folder.path / FILE).open("r+b") as file:
            memory = mmap.mmap(file.fileno(), 8 * len(self._shards))
        self._cleared = np.frombuffer(memory, np.int64)

    def clear_all(self) -> None:
        """Have all learners leave out the rows that there are now."""
        with self._lock:
            self._follow()
            np.maximum(self._cleared, self._written(), out=self._cleared)

    def total(self) -> int:
        """Rows that were ever written."""
        with self._lock:
            self._follow()
            return int(self._written().sum())

    def _written(self) -> NDArray[np.int64]:
        return np.array(
            [0 if reader is None else reader.ring.written for reader in self._readers], np.int64
        )

    _draw = Sharded._draw  # as ``_follow`` has more to do

    def _follow(self) -> None:
        """Have the rows that have come since, without those that are too old."""
        super()._follow()
        starts = self._cleared
        if self._newest is not None:
            starts = np.maximum(self._newest.starts(self._written()), starts)
        for number, (reader, start) in enumerate(zip(self._readers, starts.tolist(), strict=True)):
            if reader is None:
                continue
            if start > reader.ring.first:
                reader.hide(reader.follower.leave_out(start))
            if self._said_in is not None and reader.ring.written > self._heard[number]:
                self._hear(number, reader, self._said_in)

    def _hear(self, number: int, reader: Reader, field: str) -> None:
        """Have the priorities that came with new rows."""
        ring = reader.ring
        stop = ring.written
        first = max(self._heard[number], reader.follower.bound)
        slots = np.arange(first, stop) % ring.capacity
        columns = read_columns(field, ring.columns)
        found = reader.attempt(slots, partial(take, ring, slots, columns=columns))
        if found is None:
            return  # they are written over; of those that are left it hears the next time
        self._heard[number] = stop
        said = ~np.isnan(found[field]) & ~ring.absent_at(slots)
        if said.any():
            rows = self._group.number(number, slots[said])
            self._draws.update(self._group.handles(rows), found[field][said])
