"""Jobs that run in a forked process."""

from __future__ import annotations

import mmap
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from optional import need

SECONDS = 60  # that a child has, on a busy machine
ROOM = 1 << 29  # bytes of address space beside what the process has


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


def run_in_child(job: Callable[[int], str | None], n: int) -> list[str]:
    """``job`` of 0 to n - 1, in a process that has little memory and time; what went wrong."""
    resource = need("resource")
    notes = mmap.mmap(-1, 1 << 20)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            # Of what was taken before, and a little more: the files are small.
            statm = Path("/proc/self/statm").read_text()
            used = int(statm.split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            for number in range(n):
                signal.alarm(20)
                notes[:8] = number.to_bytes(8, "little")
                told = job(number)
                if told:
                    text = f"{number}: {told}\n".encode()[:20_000]
                    at = int.from_bytes(notes[8:16], "little")
                    if at + len(text) + 16 < len(notes):
                        notes[16 + at : 16 + at + len(text)] = text
                        notes[8:16] = (at + len(text)).to_bytes(8, "little")
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    size = int.from_bytes(notes[8:16], "little")
    found = notes[16 : 16 + size].decode().splitlines()
    if code:
        found.append(f"case {int.from_bytes(notes[:8], 'little')} ended the process: {code}")
    return found
