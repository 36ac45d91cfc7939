"""``Versions``: three slots that one process writes in turn, and others read without a lock.

A word for each slot is the version that is whole in it; it is 0 while the slot is written. One more
word is the newest version. A reader copies the newest version and looks at the word of its slot
again. If the word has changed, the copy is mixed, and the reader starts over with the version that
is the newest then. A writer that is killed leaves the newest version as it was. A reader is
disturbed only if two further versions are begun during its copy. Not here: the bytes, and the lock
of the writer (``_parameters``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cpprb_like._rows.edits import fence
from cpprb_like.processes._words import SLOTS

__all__ = ["Versions"]

NEWEST, FIRST = 0, 1  # places of the word of the newest version, and of the word of slot 0


class Versions:
    """The words of the slots.

    Parameters
    ----------
    words : ndarray of int64, shape (1 + SLOTS,)
        Zeros at first: see ``Words``. They are written to.
    """

    def __init__(self, words: NDArray[np.int64]) -> None:
        self._words = words.data  # each item is loaded and stored whole

    def newest(self) -> int:
        """The newest version; 0 if there is none."""
        return self._words[NEWEST]

    def begin(self) -> tuple[int, int]:
        """The next version and its slot, which readers leave alone until ``end``."""
        version = self.newest() + 1
        self._words[FIRST + version % SLOTS] = 0
        fence()
        return version, version % SLOTS

    def end(self, version: int) -> None:
        """Publish a version from ``begin`` as the newest one, after its bytes are written."""
        fence()
        self._words[FIRST + version % SLOTS] = version
        fence()
        self._words[NEWEST] = version

    def find(self) -> tuple[int, int] | None:
        """The newest version and its slot; None if there is none, or it was just written over."""
        version = self.newest()
        fence()
        if version <= 0 or not self.is_there(version):
            return None
        fence()
        return version, version % SLOTS

    def is_there(self, version: int) -> bool:
        """Whether the slot of a version has had this version since ``find`` returned it."""
        fence()
        return bool(self._words[FIRST + version % SLOTS] == version)
