"""Calls that are cut short at each of their lines."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import linecache
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import CodeType
from typing import Any

from forked import outcome

from cpprb_like import ReplayBuffer

HARNESS = (__file__, contextlib.__file__)  # who has to put back what was traced before
# ``wait`` gives a lock back and takes it again by other methods. An error between leaves the lock
# free, and Python's own ``with`` around it then raises another error.
NOT_CUT = {
    method.__code__ for method in vars(threading.Condition).values() if inspect.isfunction(method)
}
EACH = 0  # a number of ``cut_at`` that stands for all lines


class Cut(BaseException):
    """As Ctrl-C, at a line that the test chooses."""


def _cut() -> None:
    raise Cut


@cache
def _with_lines(path: str) -> set[int]:
    """The lines of a file that begin with ``with``."""
    lines = enumerate(linecache.getlines(path), 1)
    return {number for number, text in lines if text.lstrip().startswith("with ")}


@contextmanager
def cut_at(
    line: int, then: Callable[[], object] = _cut, only: Callable[[str], bool] = lambda path: True
) -> Iterator[list[int]]:
    """Raise ``Cut`` at the given line, or call ``then``, counting the lines that the block runs.

    Lines count in files for which ``only`` is true of the path.
    """
    count = [0]
    counted: dict[CodeType, set[int] | None] = {}  # the lines of ``with`` statements; None: no line

    def with_lines(frame: Any) -> set[int] | None:
        path = frame.f_code.co_filename
        if not only(path) or path in HARNESS or frame.f_code in NOT_CUT:
            return None
        if frame.f_globals.get("__name__", "").startswith(("hypothesis", "weakref", "_weakrefset")):
            return None  # callbacks of the garbage collector, where no error can pass
        return _with_lines(path)

    def trace(frame: Any, event: str, arg: object) -> Any:
        del arg
        code = frame.f_code
        if code not in counted:
            counted[code] = with_lines(frame)
        passed = counted[code]
        if passed is None:
            return None
        # Not where an exception is handled: CPython then takes it for handled for ever. Nor at the
        # line of a ``with`` statement, which is traced again at its end, before ``__exit__``: an
        # error there leaves a lock taken, which no signal handler can do.
        if event == "line" and sys.exc_info()[0] is None and frame.f_lineno not in passed:
            count[0] += 1
            if line in (count[0], EACH):
                then()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(before)


def first_and_last(
    call: Callable[[], object], only: Callable[[str], bool] = lambda path: True
) -> list[int]:
    """Numbers, for ``cut_at``, of the first or the last time that each line of these files runs.

    Lines take turns: the first time of one, the last time of the next.
    """
    places: dict[tuple[str, int], list[int]] = {}

    def note() -> None:
        frame = sys._getframe(2)  # behind this function and the trace function
        counted[0] += 1
        places.setdefault((frame.f_code.co_filename, frame.f_lineno), []).append(counted[0])

    counted = [0]
    with cut_at(EACH, note, only):
        call()
    return sorted(times[-(turn % 2)] for turn, times in enumerate(places.values()))


def cut_everywhere(
    make: Callable[[], Any],
    call: Callable[[Any], object],
    look: Callable[[Any], Any],
    *,
    looks_first: bool = True,
) -> int:
    """Cut a call at each of its lines; the object is then as before the call, or as after it.

    Without ``looks_first`` no look comes before the call whose lines are counted: for a look that
    does some of what the call does.
    """
    done = make()
    old = look(done if looks_first else make())
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


def killed_everywhere(
    functions: tuple[Any, ...],
    make: Callable[[int], Any],
    call: Callable[[Any], object],
    look: Callable[[Any], object],
) -> int:
    """Kill a process before each line of these functions that a call runs; look at what it left.

    A line that it runs again counts once. ``make(line)`` is called here, ``call`` of what it gives
    in a forked process. ``call`` returns a function that is to be killed, so that it can do
    something before. Returns how many lines.
    """
    codes = {inspect.unwrap(function).__code__ for function in functions}

    def kill_at(line: int) -> Callable[..., Any]:
        seen = set()

        def trace(frame: Any, event: str, arg: object) -> Any:
            del arg
            if frame.f_code not in codes:
                return None
            if event == "line":
                seen.add((frame.f_code.co_filename, frame.f_lineno))
                if len(seen) == line:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        return trace

    for line in itertools.count(1):
        thing = make(line)

        def job(line: int = line, thing: Any = thing) -> None:
            rest: Any = call(thing)
            sys.settrace(kill_at(line))
            rest()
            sys.settrace(None)

        code = outcome(job)
        if code == 0:
            return line - 1
        assert code == -signal.SIGKILL
        try:
            look(thing)
        except BaseException as error:
            error.args = (f"killed before line {line}: {error}",)
            raise
    raise AssertionError


def look_at(rb: ReplayBuffer) -> Any:
    """Rows, and weights where there are some."""
    rb.check()
    rows = rb.get_all_transitions()
    sampler: Any = rb.sampler
    weights = sampler.rows.get(rb.ring.present_slots()).tolist() if hasattr(sampler, "rows") else 0
    return {name: column.tolist() for name, column in rows.items()}, weights, rb.capacity
