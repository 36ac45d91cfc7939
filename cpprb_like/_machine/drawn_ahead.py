"""What was drawn ahead: batches that a thread made and that nobody has been handed yet.

A save, a pickle or a copy is of the program, and the program has not seen these batches. So before
each draw the thread notes what the draw will change, such as the state of a generator, and whoever
saves takes what was noted before the first batch that waits. The live objects stay as they are. Not
here: the thread (``buffers._prefetch``), and what a draw changes, which each source and each
sampler says itself.
"""

from __future__ import annotations

import copy
import itertools
import os
import pickle
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, TypeVar

import numpy as np

from cpprb_like._machine.waiting import sleep as pause

__all__ = [
    "GivenUpError",
    "States",
    "Waiting",
    "asked_since",
    "halted",
    "live_state",
    "settled",
    "settled_generator",
    "sleep",
    "state_before",
    "state_of_generator",
]

States = Iterable[tuple[object, dict[str, Any]]]
One = TypeVar("One")


class Note(NamedTuple):
    """What a draw was about to change, by ``id``: the object and its state."""

    number: int
    states: dict[int, tuple[object, dict[str, Any]]]


_numbers = itertools.count()  # notes are compared by them, also those of different threads
_open: dict[int, Waiting] = {}


class GivenUpError(Exception):
    """A draw that waits, as for a rate limiter, is not wanted any more."""


class _Draw(NamedTuple):
    """A draw of this thread that may have to wait."""

    waiting: Waiting
    generation: int
    number: int | None  # None: whoever wants the batch draws it


class _Here(threading.local):
    draw: _Draw | None = None


_here = _Here()


class Waiting:
    """The notes of the batches that one thread draws ahead, the oldest first.

    Parameters
    ----------
    states : callable
        What a draw is about to change.
    back : callable, optional
        Told how many draws were in vain where what waits is given up: those of an epoch are made
        again, so that no item is lost.

    Attributes
    ----------
    turn : threading.RLock
        Held from a note until the batch is made, but for the time in which the draw waits for
        others, as by ``sleep``. Whoever holds it may take locks of buffers, and not the other way
        round.
    generation : int
        Counts how often all that waits was given up: see ``halted``.
    process : int
        The process that it is of; in a forked one nothing waits.

    Notes
    -----
    A thread may be at any place of this while another one saves. So the order matters: the note is
    appended before the draw begins, and ``state_before`` is asked after the live state was read. If
    there is no note then, no draw had begun when it was read.
    """

    def __init__(
        self, states: Callable[[], States], back: Callable[[int], None] | None = None
    ) -> None:
        self.turn = threading.RLock()  # a signal handler may restore the source
        self.generation = 0
        self.process = os.getpid()
        self._states = states
        self._back = back
        self._is_open = False
        self._drawn = 0
        self._asked: tuple[int, float] | None = None
        self._elements = {id(element): element for element, _ in states()}
        self._notes: deque[Note] = deque()
        self._copies: dict[int, np.random.Generator] = {}

    def open(self) -> None:
        """From now on whoever saves asks for the notes."""
        self._is_open = True
        _open[id(self)] = self

    def close(self) -> None:
        """Nothing waits any more, and no draw is wanted."""
        self._is_open = False
        _open.pop(id(self), None)

    @contextmanager
    def drawing(self, *, ahead: bool) -> Iterator[int]:
        """Draw with ``turn`` held: of which generation; ``ahead``, in the thread that does so."""
        with self.turn:
            before, generation = _here.draw, self.generation
            _here.draw = _Draw(self, generation, self._drawn if ahead else None)
            try:
                yield generation
            finally:
                _here.draw = before
                self._drawn += ahead

    @contextmanager
    def asking(self, number: int) -> Iterator[None]:
        """Somebody waits for the batch of the draw of this number, counted from 0, from now on."""
        self._asked = number, time.monotonic()
        try:
            yield
        finally:
            self._asked = None

    def asked_for(self, number: int) -> float | None:
        """The time since when a caller waits for the batch of a draw; None if none does."""
        asked = self._asked
        return asked[1] if asked is not None and asked[0] == number else None

    def wants(self, draw: _Draw) -> bool:
        """Whether a draw is wanted still."""
        is_open = self._is_open or draw.number is None
        return is_open and self.generation == draw.generation

    def note(self) -> Note:
        """Note the states before a draw, with ``turn`` held."""
        states = {id(element): (element, state) for element, state in self._states()}
        self._elements.update((key, element) for key, (element, _) in states.items())
        note = Note(next(_numbers), states)
        self._notes.append(note)
        return note

    def forget(self, note: Note | None) -> None:
        """The oldest batch was handed out."""
        if self._notes and self._notes[0] is note:
            self._notes.popleft()

    def give_up(self) -> None:
        """What waits is thrown away, and so is what is being drawn; with ``turn`` held."""
        self.generation += 1
        if self._back is not None:
            self._back(len(self._notes))
        self._notes.clear()

    def oldest(self, element: object) -> tuple[int, dict[str, Any]] | None:
        """The number of the oldest note, and the state of an element in it."""
        for note in self._notes.copy():  # by one call, while the thread may append
            if id(element) in note.states:
                return note.number, note.states[id(element)][1]
        return None

    def copy_of(self, rng: np.random.Generator, state: dict[str, Any]) -> np.random.Generator:
        """A generator in this state: the same one as the last time if it was asked for that.

        So buffers that share a generator share its copy in one pickle.
        """
        known = self._copies.get(id(rng))
        if known is None or pickle.dumps(known.bit_generator.state) != pickle.dumps(state):
            known = self._copies[id(rng)] = copy.deepcopy(rng)
            known.bit_generator.state = state
        return known

    def draws_from(self, element: object) -> bool:
        """Whether batches of this are drawn from an element."""
        return id(element) in self._elements


