"""The tables of docs/performance.md and of the README: telling cases, and who is ahead in each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from budgets import OURS, is_peer

from .findings import Finding, Loop, Results, findings, loop, names
from .wording import called, grid, machine

CASES = (
    "add 1 small step",
    "add from 16 environments",
    "sample 256 small steps",
    "sample 32 pairs of images",
    "prioritized: sample 256, new priorities",
    "3-step: sample 256",
    "stacked pairs, frames last: sample 32",
    "stacked pairs, frames first: sample 32",
    "stacked pairs, frames last: memory of a step",
    "stacked pairs, frames first: memory of a step",
    "sequences of steps, 64 x 80",
    "save small steps",
    "load small steps",
    "memory of a small step",
    "import",
)
# Of the README, for reading in a few seconds.
BRIEF = (
    "add 1 small step",
    "sample 256 small steps",
    "sample 32 pairs of images",
    "prioritized: sample 256, new priorities",
    "3-step: sample 256",
    "sequences of steps, 64 x 80",
)
BRIEF_PEERS = ("cpprb", "stable-baselines3", "tianshou", "torchrl")
BRIEF_BELOW = """\
`2 x` takes twice as long as `cpprb_like`; a dash cannot do it. Measured on {machine}.
[Performance](docs/performance.md) has more cases, and `make bench` measures them."""
BELOW = """\
Medians, of buffers of 10^6 small steps (45 bytes), 10^4 pairs of images (56 kB) or 2^20 priorities.
`2 x` takes twice as long, or twice the memory, as `cpprb_like`; bold is who takes least; a dash
cannot do it, for the reason that [benchmarks](benchmarks.md) names. Measured on {machine}.
`make bench` measures it again, and `make bench-report` writes this table."""

Cell = Callable[[str], str]  # of a contender


def summary(results: Results) -> str:
    """The table, and below it where it comes from. Raises ValueError where a case is missing."""
    found = findings(results)
    chosen, whole = telling(found), loop(found)
    if whole is None or len(chosen) < len(CASES):
        raise ValueError("the results lack cases of the summary, measure again")
    peers = peers_of([*chosen, whole.step], results)
    rows = [["", *(called(name, results["entrants"]) for name in (OURS, *peers))]]
    rows += [_row(one.case.name, one, peers, one.shown, _slower(one)) for one in chosen]
    rows += _loop_rows(whole, peers)
    return "\n\n".join([grid(rows), BELOW.format(machine=machine(results, OURS))])


def brief(results: Results) -> str:
    """The table of the README: few cases, and peers that many people know."""
    found = findings(results)
    chosen = telling(found, BRIEF)
    if len(chosen) < len(BRIEF):
        raise ValueError("the results lack cases of the README, measure again")
    peers = [name for name in peers_of(chosen, results) if name in BRIEF_PEERS]
    rows = [["", *(called(name, results["entrants"]) for name in (OURS, *peers))]]
    rows += [_row(one.case.name, one, peers, one.shown, _slower(one)) for one in chosen]
    return "\n\n".join([grid(rows), BRIEF_BELOW.format(machine=machine(results, OURS))])


def telling(found: list[Finding], cases: Sequence[str] = CASES) -> list[Finding]:
    """The cases of a table, in its order."""
    by_name = {finding.case.name: finding for finding in found}
    return [by_name[name] for name in cases if name in by_name]


def peers_of(found: list[Finding], results: Results) -> list[str]:
    """All peers that did one of these cases."""
    able = {name for finding in found for name in finding.numbers}
    return [name for name in names(found, results) if name in able and is_peer(name)]


def _row(what: str, finding: Finding, peers: list[str], ours: Cell, theirs: Cell) -> list[str]:
    """A line of the table; the cell of who takes least is bold."""
    numbers = {name: finding.numbers[name] for name in (OURS, *peers) if name in finding.numbers}
    return [
        what,
        *_bold_least(numbers, {OURS: ours(OURS)} | {peer: theirs(peer) for peer in peers}),
    ]


def _bold_least(numbers: Mapping[str, float], cells: dict[str, str]) -> list[str]:
    ahead = min(numbers, key=numbers.__getitem__, default=None)
    return [f"**{cell}**" if name == ahead else cell for name, cell in cells.items()]


def _slower(finding: Finding) -> Cell:
    def cell(name: str) -> str:
        times = finding.times(name)
        return f"{times} x" if times else "-"

    return cell


def _loop_rows(whole: Loop, peers: list[str]) -> Iterator[list[str]]:
    """How fast a training loop is, and how much of its time passes in the buffer."""
    slower = _slower(whole.step)

    def speed(name: str) -> str:
        return f"{whole.speed(name)} ({slower(name)})" if whole.step.measured(name) else "-"

    yield _row("DQN on CartPole: environment steps", whole.step, peers, whole.speed, speed)
    everyone = (OURS, *peers)
    shares = {name: share for name in everyone if (share := whole.part(name)) is not None}
    cells = {name: whole.share(name) for name in everyone}
    yield ["DQN on CartPole: share in the buffer", *_bold_least(shares, cells)]
