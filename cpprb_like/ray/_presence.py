"""``Presence``: which hosts are heard of, for callers that wait for answers of hosts.

Each host reports to the ledger every 50 ms. A host whose process is stopped, or whose node is cut
off, sends no reports, and calls to it have no end. A caller that waits asks the ledger, so that
such a host costs its own answer only. Not here: hosts whose process has ended, as Ray raises an
error for these (``_calls``).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import GetTimeoutError

from cpprb_like.ray._calls import GONE, Host, answer_of
from cpprb_like.ray._messages import About

SILENT = 2.0  # seconds without a report, after which a host counts as silent
PROMPT = 0.25  # seconds in which answers come, unless a host is busy or silent
READ = 10.0  # seconds in which an answer that is ready comes to this node


class Presence:
    """The hosts that the ledger of a cluster hears of."""

    def __init__(self, ledger: Any) -> None:
        self._ledger = ledger

    def heard(self) -> dict[int, tuple[About, float]]:
        """The last report of each host, and its age in seconds.

        Without an answer of the ledger, which may be started again, the result is empty.
        """
        with contextlib.suppress(GetTimeoutError, *GONE):
            found: dict[int, tuple[About, float]] = ray.get(
                self._ledger.heard.remote(), timeout=SILENT
            )
            return found
        return {}

    def silent(self) -> set[int]:
        """The numbers of the hosts that are silent."""
        return {number for number, (_, age) in self.heard().items() if age > SILENT}

    def answer(self, host: Host, reference: Any, timeout: float) -> Any:
        """The answer of a host; ``GetTimeoutError`` if it is silent, or the time is out."""
        until, wait = time.monotonic() + timeout, SILENT
        while True:
            left = max(0.0, until - time.monotonic())
            try:
                return answer_of(reference, min(wait, left))
            except GetTimeoutError:
                if left <= wait or host.number in self.silent():
                    raise
            wait = PROMPT

    def answers(self, asked: Mapping[int, Any], timeout: float) -> dict[int, Any]:
        """The answers of the hosts that are neither silent nor gone, by their numbers.

        ``asked`` has the object reference of a call for each host.
        """
        until, waiting, found = time.monotonic() + timeout, dict(asked), {}
        while waiting:
            left = max(0.0, until - time.monotonic())
            references = list(waiting.values())
            ready, _ = ray.wait(references, num_returns=len(references), timeout=min(PROMPT, left))
            for number in [number for number, one in waiting.items() if one in ready]:
                with contextlib.suppress(GetTimeoutError, *GONE):
                    found[number] = answer_of(waiting[number], READ)
                del waiting[number]
            if left <= PROMPT:
                break
            for number in waiting.keys() & self.silent() if waiting else ():
                del waiting[number]
        return found