def asked_since(began: float) -> float | None:
    """The time since when a caller waits for what this thread began to wait for.

    That is when it began; of a batch that is drawn ahead, when it was asked for, or None. Times are
    those of ``time.monotonic``.
    """
    draw = _here.draw
    if draw is None or draw.number is None:
        return began
    since = draw.waiting.asked_for(draw.number)
    return None if since is None else max(began, since)


def sleep(seconds: float) -> None:
    """Sleep in a call that waits for others, with no lock held but the turn of a draw.

    The turn is free meanwhile. Raises ``GivenUpError`` if the draw is not wanted any more.
    """
    draw = _here.draw
    if draw is None:
        pause(seconds)
        return
    waiting = draw.waiting
    waiting.turn.release()
    try:
        pause(seconds)
    finally:
        waiting.turn.acquire()
    if not waiting.wants(draw):
        raise GivenUpError


def _of_here() -> list[Waiting]:
    process = os.getpid()
    return [waiting for waiting in _open.copy().values() if waiting.process == process]


def state_before(element: object) -> dict[str, Any] | None:
    """What an element was before the first batch that waits was drawn from it; None if none does.

    Ask after the element itself was read: see ``Waiting``.
    """
    found = [waiting.oldest(element) for waiting in _of_here()]
    return min((one for one in found if one is not None), default=(0, None))[1]


def state_of_generator(rng: np.random.Generator) -> dict[str, Any]:
    """The state of a generator, before the batches that wait."""
    live = live_state(rng)
    return state_before(rng) or live


def live_state(rng: np.random.Generator) -> dict[str, Any]:
    """The state that a generator has."""
    with rng.bit_generator.lock:
        return dict(rng.bit_generator.state)


def settled_generator(rng: np.random.Generator) -> np.random.Generator:
    """The generator, to be pickled or copied: a copy where batches are drawn ahead with it."""
    drawing = [waiting for waiting in _of_here() if waiting.draws_from(rng)]
    if not drawing:
        return rng
    return drawing[0].copy_of(rng, state_of_generator(rng))


def settled(element: One) -> One:
    """As ``settled_generator``, of an object whose attributes a draw changes."""
    if not any(waiting.draws_from(element) for waiting in _of_here()):
        return element
    found = copy.copy(element)
    found.__dict__.update(state_before(element) or {})
    return found


@contextmanager
def halted(elements: Iterable[object]) -> Iterator[None]:
    """No batch is drawn from these elements meanwhile, and those that wait are given up.

    For who gives the elements another state. It holds no lock of a buffer when it comes in.
    """
    there = list(elements)
    drawing = [one for one in _of_here() if any(map(one.draws_from, there))]
    with ExitStack() as stack:
        for waiting in sorted(drawing, key=id):
            stack.enter_context(waiting.turn)
        for waiting in drawing:
            waiting.give_up()
        yield
