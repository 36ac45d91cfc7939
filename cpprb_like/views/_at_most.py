"""``AtMost``: each row is drawn at most so many times by the view.

Not here: when rows are told of, and the draw (``samplers._rules``, ``samplers._ruled``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cpprb_like._arguments.arrays import Array, Batch, Slots
from cpprb_like._arguments.checks import as_int
from cpprb_like._core import Ring
from cpprb_like._rows.row_handles import handles
from cpprb_like.views._layer import ViewedRows
from cpprb_like.views._rule import Moved, Rule

NONE = np.empty(0, np.intp)


class AtMost(Rule):
    """Draws each row at most m times; then the view leaves it out.

    Parameters
    ----------
    m : int
        The most draws of a row by the view, at least 1.

    Raises
    ------
    TypeError, ValueError
        ``m`` is not an integer, or less than 1.

    Notes
    -----
    A batch has no row twice, as with ``replace=False``: ``m=1`` gives each row once. If fewer rows
    are left than a batch needs, ``sample`` raises ``NotEnoughDataError``, and nothing is counted.

    Each view counts its own draws, over all threads: two views, or two learners, draw a row up to
    ``2 * m`` times. Rows that wait, of a batch of ``prefetch`` or for the next one of a budget,
    count when they are drawn. A save has them as not drawn, and so has the view if its iterator
    ends before they are returned. With a budget a batch may have a row of two draws twice.

    Draws by the buffer itself and ``get_all_transitions`` do not count. Of ``Sequences`` and n-step
    returns the drawn first row counts, of ``Groups`` each row. A row that is updated keeps its
    count. A new row in the place of another begins at 0. Saves of the view keep the counts.

    Each host of a cluster counts its own rows, and no batch is asked for ahead. If a host dies, or
    has lost rows meanwhile that a batch needs, the rows that others drew for the batch are used
    up, and so are rows that wait as an iterator ends. A host that was started again counts its rows
    from 0 for learners on other nodes. ``stats`` has ``rows_left`` alone.

    ``view.stats()`` has ``rows_used_up``, rows in the buffer that were drawn m times, and
    ``rows_left``, rows that the view can draw now: of ``Sequences`` those where one can begin.

    Cost: that of a draw by priority without replacement, and of ``stats()`` a look at all rows.
    Memory: 17 bytes a row for each view, and 17 bytes for the masses.

    Examples
    --------
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.views import AtMost
    >>> rb = ReplayBuffer(100, {"x": {"shape": ()}}, seed=0)
    >>> rb.add(x=range(4))
    0
    >>> once = rb.view(AtMost(1))
    >>> sorted(once.sample(3)["x"].tolist() + once.sample(1)["x"].tolist())
    [0.0, 1.0, 2.0, 3.0]
    >>> once.stats()["rows_used_up"], once.stats()["rows_left"]
    (4, 0)
    """

    def __init__(self, m: int) -> None:
        self.m = as_int("m", m, 1)

    def open(self, rows: ViewedRows) -> Rule:
        return _Counts(self.m, rows)

    def __repr__(self) -> str:
        return f"AtMost({self.m})"


class _Counts(Rule):
    """How often each row was drawn."""

    moves_with_rows = True

    def __init__(self, m: int, rows: ViewedRows) -> None:
        self.m, self._ring = m, rows.ring
        # Handle of the row in each slot, 0 if there was none so far; how often it was drawn.
        self._names, self._counts = np.zeros((2, rows.numbers), np.int64)
        self._there = np.zeros(rows.numbers, np.bool_)  # whether the slot has a row
        self._used: list[Slots] = []  # rows whose counts changed since ``moved``
        self._saved: dict[int, int] = {}  # counts of rows that were not told of so far
        self._is_one_ring = isinstance(rows.ring, Ring)

    def begin(self) -> None:
        # Counts go by handle, and stay right.
        self._there[:] = False

    def masses(self, rows: Batch, slots: Slots) -> Array:  # noqa: ARG002
        names, counts = handles(self._ring, slots), self._counts
        new = self._names[slots] != names
        if new.any():
            given: Any = 0
            if self._saved:
                given = [self._saved.get(name, 0) for name in names[new].tolist()]
            counts[slots[new]] = given
            self._names[slots] = names
            for name in names[new].tolist() if self._saved else ():
                self._saved.pop(name, None)
        self._there[slots] = True
        return counts[slots] < self.m

    def leave(self, slots: Slots) -> None:
        self._there[slots] = False
        self._counts[slots] = 0

    def drawn(self, slots: Slots) -> None:
        self._counts[slots] += 1
        self._used.append(slots)

    def given_back(self, slots: Slots) -> None:
        np.subtract.at(self._counts, slots, 1)
        self._counts[slots] = np.maximum(self._counts[slots], 0)
        self._used.append(slots)

    def moved(self) -> Moved | None:
        if self._is_one_ring:  # else rows of other rings follow
            self._saved = {}
        if not self._used:
            return None
        slots = np.concatenate(self._used)
        self._used.clear()
        slots = slots[self._there[slots]]
        return slots, self._counts[slots] < self.m

    def stats(self) -> dict[str, float]:
        return {"rows_used_up": int(np.count_nonzero(self._counts >= self.m))}

    def state(self) -> dict[str, Array]:
        slots = np.flatnonzero(self._counts)
        names, counts = self._names[slots], self._counts[slots]
        known = self._saved | dict(zip(names.tolist(), counts.tolist(), strict=True))
        found = np.array([*known.items()], np.int64).reshape(-1, 2)
        return {"rows": found[:, 0], "counts": found[:, 1]}

    def restore(self, state: Any) -> None:
        self._saved = dict(zip(state["rows"].tolist(), state["counts"].tolist(), strict=True))

    def reason(self, slot: int) -> str:
        count = int(self._counts[slot])
        return f"AtMost leaves it out: it was drawn {count} of {self.m} times"
