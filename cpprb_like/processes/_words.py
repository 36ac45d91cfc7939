"""``Words``: the int64 words that all processes of a replay share, by name, in one file.

A new word is one entry here. Each array begins at a cache line, and has zeros at first. Not here:
the header of a shard, which is that of a buffer (``_core``), and when its last row was added
(``_shards``).
"""

from __future__ import annotations

import math
import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cpprb_like.limiters._counters import shape_for

__all__ = ["DRAWN", "GIVEN", "LATE", "MOST_LEARNERS", "SLOTS", "Words", "mapped"]

FILE = "words"
LINE = 8  # words of a cache line
MOST_LEARNERS = 64
SLOTS = 3  # for versions of the parameters
GIVEN, LATE, DRAWN = range(3)  # of ``learners``: priorities given, those too late, items drawn


def mapped(path: Path, dtype: DTypeLike, nbytes: int = 0) -> NDArray[Any]:
    """The memory of a file, shared with other processes: all of it, or its first bytes."""
    with path.open("r+b") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), nbytes), dtype)


def _shapes(writers: int) -> dict[str, tuple[int, ...]]:
    return {
        "limiter": shape_for(writers + MOST_LEARNERS),
        "learners": (MOST_LEARNERS, 3),
        "versions": (1 + SLOTS,),
        "first_begun": (writers,),
        "first_done": (writers,),
    }


class Words:
    """The words of a replay."""

    limiter: NDArray[np.int64]  # a line for each actor and each learner: see ``Counters``
    learners: NDArray[np.int64]  # GIVEN, LATE, DRAWN of each learner, which alone writes to them
    versions: NDArray[np.int64]  # the newest version of the parameters, and that of each slot
    first_begun: NDArray[np.int64]  # entries of each log of first priorities that were begun, ...
    first_done: NDArray[np.int64]  # ... and that are whole

    def __init__(self, folder: Path, writers: int) -> None:
        memory, start = mapped(folder / FILE, np.int64), 0
        for name, shape in _shapes(writers).items():
            setattr(self, name, memory[start : start + math.prod(shape)].reshape(shape))
            start += _padded(shape)

    @staticmethod
    def make(folder: Path, writers: int) -> None:
        """Make the file in the folder of a new replay."""
        (folder / FILE).write_bytes(bytes(8 * sum(map(_padded, _shapes(writers).values()))))


def _padded(shape: tuple[int, ...]) -> int:
    return -(-math.prod(shape) // LINE) * LINE
