"""Jobs that run in a forked process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

SECONDS = 20  # that a child has


def outcome(job: Callable[[], object], *, seconds: int = SECONDS) -> int:
    """Run a job in a forked process: 0 if it went well; -SIGALRM if it never ended."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(seconds)
            job()
            code = 0
        except BaseException:
            import traceback  # noqa: PLC0415

            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
