"""Measure what once cost far more in one state or spelling than in the usual one.

``make cliffs`` runs it. Each case is measured beside the usual work, in turns; with ``--before``,
the same pairs of another checkout take turns with them, so before and after come from one run.
Exits with 1 if a case takes more times the usual work than is promised. Not here: floors and
peers (``run``).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cases import EFFORTS, Case, Effort
from contest import Contest, Party, use_one_core
from reports.wording import digits, grid, quantity
from tqdm import tqdm

__all__ = ["Cliff", "cliffs"]

MODULES = ("contenders.cliffs",)
BEFORE = "before: "
USUAL, STEEP = "usual", "case"
PAUSE = "environment pausing"


@dataclass(frozen=True)
class Cliff:
    """A case, and how many times the usual work it may take."""

    case: Case
    times: float


def cliffs(effort: Effort) -> Iterator[Cliff]:
    """All of them, those that share a buffer one behind the other."""
    for group in (_deleted, _paused, _episodes, _fields, _casts, _walked):
        yield from group(effort)


def _deleted(effort: Effort) -> Iterator[Cliff]:
    for nstep, what in ((False, ""), (True, ", 5-step")):
        case = f"half the rows deleted: sample 32{what}"
        yield _cliff(case, 3.0, "half_deleted", rows=effort.rows, nstep=nstep)


def _paused(effort: Effort) -> Iterator[Cliff]:
    pause = effort.rows // 8 if effort.whole else effort.rows // 64
    sample, adding = "batch = rb.sample(32)", "rb.add_where(present, **steps)"
    for prioritized, what, times, work in (
        (False, "sample 32", 3.0, sample),
        (False, "len", 3.0, "len(rb)"),
        (False, "add_where", 2.0, adding),
        (True, "prioritized sample 32", 3.0, sample),
        (True, "prioritized add_where", 2.0, adding),
    ):
        options = {"pause": pause, "prioritized": prioritized, "what": work}
        yield _cliff(f"{PAUSE}: {what}", times, "pause", **options)
    many = {"rows": effort.rows, "envs": min(4096, effort.rows // 8)}
    group = f"prioritized 5-step, {many['envs']} environments"
    yield _cliff(f"{group}: sample 256", 2.0, "many_envs_sample", **many)
    yield _cliff(f"{group}: new priorities", 2.0, "many_envs_update", **many)


def _episodes(effort: Effort) -> Iterator[Cliff]:
    sizes = {"few": 1000, "many": effort.rows}
    yield _cliff("delete an episode: many rows", 3.0, "episode_delete", **sizes)
    yield _cliff("add, sample an episode: many rows", 3.0, "episode_sample", **sizes)
    yield _cliff("list of episodes: with returns", 2.0, "episode_returns", rows=effort.rows)
    yield _cliff("clear a few rows: many there could be, prioritized", 3.0, "clear_few", **sizes)
    for prioritized, what in ((False, ""), (True, ", prioritized")):
        options = {"rows": effort.rows, "prioritized": prioritized}
        yield _cliff(f"sequences, hardly a start: sample 16{what}", 3.0, "rare_starts", **options)
    rows = {"rows": effort.rows}
    yield _cliff("distinct sequences, one huge priority: sample 16", 3.0, "huge_priority", **rows)
    yield _cliff("sequences of recent steps: 16 distinct", 3.0, "recent_sequences", **rows)
    yield _cliff("goals, hardly a row left: sample 32", 3.0, "goals_of_few", **rows)
    yield _cliff("first batch of an epoch: permutation", 1.0, "epoch_begins", **rows)


def _fields(effort: Effort) -> Iterator[Cliff]:
    for fields in (50, 200):
        options = {"fields": fields}
        yield _cliff(f"{fields} fields: sample 32 into a batch", 1.0, "many_fields_out", **options)
        yield _cliff(f"{fields} fields: add, equal names", 2.0, "many_fields_add", **options)
        yield _cliff(f"{fields} fields: sample 32 by name", 3.0, "many_fields_named", **options)
        yield _cliff(f"{fields} fields: one of a mixture", 3.0, "mixture_of_one_field", **options)
    for n in (32, 256):
        options = {"rows": effort.rows, "n": n}
        yield _cliff(f"small steps: sample {n} into a batch", 1.0, "small_out", **options)


def _casts(effort: Effort) -> Iterator[Cliff]:
    del effort
    obs = [0.1, 0.2, 0.3, 0.4]
    for name, what, value, dtype in (
        ("done", "done=0.0", 0.0, None),
        ("act", "act=1.0", 1.0, None),
        ("rew", "rew=1", 1, None),
        ("obs", "obs in a list", obs, None),
        ("obs", "obs of float64", obs, "float64"),
        ("obs", "obs of int64", [1, 2, 3, 4], "int64"),
        ("rew", "rew of np.float64", 1.0, "float64"),
        ("rew", "rew of np.int64", 1, "int64"),
    ):
        options = {"name": name, "value": value, "dtype": dtype}
        yield _cliff(f"add a step: {what}", 4.0, "cast_one", **options)
    for columns, what, dtype, as_list in (
        (11, "(256, 11) of float64", "float64", False),
        (1, "(256, 1) of int64", "int64", False),
        (1, "256 floats in a list", "float64", True),
    ):
        options = {"columns": columns, "dtype": dtype, "as_list": as_list}
        yield _cliff(f"add many: {what}", 1.5, "cast_many", **options)
    yield _cliff("add a step: tensors", 6.0, "add_tensors")
    yield _cliff("replace a number of a step", 10.0, "update_scalars", rows=10_000)


def _walked(effort: Effort) -> Iterator[Cliff]:
    for envs, what, times in ((None, "one environment", 6.0), (16, "16 environments", 12.0)):
        yield _cliff(f"recorder.add: {what}", times, "recorder_add", envs=envs)
    rows = {"rows": max(2000, effort.image_rows // 5)}
    for what, times in (("sample", 1.2), ("add", 1.2), ("nbytes", 1.01)):
        unit = "B" if what == "nbytes" else "s"
        case = f"stacks without their axis, frames first: {what}"
        yield _cliff(case, times, f"stacks_{what}", unit, **rows)
    images = {"rows": effort.image_rows, "n": 1024}
    yield _cliff("1024 pairs of images: above memcpy", 1.15, "image_pairs", **images)


def _cliff(what: str, times: float, operation: str, unit: str = "s", /, **options: Any) -> Cliff:
    return Cliff(Case("Cliffs", what, operation, options, unit=unit), times)


def main() -> None:
    """Measure what the options name."""
    options = _options()
    effort = EFFORTS[options.effort]
    chosen = [cliff for cliff in cliffs(effort) if options.only in cliff.case.name]
    if not chosen:
        sys.exit(f"no cliff has '{options.only}' in its name; they are in benchmarks/cliffs.py")
    before = [] if options.before is None else [_other(options.before)]
    use_one_core()
    measured = {}
    with Contest(effort, [Party(Path(sys.executable), MODULES)], before) as contest:
        for name, reason in contest.failures().items():
            sys.exit(f"{name or 'this checkout'}: {reason}")
        for cliff in (bar := tqdm(chosen, unit="cliff")):
            bar.set_postfix_str(cliff.case.name)
            measured[cliff.case.name] = contest.results(cliff.case)
    print("\n".join([_table(chosen, measured), *_missing(measured)]))
    if options.output is not None:
        options.output.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    over = [line for cliff in chosen for line in _over(cliff, measured[cliff.case.name])]
    sys.exit("\nnot held:\n" + "\n".join(over) if over else 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--effort", choices=EFFORTS, default="quick", help="'full' has all rows; else 'quick'"
    )
    parser.add_argument("--only", default="", help="cliffs whose name contains this")
    parser.add_argument("--before", type=Path, help="the interpreter of another checkout")
    parser.add_argument("--output", type=Path, help="a file for the results")
    return parser.parse_args()


def _other(python: Path) -> Party:
    """The checkout that an interpreter imports the package from."""
    found = subprocess.run(
        [python, "-c", "import cpprb_like; print(cpprb_like.__file__)"],
        cwd=python.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode != 0:
        sys.exit(f"--before: {python} has no cpprb_like:\n{found.stderr}")
    return Party(python.absolute(), MODULES, Path(found.stdout.strip()).parents[1], BEFORE)


def _table(chosen: list[Cliff], measured: dict[str, Any]) -> str:
    """Medians, what the case takes of the usual work, and what became of the case."""
    compared = any(f"{BEFORE}{STEEP}" in results for results in measured.values())
    head = ["case", *(["usual before", "case before", "times"] if compared else [])]
    rows = [[*head, "usual", "case", "times", "at most", *(["faster"] if compared else [])]]
    for cliff in chosen:
        results = measured[cliff.case.name]
        row = [cliff.case.name]
        for party in (BEFORE, "") if compared else ("",):
            row += [_cell(results, party + name, cliff.case.unit) for name in (USUAL, STEEP)]
            row.append(_times(results, party + STEEP, party + USUAL))
        row.append(f"{cliff.times:g}")
        rows.append([*row, *([_times(results, BEFORE + STEEP, STEEP)] if compared else [])])
    return grid(rows)


def _number(results: dict[str, Any], name: str) -> float | None:
    """The median, or a number that is no time."""
    result = results.get(name, {})
    number: float | None = result.get("median", result.get("value"))
    return number


def _cell(results: dict[str, Any], name: str, unit: str) -> str:
    number = _number(results, name)
    return "-" if number is None else quantity(number, unit)


def _times(results: dict[str, Any], name: str, of: str) -> str:
    number, other = _number(results, name), _number(results, of)
    return "" if number is None or not other else digits(number / other)


def _missing(measured: dict[str, Any]) -> Iterator[str]:
    """Why there are no numbers of a case."""
    for case, results in measured.items():
        reasons = [one["cannot"] for one in results.values() if "cannot" in one]
        yield from (f"- {case}: {reason}" for reason in dict.fromkeys(reasons))


def _over(cliff: Cliff, results: dict[str, Any]) -> Iterator[str]:
    """A line if the case takes more than is promised."""
    steep, usual = _number(results, STEEP), _number(results, USUAL)
    if steep is not None and usual and steep > cliff.times * usual:
        times = digits(steep / usual)
        yield f"- {cliff.case.name}: {times} times the usual work, at most {cliff.times:g}"


if __name__ == "__main__":
    main()
