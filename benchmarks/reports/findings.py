"""The results of a run, from its JSON, case by case with the promises of the case."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

from budgets import FLOOR, OURS, Budget, Limit, Numbers
from cases import EFFORTS, Case, Effort, cases

from .wording import digits, quantity

Results = dict[str, Any]
Cases = Callable[[Effort], Iterable[Case]]  # that were to be measured
LONGEST_REASON = 200
LOOP_STEP = "loop_step"
LOOP_IN_BUFFER = "loop_in_buffer"


@dataclass(frozen=True)
class Finding:
    """The results of one case."""

    case: Case
    results: dict[str, Results]

    def measured(self, name: str) -> float | None:
        """The median of a contender, or its number where that is no time; None without one."""
        result = self.results.get(name, {})
        number: float | None = result.get("median", result.get("value"))
        return number

    def shown(self, name: str) -> str:
        """The number that is compared, with its unit."""
        number = self.numbers.get(name)
        return "-" if number is None else quantity(number, self.case.unit)

    def reason(self, name: str) -> str:
        """Why a contender has no number."""
        return shorten(self.results[name].get("cannot", "was not measured"), LONGEST_REASON)

    @property
    def numbers(self) -> Numbers:
        """All numbers, as if each contender had taken turns with the same run of ours."""
        ours = self.measured(OURS)
        numbers = {}
        for name, result in self.results.items():
            number, beside = self.measured(name), result.get("beside")
            if number is not None:
                numbers[name] = number * ours / beside if ours and beside else number
        return numbers

    def ratio(self, name: str, than: str = OURS) -> float | None:
        """How many times what another takes a contender takes; None where that is no number."""
        numbers = self.numbers
        return numbers[name] / numbers[than] if name in numbers and numbers.get(than) else None

    def times(self, name: str, than: str = OURS) -> str:
        """The same in three digits, or nothing."""
        ratio = self.ratio(name, than)
        return "" if ratio is None else digits(ratio)

    def promise(self, budget: Budget) -> str:
        """A promise in words."""
        if isinstance(budget, Limit):
            return f"<= {quantity(budget.most, self.case.unit)}"
        return str(budget)

    def missed(self) -> list[str]:
        """A line for each promise that was not held, and a line if ours failed.

        A reason that the floor has too, such as a package that is not here, is no failure.
        """
        ours = self.results.get(OURS, {})
        if "cannot" in ours and ours == self.results.get(FLOOR):
            return []
        if "cannot" in ours:
            return [f"{self.case.name}: {OURS} did not do it: {self.reason(OURS)}"]
        return [
            f"{self.case.name}: promised {self.promise(budget)}; {self._against(budget)}"
            for budget in self.case.budgets
            if budget.held(self.numbers) is False
        ]

    def _against(self, budget: Budget) -> str:
        """Our number, and each other one for which alone the promise would not be held."""
        numbers = self.numbers
        ours = {OURS: numbers[OURS]}
        others = [
            f"{name} takes {self.shown(name)}, {self._beside(name)}"
            for name, number in numbers.items()
            if budget.held(ours) is None and budget.held(ours | {name: number}) is False
        ]
        return "; ".join([f"{OURS} takes {self.shown(OURS)}", *others])

    def _beside(self, name: str) -> str:
        """What another takes as a multiple of ours, or the other way round."""
        if self.numbers[name] < self.numbers[OURS]:
            return f"ours is {self.times(OURS, name)} x that"
        return f"{self.times(name)} x ours"


@dataclass(frozen=True)
class Loop:
    """A training loop: seconds of a step, and those of them in the buffer."""

    step: Finding
    inside: Finding

    def speed(self, name: str) -> str:
        """Steps that a contender does in a second."""
        seconds = self.step.measured(name)
        return f"{digits(1 / seconds)}/s" if seconds else "-"

    def part(self, name: str) -> float | None:
        """The part of the time that it spends in the buffer."""
        whole, inside = self.step.measured(name), self.inside.measured(name)
        return inside / whole if whole and inside is not None else None

    def share(self, name: str) -> str:
        """That part in words."""
        part = self.part(name)
        return "-" if part is None else f"{digits(100 * part)} %"


def everyone(results: Results) -> list[str]:
    """All contenders, in the order in which they met."""
    met = (name for case in results["cases"] for name in case["results"])
    return list(dict.fromkeys([*met, *results["entrants"]]))


def names(found: list[Finding], results: Results) -> list[str]:
    """The contenders that have a number or a reason in one of these cases."""
    return [name for name in everyone(results) if any(name in one.results for one in found)]


def findings(results: Results, of: Cases = cases) -> list[Finding]:
    """The results of each case. Raises ValueError if the cases have changed since then."""
    known = {case.name: case for case in of(EFFORTS[results["effort"]])}
    unknown = [found["name"] for found in results["cases"] if found["name"] not in known]
    if unknown:
        raise ValueError(f"there is no such case any more, measure again: {', '.join(unknown)}")
    return [Finding(known[found["name"]], found["results"]) for found in results["cases"]]


def loop(found: list[Finding]) -> Loop | None:
    """The training loop, if it was measured."""
    by_operation = {finding.case.operation: finding for finding in found}
    if not by_operation.keys() >= {LOOP_STEP, LOOP_IN_BUFFER}:
        return None
    return Loop(by_operation[LOOP_STEP], by_operation[LOOP_IN_BUFFER])
