"""``Unreturned``: the rows of a batch that waits, where rules count draws.

A row of such a batch counts as drawn, so no other draw has it. A save of the view gives it back,
and so does the end of the wait without a return, such as the end of an iterator. Not here: which
batches wait (``buffers._prefetch``, ``buffers._budget``), and what rules do (``samplers._rules``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cpprb_like._machine.of_thread import OfThread

__all__ = [
    "Unreturned",
    "WaitingRows",
    "batch_waits",
    "note_drawn",
    "part_begins",
    "waiting_batch",
]

Handles = NDArray[np.int64]


class WaitingRows(Protocol):
    """Rules that count draws.

    A change is one operation of the dict or the deque: other threads and interrupts see all of it.
    """

    unreturned: dict[Any, Handles]  # rows of batches that wait
    given_back: deque[Handles]  # rows that were drawn and are to be drawn again


class Part:
    """The rows that rules counted in a batch, from ``start`` on."""

    __slots__ = ("rules", "start")

    def __init__(self, rules: WaitingRows, start: int) -> None:
        self.rules, self.start = rules, start


class Unreturned:
    """The counted rows of a batch that waits, or of a piece of one."""

    def __init__(self) -> None:
        self.parts: list[Part] = []

    def add(self, rules: WaitingRows, handles: Handles, start: int) -> None:
        """Add rows that begin at row ``start`` of the batch."""
        part = Part(rules, start)
        self.parts.append(part)
        rules.unreturned[part] = handles

    def returned(self) -> list[Callable[[], Any]]:
        """Changes, for ``at_once``, when the batch is returned."""
        return [partial(part.rules.unreturned.pop, part, None) for part in self.parts]

    def give_back(self) -> None:
        """Have the rows be drawn again. Safe in a finalizer; a second call has no effect."""
        for part in self.parts:
            handles = part.rules.unreturned.pop(part, None)
            if handles is not None:
                part.rules.given_back.append(handles)

    def split(self, stop: int) -> tuple[Unreturned, Unreturned, list[Callable[[], Any]]]:
        """The rows before ``stop``, the others, and the changes, for ``at_once``."""
        first, rest = Unreturned(), Unreturned()
        changes: list[Callable[[], Any]] = []
        for part in self.parts:
            rules, cut = part.rules, max(stop - part.start, 0)
            handles = rules.unreturned.get(part)
            if handles is None:
                continue
            before, behind = Part(rules, part.start), Part(rules, max(part.start - stop, 0))
            first.parts.append(before)
            rest.parts.append(behind)
            changes.append(partial(rules.unreturned.pop, part, None))
            halves = {before: handles[:cut], behind: handles[cut:]}
            changes.append(partial(rules.unreturned.update, halves))
        return first, rest, changes


# The batch in which rows of this thread wait, if they do; and the row at which a part begins.
_here = OfThread[tuple["Unreturned | None", int]]()


def batch_waits(lock: Any, batch: Unreturned | None) -> AbstractContextManager[None]:
    """Have rows that this thread draws wait in ``batch``; None: they are returned at once.

    The thread holds the lock, a reentrant one.
    """
    return _here.holding(lock, (batch, 0))


@contextmanager
def part_begins(start: int) -> Iterator[None]:
    """Let this thread draw the part of a batch that begins at its row ``start``."""
    found = _here.found()
    if found is None:
        yield
        return
    lock, (batch, outer) = found
    with _here.holding(lock, (batch, outer + start)):
        yield


def note_drawn(rules: WaitingRows, handles: Handles) -> None:
    """Note rows that were drawn and counted, if their batch waits."""
    batch, start = _here.get() or (None, 0)
    if batch is not None:
        batch.add(rules, handles, start)


def waiting_batch() -> Unreturned | None:
    """The batch in which rows that this thread draws wait."""
    batch, _ = _here.get() or (None, 0)
    return batch
