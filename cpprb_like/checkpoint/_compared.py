"""Edits since a state was saved, found by comparing rows with the files of the state.

For rows that other processes write. It costs reading the files of the rows that are still there,
and no writing. Not here: what is written of the edited rows (``_segments``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Bytes
from cpprb_like._core import Ring
from cpprb_like._rows.edits import Tracker
from cpprb_like.checkpoint import _arrays
from cpprb_like.checkpoint._arrays import DamagedError
from cpprb_like.checkpoint._held import Saves
from cpprb_like.checkpoint._save import Before
from cpprb_like.checkpoint._segments import Part

__all__ = ["ComparedSaves"]


class ComparedSaves(Saves):
    """``Saves`` of rows that were not watched between two saves.

    Parameters
    ----------
    identity : str
        Of what the rows belong to: a state is compared with them if its root has the same one
        under ``identity``.
    """

    def __init__(self, identity: str) -> None:
        super().__init__()
        self._identity = identity

    def since(
        self,
        before: Before,
        number: int,  # noqa: ARG002
        saved: dict[str, Any],
        parts: list[Part],
        ring: Ring,
    ) -> Tracker | None:
        """See ``Saves.since``."""
        if before.manifest["root"]["state"].get("identity") != self._identity:
            return None
        tracker = Tracker(ring.capacity)
        oldest = ring.written - ring.stored
        for segment in saved["segments"]:
            for part in parts:
                if part.name not in segment["parts"]:
                    continue
                file, low, high = segment["parts"][part.name]
                edited = _different(before, file, part, low, high, oldest)
                tracker.mark((edited[edited >= oldest] % ring.capacity).astype(np.intp))
        return tracker


def _different(
    before: Before, file: int, part: Part, low: int, high: int, oldest: int
) -> NDArray[np.int64]:
    """The rows whose bytes differ from those in a file with the rows from ``low`` to ``high``."""
    found: list[NDArray[np.int64]] = []
    nbytes = part.nbytes
    if nbytes == 0:
        return np.empty(0, np.int64)

    def compare(offset: int, piece: Bytes) -> None:
        values = piece.reshape(-1, nbytes)
        start = low + offset // nbytes
        skip = min(len(values), max(0, oldest - start))
        if skip < len(values):
            own = part.copy(start + skip, start + len(values))
            differs = (own != values[skip:]).any(axis=1)
            found.append(np.flatnonzero(differs) + start + skip)

    try:
        entry, shape = before.entries[file], (high - low, *part.shape)
        _arrays.read(before.disk, entry, part.dtype, shape, compare, lambda _: None)
    except DamagedError:
        return np.arange(low, high)
    return np.concatenate(found) if found else np.empty(0, np.int64)
