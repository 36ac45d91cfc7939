"""Reverse Experience Replay (RER; Rotinov, 2019)."""

from __future__ import annotations

from typing import Any

import numpy as np

from cpprb_like._arguments.checks import as_int, as_whole
from cpprb_like._core import Ring
from cpprb_like._rows.row_handles import at_or_before
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.samplers._base import Extra, Sampler, Slots, expect_cuts
from cpprb_like.samplers._rows import Rows


class Reverse(Sampler):
    """Reverse Experience Replay (RER; Rotinov, 2019): backwards in time, every ``stride``-th row.

    A batch has a start row, the row ``stride`` rows older, and so on; after the oldest row comes
    the newest. The next batch starts one row earlier. If this row would be ``2 * stride`` or more
    rows behind the newest row, or was overwritten, the batch starts at the newest row again. Draws
    are deterministic.

    Parameters
    ----------
    stride : int
        Distance in rows between two rows of a batch, at least 1.

    Attributes
    ----------
    stride : int

    Raises
    ------
    TypeError, ValueError
        ``stride`` is not an integer of at least 1. ``draw`` raises ``ValueError`` if a row would
        come twice and ``replace`` is false.

    Notes
    -----
    Rows are in the order in which they were written. So rows of the environments of a vector
    environment alternate, and episode ends are ignored. An absent row is replaced by the next older
    row that holds a step.

    Cost: proportional to ``n``; times the logarithm of the rows stored, if there are absent rows.

    Source: Rotinov (2019), "Reverse Experience Replay". The rule for the start of a batch follows
    cpprb's ``ReverseReplayBuffer``. cpprb counts slots and not rows: after a wrap of its buffer the
    start is not the newest row.

    Examples
    --------
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.samplers import Reverse
    >>> rb = ReplayBuffer(10, {"x": {"shape": (), "dtype": "i8"}}, sampler=Reverse(3))
    >>> rb.add(x=range(10))
    0
    >>> rb.sample(4)["x"].tolist(), rb.sample(4)["x"].tolist()
    ([9, 6, 3, 0], [8, 5, 2, 9])
    """

    def __init__(self, stride: int = 300) -> None:
        self.stride = as_whole("stride", stride, 1)
        # Row id where the next draw starts, and ``ring.clears`` of that time.
        self._start = (-1, 0)

    def __setstate__(self, state: dict[str, Any]) -> None:
        as_int("stride", state["stride"], 1)
        row, clears = state["_start"]
        as_int("row where the next draw starts", row, -1)
        as_int("clears", clears, 0)
        self.__dict__.update(state)

    def draw(
        self,
        ring: Ring,
        n: int,
        rng: np.random.Generator,  # noqa: ARG002 (nothing is random here)
        *,
        replace: bool,
    ) -> tuple[Slots, Extra]:
        newest, ages, following = self._ages(ring, n)
        slots = (newest - ages) % ring.capacity
        if ring.absent:
            slots = at_or_before(ring, slots)
        if not replace and len(np.unique(slots)) < n:
            raise self._repeats(ring, n)
        self._start = following
        return slots, {}

    def draw_state(self) -> dict[str, Any]:
        """See ``Sampler.draw_state``: the row where the next draw starts."""
        return {"_start": self._start}

    def draw_starts(
        self,
        starts: Rows,
        n: int,
        rng: np.random.Generator,  # noqa: ARG002
        *,
        replace: bool,
    ) -> tuple[Slots, Extra]:
        """See ``Sampler.draw_starts``: each row is replaced by the next start at or before it.

        Cost: a look at all rows, as ``starts.slots``.
        """
        ring = starts.ring
        expect_cuts(self, starts)
        newest, ages, following = self._ages(ring, n)
        among = starts.slots()
        if len(among) == 0 or (not replace and n > len(among)):
            starts.refuse(n if len(among) and not replace else None)
        ids = ring.row_ids(among)
        order = np.argsort(ids)
        # Place -1 is the newest start, which precedes the oldest one around the end of the ring.
        slots = among[order[np.searchsorted(ids[order], newest - ages, side="right") - 1]]
        if not replace and len(np.unique(slots)) < n:
            raise self._repeats(ring, n)
        self._start = following
        return slots, {}

    def _ages(self, ring: Ring, n: int) -> tuple[int, Slots, tuple[int, int]]:
        """The newest row, the ages of the n rows to draw, and ``_start`` of the next draw.

        The age of a row is the number of rows between it and the newest one.
        """
        clears, newest = ring.clears, ring.stop - 1
        stored = newest + 1 - ring.first
        if stored <= 0 or len(ring) == 0:  # the two differ while other threads clear and add
            raise NotEnoughDataError("cannot sample: the buffer is empty")
        start, seen = self._start
        behind = newest - start
        if seen != clears or not 0 <= behind < min(2 * self.stride, stored):
            start, behind = newest, 0
        ages = (behind + self.stride % stored * np.arange(n, dtype=np.intp)) % stored
        return newest, ages, (start - 1, clears)

    def _repeats(self, ring: Ring, n: int) -> ValueError:
        if n > len(ring):
            return NotEnoughDataError(
                f"cannot sample {n} distinct rows: the buffer holds {len(ring)}"
            )
        return ValueError(
            f"cannot sample {n} distinct rows of {len(ring)} in steps of {self.stride}: "
            "some would come twice"
        )

    def __repr__(self) -> str:
        return f"Reverse({self.stride})"
