"""``Words``: named arrays of int64 words that all processes of a replay share, in one file.

Each array begins at a cache line, with zeros at first. Not here: the header of a shard, which has
the form of a buffer's header (``_core``), and the time of its last row (``_shards``).
"""

from __future__ import annotations

import math
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cpprb_like._machine.opening import open_regular
from cpprb_like.buffers._draw_counts import WORDS
from cpprb_like.limiters._counters import shape_for

FILE = "words"
LINE = 8  # words of a cache line
MOST_LEARNERS = 64
SLOTS = 3  # slots for versions of the parameters
GIVEN, LATE = range(2)  # columns of ``learners``: priorities, and late ones


def mapped(path: Path, dtype: DTypeLike, nbytes: int = 0) -> NDArray[Any]:
    """The memory of a file, shared with other processes; with ``nbytes`` only its first bytes."""
    with open_regular(path, os.O_RDWR) as file:
        return np.frombuffer(mmap.mmap(file.fileno(), nbytes), dtype)


def _shapes(writers: int) -> dict[str, tuple[int, ...]]:
    return {
        "limiter": shape_for(writers + MOST_LEARNERS),
        "learners": (MOST_LEARNERS, 2),
        "draws": (MOST_LEARNERS, WORDS),
        "versions": (1 + SLOTS,),
        "first_begun": (writers,),
        "first_done": (writers,),
    }


class Words:
    """The words of a replay."""

    limiter: NDArray[np.int64]  # a line for each actor and each learner: see ``Counters``
    learners: NDArray[np.int64]  # GIVEN and LATE of each learner; only the learner writes these
    draws: NDArray[np.int64]  # ``DrawCounts`` of each learner
    versions: NDArray[np.int64]  # newest version of the parameters, then the version in each slot
    first_begun: NDArray[np.int64]  # begun entries in the log of first priorities of each shard
    first_done: NDArray[np.int64]  # complete entries in these logs

    def __init__(self, folder: Path, writers: int) -> None:
        memory, start = mapped(folder / FILE, np.int64), 0
        for name, shape in _shapes(writers).items():
            setattr(self, name, memory[start : start + math.prod(shape)].reshape(shape))
            start += _padded(shape)

    @staticmethod
    def make(folder: Path, writers: int) -> None:
        """Create the file in the folder of a new replay."""
        (folder / FILE).write_bytes(bytes(8 * sum(map(_padded, _shapes(writers).values()))))


def _padded(shape: tuple[int, ...]) -> int:
    return -(-math.prod(shape) // LINE) * LINE
