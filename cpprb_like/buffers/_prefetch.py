"""Batches that a thread makes ahead, while the learner works on those that it has.

The thread draws when the learner asks for a batch, so that as many wait as were asked for; the
batches come in the order of their draws. Not here: the state that is saved while batches are drawn
ahead (``_machine.drawn_ahead``), and what a batch is made into (``_tensors``).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from enum import Enum
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from cpprb_like._machine.drawn_ahead import GivenUpError, Note, States, Waiting
from cpprb_like.errors import NotEnoughDataError

__all__ = ["Prefetcher"]

TIMEOUT = 5.0  # seconds at the end of the program; a thread that draws for longer is left


class Kind(Enum):
    """What came of a draw."""

    BATCH = 0
    ERROR = 1
    END = 2


class Made(NamedTuple):
    """A batch, or why there is none."""

    kind: Kind
    value: Any
    note: Note | None
    generation: int


class Prefetcher:
    """Makes ``ahead`` batches in a thread, which begins with the first call of ``next``.

    Parameters
    ----------
    draw : callable
        Draws a batch.
    make : callable
        What the thread makes of it.
    ahead : int
        Batches that wait, at least 1.
    states : callable
        What a draw is about to change: see ``Waiting``.
    back : callable, optional
        See ``Waiting``.
    """

    def __init__(
        self,
        draw: Callable[[], Any],
        make: Callable[[Any], Any],
        ahead: int,
        states: Callable[[], States],
        back: Callable[[int], None] | None = None,
    ) -> None:
        self._work = _Work(draw, make, Waiting(states, back))
        self._ahead = ahead
        self._asked = 0
        self._taken = 0  # of what was made
        self._began = False
        self._turn = threading.RLock()  # one thread at a time waits for the batch that it asked for
        # It must not wait for anything: it runs wherever the garbage collector finds the iterator.
        self._end = weakref.finalize(self, self._work.stop)

    def next(self) -> Any:
        """The next batch, as ``make`` made it, or what drawing it raised."""
        work = self._work
        if os.getpid() != work.waiting.process:
            raise RuntimeError(
                "the thread that draws these batches is in the parent process: call batches() or "
                "epoch() here"
            )
        with self._turn:
            return self._next(work)

    def _next(self, work: _Work) -> Any:
        """The next batch, in the turn of this thread."""
        if not self._began:
            self._begin()
        lacking = False  # a draw found too few rows: what was asked for comes first, then another
        while not work.stopped:
            while not lacking and self._asked <= self._ahead:
                work.requests.put(True)
                self._asked += 1
            if not self._asked:
                try:
                    return work.again()  # there may be enough by now
                except GivenUpError:
                    continue
            made = work.first(self._taken)
            # From here to the end of this call an interrupt could lose the batch.
            self._asked -= 1
            self._taken += 1
            work.made.popleft()
            if made.generation != work.waiting.generation:
                continue  # drawn before the source was restored
            work.waiting.forget(made.note)
            if made.kind is Kind.BATCH:
                return made.value
            if made.kind is Kind.END:
                self.close()
            elif isinstance(made.value, NotEnoughDataError):
                lacking = True
            else:
                try:
                    raise made.value
                finally:
                    del made  # which has the traceback that has this frame
        raise StopIteration

    def _begin(self) -> None:
        thread = threading.Thread(target=_run, args=(self._work,), name="batches", daemon=True)
        self._work.thread = thread
        self._work.waiting.open()
        _running.add(self._work)
        self._began = True  # before it is so: an interrupt may come when the thread runs already
        try:
            thread.start()
        except BaseException:
            if thread.ident is None:  # as where the machine has no more threads: it may have later
                self._began = False
                self._work.never_began()
            raise

    def close(self) -> None:
        """End the thread, and wait until it has ended; what waits is thrown away."""
        self._end()
        self._work.join()


class _Work:
    """What the thread and the learner share: nothing that keeps the iterator alive."""

    def __init__(
        self, draw: Callable[[], Any], make: Callable[[Any], Any], waiting: Waiting
    ) -> None:
        self.draw = draw
        self.make = make
        self.waiting = waiting
        # Their ``put`` may be called from a finalizer that interrupts a ``put`` of the same thread.
        self.requests: SimpleQueue[bool] = SimpleQueue()
        self.made: deque[Made] = deque()
        self.ready: SimpleQueue[bool] = SimpleQueue()  # tells that there is one more of them
        self.stopped = False
        self.over = False  # the thread has ended
        self.thread: threading.Thread | None = None

    def stop(self) -> None:
        """Have the thread end."""
        self.stopped = True
        if os.getpid() == self.waiting.process:  # a queue of the parent may be locked for ever
            self.requests.put(False)
            self.waiting.close()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended."""
        thread = self.thread
        mine = os.getpid() == self.waiting.process
        if mine and thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def never_began(self) -> None:
        """There is no thread after all."""
        self.thread = None
        self.waiting.close()
        _running.discard(self)

    def ended(self) -> None:
        """The thread has ended: it keeps nothing alive, and nobody waits for it."""
        self.waiting.close()
        _running.discard(self)
        self.over = True
        self.ready.put(True)

    def first(self, number: int) -> Made:
        """Wait for the first that was made, which stays where it is: an interrupt loses nothing.

        It is the one of this number.
        """
        if self.made:
            with contextlib.suppress(Empty):
                self.ready.get_nowait()
            return self.made[0]
        with self.waiting.asking(number):
            while not self.made:
                if self.over:
                    raise RuntimeError("the thread that draws these batches has ended")
                self.ready.get()
        return self.made[0]

    def put(self, made: Made) -> None:
        """One more is made."""
        self.made.append(made)
        self.ready.put(True)

    def attempt(self) -> Made:
        """A batch, drawn and made into what is wanted."""
        waiting, note = self.waiting, None
        with waiting.drawing(ahead=True) as generation:
            try:
                note = waiting.note()
                return Made(Kind.BATCH, self.make(self.draw()), note, generation)
            except (StopIteration, GivenUpError):  # it was closed, or this is thrown away
                return Made(Kind.END, None, note, generation)
            except BaseException as error:  # noqa: BLE001 (raised by ``next``)
                return Made(Kind.ERROR, error, note, generation)

    def again(self) -> Any:
        """As ``attempt``, in the thread of the learner, which raises what that raises."""
        with self.waiting.drawing(ahead=False):
            return self.make(self.draw())


def _run(work: _Work) -> None:
    """What the thread does."""
    try:
        while work.requests.get() and not work.stopped:
            work.put(work.attempt())
    finally:
        work.ended()


_running: set[_Work] = set()


def _end_all() -> None:
    """No thread is left when the interpreter goes away under it."""
    there = list(_running)
    for work in there:
        work.stop()
    for work in there:
        with contextlib.suppress(RuntimeError):
            work.join(TIMEOUT)


atexit.register(_end_all)
