"""Locks across ``os.fork``: no lock is held in the child by a thread that does not exist there.

A fork copies the memory of all threads, but only the forking thread goes on in the child. A call of
another thread would stay half-done there, and its locks held for ever. So the forking thread first
takes every lock of this package, in the order in which calls take them. Not here: what the locks
are for (``gate``, ``generators``, ``buffers._replay``, ``processes``).
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

__all__ = ["BUFFER", "GENERATOR", "TREE", "OneProcess", "tell", "watch"]

BUFFER, GENERATOR, TREE = range(3)  # in the order in which calls take them
TIMEOUT = 5.0  # seconds for all locks; one that is held for longer is made anew in the child


_watched: dict[tuple[int, int], weakref.ref[Any]] = {}
_told: dict[int, tuple[weakref.ref[Any], Callable[[Any], None]]] = {}
_ours = threading.local()  # the locks that a thread took to fork


def watch(lock: Any, level: int) -> None:
    """Make sure that a lock is free in every child, as long as the lock exists.

    It is one of ``threading``, or has the same ``acquire``, ``release`` and ``_at_fork_reinit``.
    """
    key = level, id(lock)
    if key not in _watched:
        _watched[key] = weakref.ref(lock, partial(_forget, _watched, key))


def tell(method: Callable[[], None]) -> None:
    """Call a method in every child, as long as its object exists; it may only set attributes."""
    owner, function = method.__self__, method.__func__  # type: ignore[attr-defined]
    _told[id(owner)] = weakref.ref(owner, partial(_forget, _told, id(owner))), function


def _forget(known: dict[Any, Any], key: Any, _: object) -> None:
    known.pop(key, None)


def _living() -> list[Any]:
    """The locks, in the order in which they are taken."""
    known = _watched.copy()  # one atomic call: other threads may add locks
    found = [known[key]() for key in sorted(known)]
    return [lock for lock in found if lock is not None]


def _take_all() -> None:
    until = time.monotonic() + TIMEOUT
    taken: list[Any] = []
    _ours.taken = taken
    for lock in _living():
        if lock.acquire(timeout=max(0.0, until - time.monotonic())):
            taken.append(lock)  # noqa: PERF401 (what raises here must find those that were taken)


def _give_back() -> None:
    for lock in reversed(_ours.taken):
        lock.release()
    _ours.taken = []


def _renew() -> None:
    taken = {id(lock) for lock in _ours.taken}
    for lock in _living():
        if id(lock) not in taken:
            lock._at_fork_reinit()
    _give_back()
    for ref, function in _told.copy().values():
        owner = ref()
        if owner is not None:
            function(owner)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_take_all, after_in_parent=_give_back, after_in_child=_renew)


class OneProcess:
    """A reentrant lock that only the process that made it can take; others get ``RuntimeError``.

    It guards what a forked child shares with its parent without a lock between processes.
    """

    def __init__(self, refusal: str) -> None:
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._refusal = refusal
        watch(self._lock, BUFFER)

    def close(self, refusal: str) -> None:
        """Let nobody take it any more."""
        with self._lock:
            self._process, self._refusal = -1, refusal

    def check(self) -> None:
        """Raise what taking it would raise in this process."""
        if os.getpid() != self._process:
            raise RuntimeError(self._refusal)

    def __enter__(self) -> bool:
        self.check()
        return self._lock.__enter__()

    def __exit__(self, *error: object) -> None:
        self._lock.release()
