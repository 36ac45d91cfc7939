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
from cpprb_like.samplers._base import Sampler, Slots
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

    def consistently(self, attempt: Callable[[], tuple[Slots, Found] | None]) -> Found:
        """Read rows by steps of your own, as they were at one moment, while other threads write.

        Parameters
        ----------
        attempt : callable
            Chooses rows, reads them, and returns their slots and what it found; or None if it saw
            that they changed meanwhile. It is called without arguments. If they did change, or it
            raised ``ValueError`` or ``IndexError`` while rows came or went, it is called again
            while writers wait. It adds no rows itself.

        Returns
        -------
        object
            What ``attempt`` found.

        Raises
        ------
        RuntimeError
            ``attempt`` itself writes to the buffer.
        Exception
            What ``attempt`` raises.

        Notes
        -----
        Cost: one look at each slot, and ``attempt`` twice where a writer overtook it.

        Examples
        --------
        >>> from cpprb_like import ReplayBuffer
        >>> rb = ReplayBuffer(10, {"rew": {"shape": ()}})
        >>> rb.add(rew=[1, 2, 3])
        0
        >>> def newest_two():
        ...     slots = rb.ring.newest_slots(2)
        ...     return slots, rb[slots]["rew"].tolist()
        >>> rb.consistently(newest_two)
        [2.0, 3.0]
        """
        ring = self.ring

        def at_one_moment() -> tuple[Found] | None:
            moment = ring.now()
            try:
                found = attempt()
            except (ValueError, IndexError):
                if ring.is_now(moment):
                    raise
                return None  # rows were overwritten or cleared
            return None if found is None or not ring.holds(moment, found[0]) else (found[1],)

        (found,) = at_one_moment() or self._while_writers_wait(at_one_moment)
        return found

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
