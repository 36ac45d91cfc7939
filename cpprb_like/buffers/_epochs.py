"""``EpochBatches``: the batches of an epoch, one after another.

Not here: the order of the rows and how they are read, which each source decides (``EpochOrder``),
and conversions to tensors (``_tensors``).
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Slots
from cpprb_like._machine.forks import EPOCH, watch


class EpochOrder(NamedTuple):
    """The rows of an epoch that has begun."""

    take: Callable[[int], Slots]
    read: Callable[[Slots], dict[str, NDArray[Any]]]
    is_gone: Callable[[], bool]


class EpochSlice(NamedTuple):
    """A part of an epoch: of its rows in order, rows ``number``, ``number + of``, ...

    Of the batches of these rows, batches ``player``, ``player + deal``, ... are returned.
    """

    number: int = 0
    of: int = 1
    player: int = 0
    deal: int = 1


class EpochBatches(Iterator[dict[str, NDArray[Any]]]):
    """The batches of one part of an epoch, which begins with its first batch.

    With ``drop_last`` the epoch ends before a round in which a batch of any part would be smaller.
    A batch that cannot be read is left out. ``ahead`` is the greatest argument of ``back``.
    """

    def __init__(
        self,
        begin: Callable[[], EpochOrder | None],
        n: int,
        drop_last: bool,
        part: EpochSlice,
        ahead: int,
    ) -> None:
        self._begin: Callable[[], EpochOrder | None] | None = begin
        self._order: EpochOrder | None = None
        self._n, self._drop_last, self._part = n, drop_last, part
        self._taken = 0  # batches of the part, dealt to all players
        # Rows of the newest calls of ``next``: the batches ahead, and the one in progress.
        self._recent: deque[Slots | None] = deque(maxlen=ahead + 1 if ahead else 0)
        self._again: deque[Slots] = deque()
        self._turn = threading.RLock()  # threads that share the epoch get different batches
        watch(self._turn, EPOCH)

    def __next__(self) -> dict[str, NDArray[Any]]:
        try:
            with self._turn:
                found = self._next()
        except StopIteration as error:  # of a user's code: it would end the epoch silently
            raise RuntimeError("reading a batch raised StopIteration") from error
        if found is None:
            raise StopIteration
        return found

    def _next(self) -> dict[str, NDArray[Any]] | None:
        """The next batch; None at the end."""
        self._recent.append(None)
        if self._begin is not None:
            self._order, self._begin = self._begin(), None
        order = self._order
        slots = None if order is None else self._next_slots(order)
        if order is None or slots is None:
            return None
        if self._recent:
            self._recent[-1] = slots
        try:
            return order.read(slots)
        except BaseException:
            if order.is_gone():
                self._again.clear()
                self._no_more()
            raise

    def back(self, n: int) -> None:
        """Let the next calls read the batches of the last n calls again."""
        read = [slots for slots in list(self._recent)[-n:] if slots is not None] if n else []
        self._again.extendleft(reversed(read))

    def _next_slots(self, order: EpochOrder) -> Slots | None:
        """Slots of the rows of the next batch; None at the end."""
        if self._again:
            return self._again.popleft()
        number, of, player, deal = self._part
        while True:
            found = order.take(min(self._n * of, sys.maxsize))
            is_round = len(found) == self._n * of
            slots = np.ascontiguousarray(found[number::of])
            if len(slots) == 0 or (self._drop_last and not is_round):
                self._no_more()
                return None
            self._taken += 1
            if (self._taken - 1) % deal == player:
                return slots

    def _no_more(self) -> None:
        """Drop the order, which may be large. Batches of ``_again`` can still be read."""
        if self._order is not None:
            self._order = self._order._replace(take=lambda _: np.empty(0, np.intp))
