"""``FirstPriorities``: the priorities that actors give to new rows, on their way to learners.

Each shard has a log in shared memory, which only its actor writes. An entry is the handle of a row
and its priority. The log has as many entries as the shard has rows. A learner finds new entries by
their counts. Not here: the use of the priorities by a learner (``_followed``).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cpprb_like._machine.file_systems import replacing
from cpprb_like._rows.edits import fence
from cpprb_like.processes._folder import GONE_MESSAGE, reserve_file
from cpprb_like.processes._words import Words, mapped

LOG = "first"  # file of a shard
ENTRY = np.dtype([("handle", np.int64), ("priority", np.float64)])


class FirstPriorities:
    """The logs of all shards, in one process. ``capacity`` is the number of rows of a shard."""

    def __init__(self, folder: Path, writers: int, capacity: int) -> None:
        self._words = Words(folder, writers)
        self._folder = folder
        self._capacity = capacity
        self._logs: dict[int, NDArray[np.void]] = {}
        self.counts = self._words.first_done  # number of entries of each shard, in shared memory

    def prepare(self, number: int) -> None:
        """Open or create the log of a shard; ``MemoryError`` if shared memory is full."""
        if number in self._logs:
            return
        path = self._folder / f"shard-{number}" / LOG
        if not path.parent.exists():
            raise RuntimeError(GONE_MESSAGE)
        nbytes = self._capacity * ENTRY.itemsize
        if not path.exists():
            with replacing(path) as unfinished:
                reserve_file(unfinished, nbytes, "the log of priorities", "for each writer")
        self._logs[number] = mapped(path, ENTRY, nbytes)

    def append(
        self, number: int, handles: NDArray[np.int64], priorities: NDArray[np.float64]
    ) -> None:
        """Append the priorities of rows that were just published."""
        count, n = int(self._words.first_done[number]), len(handles)
        log, places = self._logs[number], np.arange(count, count + n) % self._capacity
        self._words.first_begun[number] = count + n
        fence()
        log["handle"][places], log["priority"][places] = handles, priorities
        fence()
        self._words.first_done[number] = count + n

    def read(
        self, number: int, start: int, stop: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The entries of a shard from ``start`` to ``stop`` that are not overwritten."""
        self.prepare(number)
        entries = np.arange(max(start, stop - self._capacity), stop)
        found = self._logs[number][entries % self._capacity]
        fence()
        there = entries >= self._words.first_begun[number] - self._capacity
        return found["handle"][there], found["priority"][there]
