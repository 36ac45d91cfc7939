"""``OfThread``: a value that a thread has while it holds a lock, such as the draw in progress.

An interrupt, such as Ctrl-C, may come at the end of a call, before the value is reset. Then the
lock is free, and the thread has no value. Not here: what the values are for.
"""

from __future__ import annotations

import threading
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class OfThread(threading.local, Generic[T]):
    """A value of each thread: none at first."""

    def __init__(self) -> None:  # of each thread
        self._found: tuple[Any, T] | None = None

    def found(self) -> tuple[Any, T] | None:
        """The lock and the value of this thread, or None."""
        found = self._found
        if found is not None and not found[0]._is_owned():
            found = self._found = None
        return found

    def get(self) -> T | None:
        """The value of this thread, or None."""
        if self._found is None:  # mostly: without a further call
            return None
        found = self.found()
        return None if found is None else found[1]

    def holding(self, lock: Any, value: T) -> Held[T]:
        """A context in which this thread has a value; it holds ``lock``, a reentrant one."""
        return Held(self, (lock, value))


class Held(Generic[T]):
    """The context of ``OfThread.holding``."""

    __slots__ = "_found", "_of", "_outer"

    def __init__(self, of: OfThread[T], found: tuple[Any, T]) -> None:
        self._of, self._found = of, found

    def __enter__(self) -> None:
        self._outer, self._of._found = self._of._found, self._found

    def __exit__(self, *_: object) -> None:
        self._of._found = self._outer
