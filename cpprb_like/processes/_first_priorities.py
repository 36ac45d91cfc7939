"""``FirstPriorities``: the priorities that rows came with, on their way from actors to learners.

Each shard has a log in shared memory, with as many entries as the shard has rows, to which its
actor alone writes: the handle of a row, and its priority. Two words for each shard count the
entries that are written and that were begun, so a learner sees by one look at a few words that
there are new ones. Not here: what a learner does with them (``_learner``).
"""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cpprb_like._machine.file_systems import replacing
from cpprb_like._rows.edits import fence
from cpprb_like.processes._folder import GONE_MESSAGE, room_for

__all__ = ["FirstPriorities"]

COUNTS, LOG = "first", "first"  # files: in the folder of the replay, and in that of a shard
WORD = 8
ENTRY = np.dtype([("handle", np.int64), ("priority", np.float64)])


class FirstPriorities:
    """The logs of all shards, in one process.

    Parameters
    ----------
    folder : Path
        Of the replay.
    capacity : int
        Rows of a shard.
    """

    def __init__(self, folder: Path, capacity: int) -> None:
        with (folder / COUNTS).open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._done, self._begun = np.frombuffer(self._memory, np.int64).reshape(2, -1)
        self._folder = folder
        self._capacity = capacity
        self._logs: dict[int, NDArray[np.void]] = {}

    @staticmethod
    def make(folder: Path, writers: int) -> None:
        """Make the words that count the entries of each shard."""
        (folder / COUNTS).write_bytes(bytes(2 * WORD * writers))

    def counts(self) -> bytes:
        """How many entries each shard has had, as words of int64."""
        return self._memory[: len(self._memory) // 2]

    def prepare(self, number: int) -> None:
        """Make room for the log of a shard; ``MemoryError`` if there is none."""
        if number in self._logs:
            return
        path = self._folder / f"shard-{number}" / LOG
        if not path.parent.exists():
            raise RuntimeError(GONE_MESSAGE)
        nbytes = self._capacity * ENTRY.itemsize
        if not path.exists():
            with (
                room_for(nbytes, path.parent, "the log of priorities", "for each writer"),
                replacing(path) as unfinished,
                unfinished.open("wb") as file,
            ):
                if sys.platform == "linux":
                    os.posix_fallocate(file.fileno(), 0, nbytes)
                file.truncate(nbytes)
        with path.open("r+b") as file:
            self._logs[number] = np.frombuffer(mmap.mmap(file.fileno(), nbytes), ENTRY)

    def append(
        self, number: int, handles: NDArray[np.int64], priorities: NDArray[np.float64]
    ) -> None:
        """Write the priorities of rows of a shard, which have just been published."""
        count, n = int(self._done[number]), len(handles)
        log, places = self._logs[number], np.arange(count, count + n) % self._capacity
        self._begun[number] = count + n
        fence()
        log["handle"][places], log["priority"][places] = handles, priorities
        fence()
        self._done[number] = count + n

    def read(
        self, number: int, start: int, stop: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The entries of a shard from ``start`` to ``stop`` that are not written over."""
        self.prepare(number)
        entries = np.arange(max(start, stop - self._capacity), stop)
        found = self._logs[number][entries % self._capacity]
        fence()
        there = entries >= self._begun[number] - self._capacity
        return found["handle"][there], found["priority"][there]
