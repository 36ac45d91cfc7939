"""Prefetching: a thread draws batches ahead while the learner uses earlier ones.

Each call of the learner requests draws, so that ``ahead`` batches wait after it. Batches come in
the order of their draws. Not here: the state of the source before those draws, for saves
(``_machine.prefetch_state``), and conversions to tensors (``_tensors``).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from enum import Enum
from queue import Empty, SimpleQueue
from typing import Any

from cpprb_like._machine.at_once import at_once
from cpprb_like._machine.prefetch_state import (
    Draw,
    DrawCanceledError,
    PrefetchState,
    States,
    opened,
)
from cpprb_like.errors import NotEnoughDataError

TIMEOUT = 5.0  # seconds to wait for a thread at the end of the program


class Kind(Enum):
    """Result of a draw."""

    BATCH = 0
    ERROR = 1
    END = 2


class Prefetcher:
    """Draws ``ahead`` batches in advance in a thread. The first call of ``next`` starts it.

    ``make`` converts a drawn batch, in the thread. See ``PrefetchState`` for ``states``. ``back``
    is called with the number of void draws, so that an epoch repeats them, and ``end`` when the
    thread has ended.
    """

    def __init__(
        self,
        draw: Callable[[], Any],
        make: Callable[[Any], Any],
        ahead: int,
        states: Callable[[], States],
        back: Callable[[int], None] | None = None,
        end: Callable[[], None] | None = None,
    ) -> None:
        self._work = _Work(draw, make, states, back, end)
        self._ahead = ahead
        self._asked = 0
        self._began = False
        self._turn = threading.RLock()  # one caller at a time
        # ``stop`` must not block, as the garbage collector may call it anywhere.
        self._end = weakref.finalize(self, self._work.stop)

    def next(self) -> Any:
        """The next batch, made by ``make``; raises the exception of its draw."""
        work = self._work
        if os.getpid() != work.process:
            raise RuntimeError(
                "the thread that draws these batches is in the parent process: call batches() or "
                "epoch() here"
            )
        with self._turn:
            return self._next(work)

    def _next(self, work: _Work) -> Any:
        """``next`` while this thread holds ``_turn``."""
        if not self._began:
            self._begin()
        lacking = False  # a draw found too few rows: after earlier requests, draw again
        while not work.stopped:
            while not lacking and self._asked <= self._ahead:
                work.requests.put(True)
                self._asked += 1
            if not self._asked:
                try:
                    return work.again()  # by now the source may have enough rows
                except DrawCanceledError:
                    continue
            draw = work.first()
            # An interrupt between here and the return loses the batch.
            self._asked -= 1
            work.draws.popleft()
            if draw.generation != work.generation or not draw.claim():
                continue  # drawn before the source was restored, or dropped
            if draw.kind is Kind.BATCH:
                at_once(draw.rows.returned())
                return draw.value
            draw.rows.give_back()  # such as of a batch that could not be converted
            if draw.kind is Kind.END:
                self.close()
            elif isinstance(draw.value, NotEnoughDataError):
                lacking = True
            else:
                try:
                    raise draw.value
                finally:
                    del draw  # breaks a cycle: draw, traceback, frame
        raise StopIteration

    def _begin(self) -> None:
        # Whether the thread draws is decided by a ``pop``, which is atomic.
        unclaimed = [True]
        thread = threading.Thread(
            target=_run, args=(self._work, unclaimed), name="batches", daemon=True
        )
        self._work.thread = thread
        opened[id(self._work)] = self._work
        _running.add(self._work)
        self._began = True  # set first: an interrupt may come after the start
        try:
            thread.start()
        except BaseException:
            # The machine lacks threads, or an interrupt came before the thread began. A thread
            # without a number may have been started.
            if unclaimed and unclaimed.pop():
                self._began = False
                self._work.thread = None
                self._work.leave()
            raise

    def close(self) -> None:
        """End the thread, wait for its end, and drop all waiting batches."""
        self._end()
        self._work.join()


class _Work(PrefetchState):
    """State that the thread and the learner share. It does not keep the iterator alive."""

    has_thread = True

    def __init__(
        self,
        draw: Callable[[], Any],
        make: Callable[[Any], Any],
        states: Callable[[], States],
        back: Callable[[int], None] | None,
        end: Callable[[], None] | None,
    ) -> None:
        super().__init__(states)
        self.draw = draw
        self.make = make
        self.back, self.end = back, end
        self.process = os.getpid()
        # SimpleQueue: a finalizer may call ``put`` in the middle of a ``put`` of the same thread.
        self.requests: SimpleQueue[bool] = SimpleQueue()
        self.ready: SimpleQueue[bool] = SimpleQueue()  # an item for each new result
        self.stopped = False
        self.over = False  # whether the thread has ended
        self.thread: threading.Thread | None = None

    def void(self) -> None:
        """Make all draws void: see ``PrefetchState``. An epoch repeats them."""
        n = sum(draw.generation == self.generation for draw in self.draws)
        super().void()
        for draw in self.draws:
            draw.drop()
        if self.back is not None:
            self.back(n)

    def stop(self) -> None:
        """Tell the thread to end."""
        self.stopped = True
        if os.getpid() == self.process:  # after a fork the queue may be locked for ever
            self.requests.put(False)
            opened.pop(id(self), None)

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended."""
        thread = self.thread
        mine = os.getpid() == self.process
        if mine and thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def leave(self) -> None:
        """Remove this object from the global tables, as no thread draws any more."""
        opened.pop(id(self), None)
        _running.discard(self)

    def drop_draws(self) -> None:
        super().drop_draws()
        if self.end is not None:
            self.end()

    def first(self) -> Draw:
        """Wait for the oldest draw. It stays in ``draws``, so an interrupt loses nothing."""
        if self._has_result():
            with contextlib.suppress(Empty):
                self.ready.get_nowait()
            return self.draws[0]
        self.asked = time.monotonic()
        try:
            while not self._has_result():
                if self.over:
                    raise RuntimeError("the thread that draws these batches has ended")
                self.ready.get()
        finally:
            self.asked = None
        return self.draws[0]

    def _has_result(self) -> bool:
        return bool(self.draws) and self.draws[0].kind is not None

    def put(self, draw: Draw, kind: Kind, value: Any) -> None:
        """Store the result of a draw."""
        draw.value = value
        draw.kind = kind  # last, as the learner reads ``value`` once this is set
        self.ready.put(True)

    def attempt(self) -> None:
        """Draw a batch ahead, and convert it."""
        with self.turn:
            draw = Draw(self.generation, ahead=True)
            try:
                with self.drawing(draw):
                    made = self.make(self.draw())
                self.put(draw, Kind.BATCH, made)
            except (StopIteration, DrawCanceledError):  # the source was closed, or the draw is void
                self.put(draw, Kind.END, None)
            except BaseException as error:  # noqa: BLE001 (raised by ``next``)
                self.put(draw, Kind.ERROR, error)

    def again(self) -> Any:
        """Draw and convert a batch in the thread of the learner."""
        with self.turn, self.drawing(Draw(self.generation, ahead=False)):
            return self.make(self.draw())


def _run(work: _Work, unclaimed: list[bool]) -> None:
    """Body of the thread."""
    try:
        unclaimed.pop()
    except IndexError:
        return  # the start was interrupted, and another thread will draw
    try:
        while work.requests.get() and not work.stopped:
            work.attempt()
    finally:
        work.leave()
        with work.turn:
            work.drop_draws()
        work.over = True
        work.ready.put(True)


_running: set[_Work] = set()


def _end_all() -> None:
    """End all threads before the interpreter ends."""
    there = list(_running)
    for work in there:
        work.stop()
    for work in there:
        with contextlib.suppress(RuntimeError):
            work.join(TIMEOUT)


atexit.register(_end_all)
