"""Jobs that run in a forked process."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable

SECONDS = 20  # that a child has


def start(job: Callable[[], object], seconds: int = SECONDS) -> int:
    """Run a job in a forked process, and return its process id.

    The exit code is 0 if the job returned, and 1 if it raised. SIGALRM ends a process that still
    runs after ``seconds``, also if the test itself was killed.
    """
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(seconds)
            job()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            try:
                sys.stderr.flush()
            finally:
                os._exit(code)  # also if the handler of a signal raised
    return child


def outcome(job: Callable[[], object], *, seconds: int = SECONDS) -> int:
    """Run a job in a forked process: 0 if it went well; -SIGALRM if it never ended."""
    return os.waitstatus_to_exitcode(os.waitpid(start(job, seconds), 0)[1])
