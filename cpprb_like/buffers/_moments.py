"""``MomentSource``: a buffer whose rows are read as they were at one moment, while others write.

Views and their plans know a buffer as this class. Not here: rows, fields and priorities
(``_replay``), and the moment of a ring (``_core``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from cpprb_like._fields.derived import NStepReturns
from cpprb_like._fields.schema import Schema
from cpprb_like._rows.episode_index import EpisodeIndex
from cpprb_like.buffers._entry import BufferBase
from cpprb_like.buffers._source import Source
from cpprb_like.samplers._base import Sampler
from cpprb_like.samplers._starts import Starts

__all__ = ["MomentSource"]

Found = TypeVar("Found")

MOST_ATTEMPTS = 8  # a sampler, or a finalizer, may add rows itself


class MomentSource(BufferBase, Source):
    """A source of batches over the rows of one ring.

    Attributes
    ----------
    sampler : Sampler
    rng : numpy.random.Generator
    """

    sampler: Sampler
    rng: np.random.Generator
    _nstep: NStepReturns | None
    _episodes: EpisodeIndex
    _starts: Callable[..., Starts]

    @property
    def schema(self) -> Schema:
        """The fields."""
        raise NotImplementedError

    def _while_writers_wait(self, attempt: Callable[[], Found | None]) -> Found:
        """Read rows that writers changed the first time."""
        found: Found = self._hold(True, _try_often, attempt)
        return found

    def _check_indexes(self) -> None:
        """Raise ``ValueError`` if batches cannot have ``indexes``."""
        raise NotImplementedError


def _try_often(attempt: Callable[[], Found | None]) -> Found:
    for _ in range(MOST_ATTEMPTS):
        found = attempt()
        if found is not None:
            return found
    raise RuntimeError("rows were overwritten by the very thread that reads them")
