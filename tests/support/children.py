"""Forked processes that a test starts, and ends or kills."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from forked import start

__all__ = ["Child", "child", "until"]

SECONDS = 60  # that a child has, and a wait for it


class Child:
    """A forked process that does a job."""

    def __init__(self, job: Callable[[], object]) -> None:
        self.code: int | None = None
        self.pid = start(job, SECONDS)

    def join(self) -> int:
        """Wait until it has ended; 0 if its job went well."""
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code

    def kill(self) -> None:
        """End it at once, as ``kill -9`` does."""
        if self.code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.join()


@contextmanager
def child(job: Callable[[], object]) -> Iterator[Child]:
    """A process that does a job, and is killed at the end of the block if it is still there."""
    process = Child(job)
    try:
        yield process
    finally:
        process.kill()


def until(found: Callable[[], object], seconds: float = SECONDS) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.001)
