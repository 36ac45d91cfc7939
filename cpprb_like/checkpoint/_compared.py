"""Edits since a state was saved, found by comparing rows with the files of the state.

For rows that other processes write, whose edits this process does not record. It costs reading the
files of the rows that are still there. Not here: the segments of edited rows (``_segments``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Bytes
from cpprb_like._core import Ring
from cpprb_like._rows.edits import Tracker
from cpprb_like.checkpoint import _arrays
from cpprb_like.checkpoint._disk import Disk
from cpprb_like.checkpoint._savable import EditsSinceSave
from cpprb_like.checkpoint._segments import Part
from cpprb_like.checkpoint._state import PartFile, State
from cpprb_like.checkpoint._values import Node
from cpprb_like.errors import DamagedError

__all__ = ["ComparedEdits"]


class ComparedEdits(EditsSinceSave):
    """``EditsSinceSave`` of rows whose edits were not recorded between two saves.

    Parameters
    ----------
    identity : str
        Identity of the owner of the rows. A state is compared if its root has the same attribute
        ``identity``.
    """

    def __init__(self, identity: str) -> None:
        super().__init__()
        self._identity = identity

    def since(
        self, disk: Disk, state: State, number: int, parts: list[Part], ring: Ring
    ) -> Tracker | None:
        """See ``EditsSinceSave.since``."""
        if Node("", state.root).attribute("identity") != self._identity:
            return None
        tracker = Tracker(ring.capacity)
        oldest = ring.written - ring.stored
        for segment in state.rings[number].segments:
            for part in parts:
                if part.name in segment.parts:
                    edited = _different(disk, segment.parts[part.name], part, oldest)
                    tracker.mark((edited[edited >= oldest] % ring.capacity).astype(np.intp))
        return tracker


def _different(disk: Disk, saved: PartFile, part: Part, oldest: int) -> NDArray[np.int64]:
    """The rows of a file whose bytes differ from those in memory."""
    found: list[NDArray[np.int64]] = []
    nbytes = part.nbytes
    if nbytes == 0:
        return np.empty(0, np.int64)

    def compare(offset: int, piece: Bytes) -> None:
        values = piece.reshape(-1, nbytes)
        start = saved.first + offset // nbytes
        skip = min(len(values), max(0, oldest - start))
        if skip < len(values):
            own = part.copy(start + skip, start + len(values))
            differs = (own != values[skip:]).any(axis=1)
            found.append(np.flatnonzero(differs) + start + skip)

    try:
        file = saved.file.expect(part.dtype, saved.stop - saved.first, *part.shape)
        _arrays.read(disk, file, compare, lambda _: None)
    except DamagedError:
        return np.arange(saved.first, saved.stop)
    return np.concatenate(found) if found else np.empty(0, np.int64)
