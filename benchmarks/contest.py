"""Contenders take turns: each in a process of its own, all on one core, one at work at a time.

A round gives each contender of a case one turn of some milliseconds, in an order that shifts from
round to round. So whatever else the machine does meets all of them alike.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from statistics import median, quantiles
from tempfile import TemporaryFile
from threading import Thread
from time import perf_counter
from typing import Any

from budgets import OURS
from cases import Case, Effort

FOLDER = Path(__file__).resolve().parent
PATIENCE = 900.0  # seconds for an answer; filling a buffer of 1e8 rows is the longest
FEWEST_ROUNDS = 3
FAREWELL = 1.0  # seconds; whoever else holds its pipes is not waited for

Answer = dict[str, Any]


@dataclass(frozen=True)
class Party:
    """Contenders that share a process: an interpreter and the modules that hold them.

    Of one that measures another checkout, the name comes before those of its contenders.
    """

    python: Path
    modules: tuple[str, ...]
    checkout: Path = FOLDER.parent  # whose package it imports
    name: str = ""


class Process:
    """A running party. One that dies or stays silent answers with the reason from then on."""

    def __init__(self, party: Party) -> None:
        search = [str(FOLDER), str(party.checkout), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._errors = TemporaryFile("w+", errors="replace")  # noqa: SIM115 (open as long as the process lives)
        self._process = subprocess.Popen(
            [str(party.python), str(FOLDER / "worker.py"), *party.modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,  # so that it ends with all that it starts
            env=os.environ | {"PYTHONPATH": os.pathsep.join(search), "PYTHONWARNINGS": "ignore"},
        )
        self._lines = SimpleQueue[str]()
        self._ended = ""  # why there are no more answers
        self._reader = Thread(target=self._read_answers, daemon=True)
        self._reader.start()
        self.hello = self.ask(do="hello")

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def ask(self, **request: Any) -> Answer:
        """The answer to a request."""
        assert self._process.stdin is not None
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
            line = self._lines.get(timeout=PATIENCE)
        except (OSError, ValueError):
            line = ""
        except Empty:
            self._ended = f"no answer for {PATIENCE:g} s"
            self.stop()
            line = ""
        if not line:
            self._lines.put("")
            if not self._ended:
                status = self._process.wait()
                self._errors.seek(0)
                last_words = self._errors.read().strip().rpartition("\n")[2]
                self._ended = f"its process ended with {status}: {last_words}"
            return {"cannot": self._ended}
        answer: Answer = json.loads(line)
        return answer

    def stop(self) -> None:
        """End the process, and those that it started."""
        if hasattr(os, "killpg"):
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._reader.join(timeout=FAREWELL)
        with suppress(OSError), self._process, self._errors:
            pass


@dataclass
class Seat:
    """A contender in a case: what it answered, and the seconds of its turns."""

    name: str
    process: Process | None  # None of those that only have a reason
    answer: Answer
    turns: list[float]
    party: str  # its name

    @property
    def works(self) -> bool:
        """Whether it takes turns."""
        return "calls" in self.answer

    def take_turn(self) -> None:
        """One turn; a contender that fails is out, with the reason."""
        assert self.process is not None
        calls = self.answer["calls"]
        answer = self.process.ask(do="turn", contender=self.name, calls=calls)
        if "cannot" in answer:
            self.answer, self.turns = answer, []
        else:
            self.turns.append(answer["seconds"])

    def result(self) -> Answer:
        """What is written down: seconds, or a number that is no time, or why there is none."""
        if len(self.turns) < FEWEST_ROUNDS:
            return {key: self.answer[key] for key in ("value", "cannot") if key in self.answer}
        low, _, high = quantiles(self.turns, n=4)
        return {
            "median": median(self.turns),
            "fastest": min(self.turns),
            "quartiles": [low, high],
            "rounds": len(self.turns),
            "calls": self.answer["calls"],
        }


class Contest:
    """Parties, ours first, and the processes of those that are at it. To be used in ``with``."""

    def __init__(self, effort: Effort, ours: Sequence[Party], peers: Sequence[Party]) -> None:
        self.effort = effort
        self.ours = ours
        self.peers = peers
        self._running: dict[Party, Process] = {}
        self._hellos: dict[Party, Answer] = {}

    def __enter__(self) -> Contest:  # noqa: PYI034 (Self is of Python 3.11)
        try:
            for party in (*self.ours, *self.peers):
                self._hellos[party] = self._process(party).hello
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def entrants(self) -> dict[str, Answer]:
        """Each contender by name: how it is used, its Python, its packages."""
        return {
            f"{party.name}{name}": {
                "how": offer["how"],
                "python": hello["python"],
                "packages": hello["packages"],
            }
            for party, hello in reversed(self._hellos.items())  # the first party of a name counts
            for name, offer in hello.get("contenders", {}).items()
        }

    def failures(self) -> dict[str, str]:
        """Parties that could not start, by their first module, and why."""
        return {
            party.name or party.modules[0].removeprefix("contenders."): hello["cannot"]
            for party, hello in self._hellos.items()
            if "cannot" in hello
        }

    def results(self, case: Case) -> dict[str, Answer]:
        """Results of all contenders that have a say in the case."""
        if not case.alone:
            return self._together(case, self._offering(case, (*self.ours, *self.peers)))
        results: dict[str, Answer] = {}
        ours = self._offering(case, self.ours)
        for peers in [[peer] for peer in self._offering(case, self.peers)] or [[]]:
            self._stop()
            found = self._together(case, [*ours, *peers])
            beside = found.get(OURS, {}).get("median")
            results = {
                name: result | ({"beside": beside} if beside else {})
                for name, result in found.items()
            } | results
        self._stop()
        return results

    def _together(self, case: Case, parties: list[Party]) -> dict[str, Answer]:
        """Results of parties that take turns."""
        for process in self._running.values():
            process.ask(do="rest")
        seats = [seat for party in parties for seat in self._seats(case, party)]
        start = perf_counter()
        for number in range(self.effort.rounds):
            if number >= FEWEST_ROUNDS and perf_counter() - start > self.effort.case_seconds:
                break
            working = [seat for seat in seats if seat.works]
            shift = number % len(working) if working else 0
            for seat in working[shift:] + working[:shift]:
                seat.take_turn()
        return {f"{seat.party}{seat.name}": seat.result() for seat in seats}

    def _offering(self, case: Case, parties: Sequence[Party]) -> list[Party]:
        """Parties with a contender that does the case, or has a reason why not."""
        return [
            party
            for party in parties
            if any(
                case.operation in {*offer["operations"], *offer["reasons"]}
                for offer in self._hellos[party].get("contenders", {}).values()
            )
        ]

    def _seats(self, case: Case, party: Party) -> Iterator[Seat]:
        request = {"do": "prepare", "operation": case.operation, "parameters": case.parameters}
        for name, offer in self._hellos[party]["contenders"].items():
            if case.operation in offer["operations"]:
                process = self._process(party)
                seconds = self.effort.turn_seconds
                answer = process.ask(contender=name, seconds=seconds, **request)
                yield Seat(name, process, answer, [], party.name)
            elif case.operation in offer["reasons"]:
                reason = {"cannot": offer["reasons"][case.operation]}
                yield Seat(name, None, reason, [], party.name)

    def _process(self, party: Party) -> Process:
        if party not in self._running:
            self._running[party] = Process(party)
        return self._running[party]

    def _stop(self) -> None:
        for process in self._running.values():
            process.stop()
        self._running.clear()


def use_one_core() -> None:
    """This process and those that it starts run on one core, numerical libraries too."""
    os.environ |= {
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    }
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or imports would compile, as no user's do
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
