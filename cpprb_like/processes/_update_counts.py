"""Counts of what each learner has drawn and updated, in shared memory.

Each learner has three words in shared memory, to which it alone writes. Not here: which updates are
too late (``processes._together``), and the reader of the words (``_replay``).
"""

from __future__ import annotations

import mmap
from pathlib import Path

__all__ = ["UpdateCounts"]

FILE = "updates"
WORD = 8
GIVEN, LATE, DRAWN, WORDS = range(4)  # words of a learner: of its priorities, and items it drew


class UpdateCounts:
    """The words of one learner.

    Parameters
    ----------
    folder : Path
        Of the replay.
    number : int
        Of the learner.
    """

    def __init__(self, folder: Path, number: int) -> None:
        with (folder / FILE).open("r+b") as file:
            self._words = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
        self._first = WORDS * number

    @staticmethod
    def make(folder: Path, learners: int) -> None:
        """Make the words of so many learners."""
        (folder / FILE).write_bytes(bytes(WORDS * WORD * learners))

    def tell(self, given: int, late: int) -> None:
        """Of so many priorities that were given, so many came too late."""
        self._words[self._first + GIVEN] = given
        self._words[self._first + LATE] = late

    def read(self) -> tuple[int, int]:
        """How many priorities were given, and how many of them came too late."""
        return self._words[self._first + GIVEN], self._words[self._first + LATE]

    def drew(self, n: int) -> None:
        """So many items were drawn."""
        self._words[self._first + DRAWN] += n

    def all_drawn(self) -> int:
        """Items that all learners have drawn."""
        return sum(self._words[DRAWN::WORDS])
