"""``Parts``: rows of several parts, under one numbering.

The sources of a mixture are parts, and so are the shards of a learner. What is drawn or updated in
one call is split by part here, and each part's rows keep their places in the call. Not here: how
many rows come from each part (``_mixture``, ``processes``).
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["Parts", "places_by_label"]

Names = TypeVar("Names", np.intp, np.int64)


class Parts:
    """The names of rows in several parts.

    A name has the number of the part in its low bits. The bits above are the row's own name in its
    part: an index, a handle or a slot. A negative name stays negative, and names no row.

    Parameters
    ----------
    count : int
        Number of parts, at least 1.

    Attributes
    ----------
    bits : int
        Low bits of a name that hold the number of the part.
    """

    def __init__(self, count: int) -> None:
        self.bits = (count - 1).bit_length()
        self._mask = (1 << self.bits) - 1

    def name(self, number: int, own: NDArray[Names]) -> NDArray[Names]:
        """The names of rows of one part, from their own names in it."""
        return own << self.bits | number

    def split(self, names: NDArray[Names]) -> list[tuple[int, NDArray[np.intp], NDArray[Names]]]:
        """Names by part: the number of the part, the places of its names, and its own names.

        A number may be ``count`` or more, if the names are not those of ``name``.
        """
        return [
            (number, places, names[places] >> self.bits)
            for number, places in places_by_label(names & self._mask)
        ]


def places_by_label(labels: NDArray[np.integer[Any]]) -> list[tuple[int, NDArray[np.intp]]]:
    """The labels that occur, ascending, each with the places that have it.

    Labels are integers from 0 on, and so few that an array of all of them is small.
    """
    return [
        (label, np.flatnonzero(labels == label))
        for label in np.flatnonzero(np.bincount(labels)).tolist()
    ]
