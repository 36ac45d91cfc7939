"""How many priorities each learner has set, and how many came too late, for all processes to see.

Each learner has two words in shared memory, to which it alone writes. Not here: which updates are
too late (``samplers._together``), and who reads the words (``_replay``).
"""

from __future__ import annotations

import mmap
from pathlib import Path

__all__ = ["UpdateCounts"]

FILE = "updates"
WORD = 8


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
        self._first = 2 * number

    @staticmethod
    def make(folder: Path, learners: int) -> None:
        """Make the words of so many learners."""
        (folder / FILE).write_bytes(bytes(2 * WORD * learners))

    def tell(self, given: int, late: int) -> None:
        """Of so many priorities that were given, so many came too late."""
        self._words[self._first] = given
        self._words[self._first + 1] = late

    def read(self) -> tuple[int, int]:
        """What was told last."""
        return self._words[self._first], self._words[self._first + 1]
