"""``Taken``: a batch of sequences that was read, and which of its rows are padding.

Not here: reading the rows (``_sequences``, ``_gather_windows``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Batch, Slots


@dataclass
class Taken:
    """A batch of sequences that was read. Properties tell of its rows, without padding."""

    batch: Batch
    marks: NDArray[np.bool_]  # ``mask`` or ``is_first``
    slots: Slots | None  # slots of the rows, shape (n, T), if they are known
    there: NDArray[np.bool_]  # shape (n, T): false for padding
    across: bool  # whether ``marks`` are begins of episodes

    @cached_property
    def places(self) -> Slots:
        """The place of each row in the batch, with one axis for the rows of all sequences."""
        return self.there.ravel().nonzero()[0]

    @property
    def row_slots(self) -> Slots:
        """The slot of each row."""
        assert self.slots is not None
        return self.slots.ravel()[self.places]

    @property
    def items(self) -> Slots:
        """The number of the sequence of each row."""
        items: Slots = self.places // self.there.shape[1]
        return items

    @property
    def firsts(self) -> Slots:
        """The numbers of the rows that are the first of a sequence."""
        return np.flatnonzero(self.places % self.there.shape[1] == 0)

    @property
    def begins(self) -> NDArray[np.bool_]:
        """Whether each row is the first one of a sequence, or of an episode in it."""
        begins = self.marks.copy() if self.across else np.zeros_like(self.there)
        begins[:, :1] = True
        return begins.take(self.places)
