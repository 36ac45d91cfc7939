"""The process of a contender: makes cases ready and does their work when it is asked to.

``python worker.py MODULE...`` in the contender's environment. Requests and answers are lines of
JSON on standard input and output; what a library prints goes to standard error.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import sys
from importlib import import_module
from importlib.metadata import distributions
from typing import Any, TextIO

from contender import Cannot, Contender
from measure import Work, calls_in, turn

Answer = dict[str, Any]


class Worker:
    """The contenders of one process, and the works that are ready."""

    def __init__(self, modules: list[str]) -> None:
        found = [
            thing
            for module in modules
            for thing in vars(import_module(module)).values()
            if isinstance(thing, Contender)
        ]
        self.contenders = {contender.name: contender for contender in found}
        gc.freeze()  # what the libraries made is there to stay
        self.works: dict[str, Work] = {}

    def hello(self) -> Answer:
        """Who is here, and on what it runs."""
        packages = {
            found.metadata["Name"]: found.version
            for found in distributions()
            if found.metadata["Name"]
        }
        return {
            "contenders": {
                name: {"how": one.how, "operations": [*one.operations], "reasons": one.reasons}
                for name, one in self.contenders.items()
            },
            "python": platform.python_version(),
            "packages": dict(sorted(packages.items())),
        }

    def prepare(
        self, contender: str, operation: str, parameters: dict[str, Any], seconds: float
    ) -> Answer:
        """Make a case ready: how many calls take so many seconds, or the number that it is."""
        try:
            made = self.contenders[contender].prepare(operation, parameters)
        except (Cannot, MemoryError) as reason:
            return {"cannot": str(reason) or "not enough memory"}
        if not callable(made):
            return {"value": made}
        self.works[contender] = made
        return {"calls": calls_in(made, seconds)}

    def rest(self) -> Answer:
        """Forget all works, and with them what they hold in memory."""
        self.works.clear()
        return {}

    def turn(self, contender: str, calls: int) -> Answer:
        """Do the work so often; seconds of a call."""
        return {"seconds": turn(self.works[contender], calls)}

    def serve(self, requests: TextIO, answers: TextIO) -> None:
        """Answer until there are no more requests."""
        for line in requests:
            request = json.loads(line)
            try:
                answer = getattr(self, request.pop("do"))(**request)
            except Exception as error:  # noqa: BLE001 (whatever a library raises is its answer)
                answer = {"cannot": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), file=answers, flush=True)


def main() -> None:
    """Serve, with standard output kept for the answers alone."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    Worker(sys.argv[1:]).serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
