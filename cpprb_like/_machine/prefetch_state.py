"""Prefetch state: generators and samplers as they were before the oldest batch not yet returned.

A save, a pickle and a copy must not include draws of batches that were not returned. So the thread
records, before each draw, the state of the objects that the draw changes. Savers read the oldest
record; live objects are never set back. Not here: the thread (``buffers._prefetch``), and the list
of the objects that a draw changes (``Source._draw_states``).
"""

from __future__ import annotations

import copy
import itertools
import os
import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import numpy as np

from cpprb_like._machine import waiting
from cpprb_like._machine.of_thread import OfThread
from cpprb_like._machine.unreturned import Unreturned, batch_waits

States = Iterable[tuple[object, dict[str, Any]]]  # an object, and its attributes or state
T = TypeVar("T")


class DrawCanceledError(Exception):
    """Raised in a waiting draw, such as one at a rate limiter, that is no longer wanted."""


class Draw:
    """One draw: states before the draw by ``id`` of the object, and later the result."""

    def __init__(self, generation: int, *, ahead: bool) -> None:
        self.generation, self.ahead = generation, ahead
        self.number = next(_numbers)
        self.states: dict[int, tuple[object, dict[str, Any]]] = {}
        self.kind: Any = None  # kind of the result; None before the result
        self.value: Any = None
        self.rows = Unreturned()  # of a draw ahead
        self._unclaimed = [True]

    def claim(self) -> bool:
        """Whether this is the first call: who claims a draw returns its batch, or drops it."""
        try:
            return self._unclaimed.pop()
        except IndexError:
            return False

    def drop(self) -> None:
        """Drop the batch, unless it was claimed; its rows may be drawn again."""
        if self.claim():
            self.rows.give_back()


class PrefetchState:
    """Draws of one thread whose batches were not yet returned.

    The order of steps replaces a lock. A draw is in ``draws``, with its states, before it begins.
    Savers first read the live state, then ``state_before``. If that is None, no draw had begun
    when the live state was read.
    """

    has_thread = False  # whether a thread of its own draws

    def __init__(self, states: Callable[[], States]) -> None:
        self.states = states
        self.draws: deque[Draw] = deque()  # oldest first; the last may have no result yet
        # Held during a draw, except in sleeps, and taken before locks of buffers. Reentrant, as a
        # signal handler may restore the source.
        self.turn = threading.RLock()
        self.generation = 0  # draws of an older generation are void: the source was restored
        self.asked: float | None = None  # time since which a caller waits for the oldest draw
        self.copies: dict[int, np.random.Generator] = {}

    def void(self) -> None:
        """Void the draws that were not returned, with ``turn`` held."""
        self.generation += 1

    def drop_draws(self) -> None:
        """Drop the batches that wait, as no thread draws any more."""
        for draw in self.draws.copy():
            draw.drop()

    @contextmanager
    def drawing(self, draw: Draw) -> Iterator[None]:
        """Make a draw the current one of this thread, with ``turn`` held by the caller."""
        if draw.ahead:
            self.draws.append(draw)
            draw.states = {id(element): (element, state) for element, state in self.states()}
        rows = draw.rows if draw.ahead else None
        with _current.holding(self.turn, (self, draw)), batch_waits(self.turn, rows):
            yield


opened: dict[int, PrefetchState] = {}  # states of wanted draws, by ``id``


def _forget_threads() -> None:
    """Forget the states of threads that draw, and their batches: a forked child has neither."""
    for key, owner in opened.copy().items():
        if owner.has_thread:
            opened.pop(key, None)
            owner.drop_draws()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
_current = OfThread[tuple[PrefetchState, Draw]]()
_numbers = itertools.count()  # order of the draws of all threads


def wanted_since(began: float) -> float | None:
    """Time at which a caller began to wait for the current draw, at the earliest ``began``.

    None for a draw ahead without a waiting caller. Times are those of ``time.monotonic``.
    """
    owner, draw = _current.get() or (None, None)
    if owner is None or draw is None or not draw.ahead:
        return began
    asked = owner.asked if owner.draws[0] is draw else None
    return None if asked is None else max(began, asked)


def sleep(seconds: float) -> None:
    """Sleep with the turn released; ``DrawCanceledError`` if the draw is not wanted any more."""
    current = _current.get()
    if current is None:
        waiting.sleep(seconds)
        return
    owner, draw = current
    owner.turn.release()
    try:
        waiting.sleep(seconds)
    finally:
        owner.turn.acquire()
    if draw.generation != owner.generation or (draw.ahead and id(owner) not in opened):
        raise DrawCanceledError


def state_before(element: object) -> dict[str, Any] | None:
    """State of an object before the oldest prefetched draw that changed it; None without one."""
    found = {
        draw.number: draw.states[id(element)][1]
        for owner in opened.copy().values()
        for draw in owner.draws.copy()  # one call: the thread may append
        if id(element) in draw.states and draw.generation == owner.generation
    }
    return found[min(found)] if found else None


def state_of_generator(rng: np.random.Generator, *, live: bool = False) -> dict[str, Any]:
    """State of a generator: before the oldest draw, or ``live``."""
    with rng.bit_generator.lock:
        now = dict(rng.bit_generator.state)
    return now if live else state_before(rng) or now


def _drawing(elements: Iterable[object]) -> list[PrefetchState]:
    """Threads whose draws change one of these objects."""
    ids = set(map(id, elements))
    found = opened.copy().values()
    return [owner for owner in found if any(id(one) in ids for one, _ in owner.states())]


def without_prefetch(element: T) -> T:
    """A generator or sampler for a pickle: the object, or a copy from before the oldest draw.

    Sources that share a generator share its copy. Attributes of a sampler are not copied.
    """
    drawing = _drawing([element])
    if not drawing:
        return element
    if not isinstance(element, np.random.Generator):
        found = copy.copy(element)
        vars(found).update(state_before(element) or {})
        return found
    copies, state = drawing[0].copies, state_of_generator(element)
    known = copies.get(id(element))
    if known is None or pickle.dumps(known.bit_generator.state) != pickle.dumps(state):
        known = copies[id(element)] = copy.deepcopy(element)
        known.bit_generator.state = state
    return known  # type: ignore[return-value]


@contextmanager
def halted(elements: Iterable[object]) -> Iterator[None]:
    """Stop the prefetch of sources whose draws change these objects, and discard waiting batches.

    The caller then sets the state of the objects. It must hold no lock of a buffer.
    """
    with ExitStack() as stack:
        drawing = sorted(_drawing(elements), key=id)
        for owner in drawing:
            stack.enter_context(owner.turn)
        for owner in drawing:
            owner.void()
        yield
