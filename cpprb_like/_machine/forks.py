"""Locks across ``os.fork``: a child starts with all locks of the package free.

A fork copies the memory of all threads, but the child has only the forking thread. Unfinished calls
of other threads would hold their locks in the child for ever. So the forking thread first takes
every lock of this package, in the order of calls, and the lock of NumPy's global generator, which
seeds buffers. Signals are blocked until the hooks of both processes have run, as an exception of a
signal handler would interrupt a hook. Not here: what the locks guard (``generators``,
``buffers._replay``, ``processes``).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import Any

from numpy.random.mtrand import get_bit_generator

__all__ = [
    "BUFFER", "EPOCH", "GENERATOR", "INNERMOST", "OneProcess", "tell", "tell_before", "watch",
]  # fmt: skip

EPOCH, BUFFER, GENERATOR, INNERMOST = range(4)  # levels of locks, in the order of calls
TIMEOUT = 5.0  # seconds for all locks; the child replaces a lock that is held longer


_watched: dict[tuple[int, int], weakref.ref[Any]] = {}
Methods = dict[int, tuple[weakref.ref[Any], Callable[[Any], None]]]  # by ``id`` of the object
_methods: Methods = {}
_preparations: Methods = {}


class _ForkState(threading.local):
    """State of a fork between its hooks, of the thread that forks."""

    def __init__(self) -> None:
        self.taken: list[Any] = []
        self.mask: set[int | signal.Signals] | None = None  # None: no signal was blocked


_state = _ForkState()


def watch(lock: Any, level: int) -> None:
    """Make a lock free in every forked child, as long as the lock exists.

    The lock is one of ``threading``, or has ``acquire``, ``release`` and ``_at_fork_reinit``.
    """
    key = level, id(lock)
    if key not in _watched:
        # The callback is one C call, ``pop(key, reference)``: in a Python function, an exception of
        # a signal handler would be lost.
        _watched[key] = weakref.ref(lock, partial(_watched.pop, key))


def tell(method: Callable[[], None]) -> None:
    """Call a method in every forked child, as long as its object exists.

    It should not raise: Python prints the error, and the child goes on.
    """
    _register(_methods, method)


def tell_before(method: Callable[[], None]) -> None:
    """Call a method before every fork, with all locks held: see ``tell``."""
    _register(_preparations, method)


def _register(methods: Methods, method: Callable[[], None]) -> None:
    owner, function = method.__self__, method.__func__  # type: ignore[attr-defined]
    methods[id(owner)] = weakref.ref(owner, partial(methods.pop, id(owner))), function


def _call(methods: Methods) -> None:
    """Call all of them, even if one raises."""
    with contextlib.ExitStack() as calls:  # which calls the last one first
        for ref, function in reversed(methods.copy().values()):
            owner = ref()
            if owner is not None:
                calls.callback(function, owner)


def _living() -> list[Any]:
    """The existing locks, in the order in which they are taken."""
    watch(get_bit_generator().lock, GENERATOR)  # the global generator may have changed
    known = _watched.copy()  # one atomic call, as other threads may add locks
    found = [known[key]() for key in sorted(known)]
    return [lock for lock in found if lock is not None]


def _before() -> None:
    _state.mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    if "numpy.ma" in sys.modules:
        # NumPy imports it in the first ``np.unique``. This waits for a thread that is doing so; the
        # lock of a half-imported module would be held in the child for ever.
        importlib.import_module("numpy.ma")
    until = time.monotonic() + TIMEOUT
    for lock in _living():
        acquire = methodcaller("acquire", timeout=max(0.0, until - time.monotonic()))
        # One C call: no signal handler can run between taking and recording the lock.
        _state.taken.extend(filter(acquire, (lock,)))
    _call(_preparations)


def _give_back() -> None:
    taken, _state.taken = _state.taken, []
    list(map(methodcaller("release"), reversed(taken)))


def _unblock() -> None:
    mask, _state.mask = _state.mask, None
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _in_parent() -> None:
    _give_back()
    _unblock()


def _in_child() -> None:
    taken = {id(lock) for lock in _state.taken}
    for lock in _living():
        if id(lock) not in taken:
            lock._at_fork_reinit()
    _give_back()
    try:
        _call(_methods)
    finally:
        _unblock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)


class OneProcess:
    """A reentrant lock that only the process that made it can take.

    Other processes get ``RuntimeError``. The lock guards memory that a forked child shares.
    """

    def __init__(self, refusal: str) -> None:
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._refusal = refusal
        watch(self._lock, BUFFER)

    def close(self, refusal: str) -> None:
        """Refuse the lock to all later callers."""
        with self._lock:
            self._process, self._refusal = -1, refusal

    def check(self) -> None:
        """Raise ``RuntimeError`` if this process cannot take the lock."""
        if os.getpid() != self._process:
            raise RuntimeError(self._refusal)

    def __enter__(self) -> bool:
        self.check()
        return self._lock.__enter__()

    def __exit__(self, *error: object) -> None:
        self._lock.release()
