"""A value that a thread has while it holds a lock."""

from __future__ import annotations

import threading

from threads import run_together

from cpprb_like._machine.of_thread import OfThread


def test_a_value_is_that_of_the_innermost_context_of_the_thread() -> None:
    """Others have none."""
    here, lock = OfThread[int](), threading.RLock()
    seen: list[int | None] = []
    with lock, here.holding(lock, 1):
        with here.holding(lock, 2):
            assert here.get() == 2
            run_together(lambda: seen.append(here.get()))
        assert here.get() == 1
    assert here.get() is None
    assert set(seen) == {None}


def test_a_value_that_an_interrupt_left_ends_with_the_lock() -> None:
    """The context was not left."""
    here, lock, other = OfThread[int](), threading.RLock(), threading.RLock()
    with lock:
        here.holding(lock, 1).__enter__()
        assert here.get() == 1
    assert here.get() is None
    with other, here.holding(other, 2):
        with lock:
            here.holding(lock, 3).__enter__()
        assert here.get() is None  # the outer one is lost with it, at worst
    assert here.get() is None
