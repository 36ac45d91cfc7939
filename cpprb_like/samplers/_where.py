"""``Where``: the rows of a ring for which a condition is true, for draws by any sampler.

``Sampler.draw_starts`` of each sampler draws from these rows.
Not here: conditions on the values of fields (``views._among``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from cpprb_like._core import Ring
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.samplers._base import Slots
from cpprb_like.samplers._row_weights import RowWeights
from cpprb_like.samplers._rows import AllRows, Rows
from cpprb_like.samplers._starts import distinct_of

CHUNK = 1 << 14  # rows for which the condition is computed at a time
TRIES = 64  # tries for each drawn row, before the condition is computed for all rows
LEAST = 32  # least rows tried at a time: a call for one row takes as long


class Where(Rows):
    """The rows of a ring for which a condition is true.

    ``sampler.draw_starts(Where(ring, holds), n, rng, replace=True)`` draws from these rows with any
    sampler, in the sampler's proportions. The condition may depend on anything. One on the
    values of rows is a layer, ``views.Among``, which costs less where few rows fit.

    Parameters
    ----------
    ring : Ring
        The rows: ``rb.ring``.
    holds : callable
        ``holds(slots)`` gives a bool for each slot, shape ``(n,)``. Each of the slots holds a row
        that can be drawn.
    starts : Rows, optional
        Rows to choose from; by default all rows that can be drawn.

    Notes
    -----
    The condition is computed on demand, and no result is stored. If the condition is true for many
    rows, drawn rows are tried. If it is true for fewer than one row in some dozens, each draw
    computes it for all rows.

    Examples
    --------
    >>> import numpy as np
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.samplers import Uniform, Where
    >>> rb = ReplayBuffer(10, {"x": {"shape": ()}})
    >>> rb.add(x=range(10))
    0
    >>> even = Where(rb.ring, lambda slots: slots % 2 == 0)
    >>> even.slots().tolist(), even.has(5), even.has(6)
    ([0, 2, 4, 6, 8], True, False)
    >>> slots, _ = Uniform().draw_starts(even, 5, np.random.default_rng(0), replace=False)
    >>> sorted(slots.tolist())
    [0, 2, 4, 6, 8]
    """

    def __init__(
        self,
        ring: Ring,
        holds: Callable[[Slots], NDArray[np.bool_]],
        starts: Rows | None = None,
    ) -> None:
        self._ring = ring
        self.holds = holds
        self.starts: Rows = AllRows(ring) if starts is None else starts
        self._is_of_all = starts is None

    @property
    def ring(self) -> Ring:
        """The ring of the rows."""
        return self._ring

    def tell(self, slots: Slots) -> NDArray[np.int8]:
        """State of each slot, all in use: 1 if its row fulfils the condition, else 0 or -1."""
        states = self.starts.tell(slots)
        there = np.flatnonzero(states == 1)
        states[there] = self._look(slots if len(there) == len(slots) else slots[there])
        return states

    def _look(self, slots: Slots) -> NDArray[np.bool_]:
        """Whether the condition is true for each slot. Without slots it is not called."""
        return is_true(self.holds(slots), len(slots)) if len(slots) else np.empty(0, np.bool_)

    def _chunks(self, size: int = CHUNK) -> Iterator[Slots]:
        """Yield slots of all these rows, ascending. Chunks of tested rows grow up to ``CHUNK``."""
        ring, start = self.ring, 0
        every = None if self._is_of_all and not ring.absent else self.starts.slots()
        n = ring.stored if every is None else len(every)
        while start < n:
            stop = min(start + size, n)
            slots = np.arange(start, stop) if every is None else every[start:stop]
            yield slots[self._look(slots)]
            start, size = stop, min(2 * size, CHUNK)

    def slots(self) -> Slots:
        """The slots of all of these rows, ascending. Cost: proportional to all rows."""
        return np.concatenate([np.empty(0, np.intp), *self._chunks()])

    @property
    def count(self) -> int:
        """Number of these rows. Cost: proportional to all rows."""
        return sum(map(len, self._chunks()))

    def weigh(self, rows: RowWeights) -> float:
        """The sum of the weights of these rows. Cost: proportional to all rows."""
        return float(rows.get(self.slots()).sum())

    def has(self, n: int) -> bool:
        """Whether there are at least n of these rows. Cost: up to twice the rows that it takes."""
        missing = n
        chunks = self._chunks(n + LEAST)
        while missing > 0:
            slots = next(chunks, None)
            if slots is None:
                return False
            missing -= len(slots)
        return True

    def draw(self, n: int, rng: np.random.Generator) -> Slots:
        """Draw n slots, each with the same probability, with replacement.

        Raises ``NotEnoughDataError`` if the condition is true for no row.
        """
        found = [np.empty(0, np.intp)]
        missing, tries = n, TRIES * max(n, LEAST) if len(self.ring) else 0
        while missing and tries > 0:
            wanted = max(2 * missing, LEAST)
            tries -= wanted
            slots = self.starts.draw(wanted, rng)
            found.append(slots[self._look(slots)][:missing])
            missing -= len(found[-1])
        if missing:
            every = self.slots()
            if len(every) == 0:
                self.refuse()
            found.append(every[rng.integers(len(every), size=missing)])
        return np.concatenate(found)

    def draw_distinct(self, n: int, rng: np.random.Generator) -> Slots:
        """Draw n different slots, each with the same probability.

        Raises ``NotEnoughDataError`` if there are fewer rows.
        """
        return distinct_of(self, n, rng)

    def refuse(self, distinct: int | None = None) -> NoReturn:
        """Raise ``NotEnoughDataError``: no row, or fewer than ``distinct``, can be drawn."""
        wanted = "" if distinct is None else f" {distinct} distinct rows"
        count = self.count if len(self.ring) else 0
        raise NotEnoughDataError(
            f"cannot sample{wanted}: the buffer holds {len(self.ring)} rows, of which "
            f"{count or 'none'} can be drawn: the condition must be true"
        )


def is_true(found: Any, n: int, where: str = "condition") -> NDArray[np.bool_]:
    """Checked result of a condition for n rows: an array of bools. Errors begin with ``where``."""
    if isinstance(found, np.ma.MaskedArray):
        raise TypeError(f"{where}: expected bools, got a masked array, whose mask would be lost")
    array = np.asarray(found)
    if array.dtype != np.bool_ or array.shape != (n,):
        raise ValueError(
            f"{where}: expected bools of shape ({n},), got {array.dtype} of shape {array.shape}"
        )
    return array
