"""Calls that are cut short at each of their lines."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cpprb_like import ReplayBuffer

HARNESS = (__file__, contextlib.__file__)  # who has to put back what was traced before


class Cut(BaseException):
    """As Ctrl-C, at a line that the test chooses."""


@contextmanager
def cut_at(line: int) -> Iterator[list[int]]:
    """Raise ``Cut`` at the given line, counting those that the block runs."""
    count = [0]

    def trace(frame: Any, event: str, arg: object) -> Any:
        del arg
        if frame.f_code.co_filename in HARNESS:
            return None
        # Not where an exception is handled: CPython then takes it for handled for ever.
        if event == "line" and sys.exc_info()[0] is None:
            count[0] += 1
            if count[0] == line:
                raise Cut
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(before)


def cut_everywhere(
    make: Callable[[], Any], call: Callable[[Any], object], look: Callable[[Any], Any]
) -> int:
    """Cut a call at each of its lines; the object is then as before the call, or as after it."""
    done = make()
    old = look(done)
    with cut_at(-1) as count:
        call(done)
    new = look(done)
    for line in range(1, count[0] + 1):
        thing = make()
        try:
            with cut_at(line):
                call(thing)
        except Cut:
            pass
        assert sys.exc_info() == (None, None, None)
        found = look(thing)
        assert found in (old, new), f"cut at line {line} of {count[0]}: {found}"
    return count[0]


def look_at(rb: ReplayBuffer) -> Any:
    """Rows, and weights where there are some."""
    rb.check()
    rows = rb.get_all_transitions()
    sampler: Any = rb.sampler
    weights = sampler.rows.get(rb.ring.present_slots()).tolist() if hasattr(sampler, "rows") else 0
    return {name: column.tolist() for name, column in rows.items()}, weights, rb.capacity
