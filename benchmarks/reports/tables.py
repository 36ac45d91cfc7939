"""The whole table: every case, every contender, every promise."""

from __future__ import annotations

from budgets import FLOOR, OURS, is_peer
from cases import ANY_LENGTH, EFFORTS, cases

from .findings import Cases, Finding, Loop, Results, everyone, findings, loop, names
from .wording import called, grid, machine

LESS = 0.995  # what rounds to the same is no less
ALONE = (OURS, FLOOR)  # contenders with columns of their own
LEGEND = """\
Medians. `floor` is the same work in C, or a call that does nothing; `x floor` says how many times
that `cpprb_like` takes. Of all others: what they take (how many times what `cpprb_like` takes; how
many times what the floor takes). Where peers came one by one, their times are scaled by what ours
took beside each. A number in brackets is the reason for a dash."""


def table(results: Results, of: Cases = cases) -> str:
    """All that was measured, as Markdown: a part for each group of cases."""
    groups: dict[str, list[Finding]] = {}
    for finding in (found := findings(results, of)):
        groups.setdefault(finding.case.group, []).append(finding)
    parts = [_part(group, some, results) for group, some in groups.items()]
    return "\n\n".join([LEGEND, *parts, *_behind(found), _people(results)])


def page(results: Results) -> str:
    """The table of a whole run, and the cases that it lacks, as they have come since.

    Values of any length have results and a page of their own.
    """
    measured = {found["name"] for found in results["cases"]}
    lacking = [
        f"- {case.name}"
        for case in cases(EFFORTS[results["effort"]])
        if case.name not in measured and case.group != ANY_LENGTH
    ]
    parts = [table(results)]
    if lacking:
        parts.append(
            "\n".join(["Cases that are newer than these results, not yet measured:", "", *lacking])
        )
    return "\n\n".join(parts)


def missed(results: Results, of: Cases = cases) -> list[str]:
    """A line for each promise that was not held."""
    return [line for finding in findings(results, of) for line in finding.missed()]


def _part(group: str, found: list[Finding], results: Results) -> str:
    """The table of a group, and below it why there are gaps."""
    asked = [name for name in names(found, results) if name not in ALONE]
    others = [name for name in asked if any(name in one.numbers for one in found)]
    reasons: dict[str, int] = {}
    rows = [[group, OURS, FLOOR, "x floor", *others, "promised"]]
    rows += [_row(finding, others, reasons) for finding in found]
    rows += _loop_rows(loop(found), others)
    notes = [f"- [{number}] {reason}" for reason, number in reasons.items()]
    notes += [
        f"- {name}: {'; '.join(_reasons(found, name))}" for name in asked if name not in others
    ]
    return "\n\n".join(filter(None, [grid(_without_gaps(rows)), "\n".join(notes)]))


def _without_gaps(rows: list[list[str]]) -> list[list[str]]:
    """The columns that have something below their head."""
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    return [list(row) for row in zip(*columns, strict=True)]


def _row(finding: Finding, others: list[str], reasons: dict[str, int]) -> list[str]:
    """A case; reasons get the next number when they are met first."""
    verdicts = {True: "pass", False: "FAIL", None: "not measured"}
    promises = [
        f"{finding.promise(budget)}: {verdicts[budget.held(finding.numbers)]}"
        for budget in finding.case.budgets
    ]
    cells = [_cell(finding, name, reasons) for name in (OURS, FLOOR, *others)]
    cells.insert(2, finding.times(OURS, FLOOR))
    return [finding.case.name, *cells, "; ".join(promises)]


def _cell(finding: Finding, name: str, reasons: dict[str, int]) -> str:
    """What a contender takes, or the number of the reason why there is none."""
    if name not in finding.results:
        return ""
    if name not in finding.numbers:
        return f"- [{reasons.setdefault(finding.reason(name), len(reasons) + 1)}]"
    ratios = [] if name in ALONE else [finding.times(name), finding.times(name, FLOOR)]
    text = "; ".join(filter(None, ratios))
    return finding.shown(name) + (f" ({text})" if text else "")


def _loop_rows(whole: Loop | None, others: list[str]) -> list[list[str]]:
    """What the times of a training loop come to, if there is one."""
    if whole is None:
        return []
    rates = {
        "environment steps per second": whole.speed,
        "share of the time in the buffer": whole.share,
    }
    return [[what, of(OURS), "", "", *map(of, others), ""] for what, of in rates.items()]


def _reasons(found: list[Finding], name: str) -> list[str]:
    """Why a contender has no number in any of these, each reason once."""
    return list(dict.fromkeys(one.reason(name) for one in found if name in one.results))


def _behind(found: list[Finding]) -> list[str]:
    """The cases in which another took less than ours, if there are any."""
    lines = []
    for finding in found:
        ahead = [
            f"{name} takes {finding.shown(name)}, {finding.times(name)} times that"
            for name in finding.numbers
            if is_peer(name) and OURS in finding.numbers and (finding.ratio(name) or 1) < LESS
        ]
        if ahead:
            ours = f"{OURS} takes {finding.shown(OURS)}"
            lines.append(f"- {finding.case.name}: {'; '.join([ours, *ahead])}")
    return ["\n".join(["Where another took less:", "", *lines])] if lines else []


def _people(results: Results) -> str:
    """Who took part, how each is used, and who could not come."""
    entrants = results["entrants"]
    lines = [f"- {called(name, entrants)}: {entrants[name]['how']}" for name in everyone(results)]
    lines += [f"- {name}: not measured; {reason}" for name, reason in results["absent"].items()]
    return "\n".join([f"Measured on {machine(results, OURS)}.", "", *lines])
