"""Jobs that run side by side in threads."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

SECONDS = 0.3 if os.environ.get("HYPOTHESIS_PROFILE") == "quick" else 1.0
LEAST_RUNS = 3
PATIENCE = 60.0  # seconds


def run_together(*jobs: Callable[[], object], seconds: float = SECONDS) -> list[int]:
    """Repeat each job in a thread of its own; returns how often each ran.

    Until the time is over, and each has run ``LEAST_RUNS`` times: on a busy machine a thread may
    have to wait long for its turn, but not for ever.
    """
    stop = threading.Event()
    errors: list[BaseException] = []
    counts = [0] * len(jobs)

    def repeat(i: int) -> None:
        try:
            while not stop.is_set():
                jobs[i]()
                counts[i] += 1
        except BaseException as error:
            errors.append(error)
            stop.set()

    threads = [threading.Thread(target=repeat, args=(i,), daemon=True) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + PATIENCE
    stop.wait(seconds)
    while min(counts) < LEAST_RUNS and time.monotonic() < deadline and not stop.wait(0.05):
        pass
    stop.set()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]
    assert min(counts) >= LEAST_RUNS, f"a thread starved: {counts}"
    return counts


def eventually(holds: Callable[[], bool]) -> None:
    """Wait until something holds, which another thread does."""
    until = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.001)


def drawing_ahead() -> list[threading.Thread]:
    """The threads of this process that draw batches ahead."""
    return [thread for thread in threading.enumerate() if thread.name == "batches"]
