"""``StartsTogether``: the rows of several rings at which the items of a view can start.

Not here: the starts of one ring (``_starts``), and reading what starts there (``views``).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from cpprb_like.errors import NotEnoughDataError
from cpprb_like.processes._followers import Followers, places_by_label
from cpprb_like.samplers._starts import Starts

__all__ = ["StartsTogether"]

RowNumbers = NDArray[np.intp]


class StartsTogether:
    """What ``Starts`` is for one ring: the same methods, of numbers of rows.

    Parameters
    ----------
    ring : Followers
        The rings.
    starts : dict of int to Starts
        Those of each ring whose rows may be drawn.
    """

    def __init__(self, ring: Followers, starts: Mapping[int, Starts]) -> None:
        self.ring = ring
        self._starts = dict(starts)

    def tell(self, rows: RowNumbers) -> NDArray[np.int8]:
        """See ``Starts.tell``."""
        told = np.full(len(rows), -1, np.int8)
        for number, places, slots in self.ring.parts(rows):
            if number in self._starts:
                told[places] = self._starts[number].tell(slots)
        return told

    def counts(self) -> NDArray[np.int64]:
        """How many starts there are in each ring, in the order of ``starts``."""
        return np.array([starts.count for starts in self._starts.values()], np.int64)

    def slots(self) -> RowNumbers:
        """All of them: see ``Starts.slots``."""
        found = [self.ring.number(number, one.slots()) for number, one in self._starts.items()]
        return np.concatenate(found) if found else np.empty(0, np.intp)

    def draw(self, n: int, rng: np.random.Generator) -> RowNumbers:
        """Draw n of them, each with the same probability: see ``Starts.draw``."""
        counts = self.counts()
        total = int(counts.sum())
        if total == 0:
            self.refuse()
        parts = np.searchsorted(counts.cumsum(), rng.integers(total, size=n), side="right")
        rows = np.empty(n, np.intp)
        rings = list(self._starts.items())
        for part, places in places_by_label(parts):
            number, starts = rings[part]
            rows[places] = self.ring.number(number, starts.draw(len(places), rng))
        return rows

    def draw_distinct(self, n: int, rng: np.random.Generator) -> RowNumbers:
        """As ``draw``, n different ones: see ``Starts.draw_distinct``."""
        counts = self.counts()
        if n > counts.sum():
            self.refuse(n)
        among = divided(counts, n, rng)
        drawn = [
            self.ring.number(number, starts.draw_distinct(int(count), rng))
            for (number, starts), count in zip(self._starts.items(), among, strict=True)
        ]
        return rng.permutation(np.concatenate(drawn)) if drawn else np.empty(0, np.intp)

    def refuse(self, distinct: int | None = None) -> None:
        """Raise ``NotEnoughDataError``: see ``Starts.refuse``."""
        for starts in self._starts.values():
            if distinct is None or len(self._starts) == 1:
                starts.refuse(distinct)
        found = int(self.counts().sum())
        wanted = "" if distinct is None else f" {distinct} distinct rows"
        raise NotEnoughDataError(
            f"cannot sample{wanted}: of {len(self.ring)} rows {found} can be drawn"
        )


def divided(sizes: NDArray[np.int64], n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """How many of n distinct things, drawn from parts of these sizes, come from each part."""
    found = np.zeros(len(sizes), np.int64)
    left = int(sizes.sum())
    for part, size in enumerate(sizes.tolist()):
        found[part] = rng.hypergeometric(size, left - size, n) if size else 0
        n -= int(found[part])
        left -= size
    return found
