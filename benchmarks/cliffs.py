"""Measure states and spellings that once made a call far slower than the usual one.

``make cliffs`` runs it. The floor of each case is the usual work; both take turns. With
``--before`` the same pairs of another checkout take turns too, so before and after come from one
run. Exits with 1 if a case takes more times the usual work than is promised. Not here: floors in C
and peers (``run``).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from budgets import BEFORE, AtMost
from cases import EFFORTS, Case, Effort
from contest import Party
from run import RESULTS, finish, measured

MODULES = ("contenders.cliffs",)
PAUSE = "environment pausing"


def cliffs(effort: Effort) -> Iterator[Case]:
    """All of them, those that share a buffer one behind the other."""
    for group in (_deleted, _paused, _episodes, _fields, _casts, _walked):
        yield from group(effort)


def _deleted(effort: Effort) -> Iterator[Case]:
    for nstep, what in ((False, ""), (True, ", 5-step")):
        case = f"half the rows deleted: sample 32{what}"
        yield _cliff(case, 3.0, "half_deleted", rows=effort.rows, nstep=nstep)


def _paused(effort: Effort) -> Iterator[Case]:
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


def _episodes(effort: Effort) -> Iterator[Case]:
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


def _fields(effort: Effort) -> Iterator[Case]:
    for fields in (50, 200):
        options = {"fields": fields}
        yield _cliff(f"{fields} fields: sample 32 into a batch", 1.0, "many_fields_out", **options)
        yield _cliff(f"{fields} fields: add, equal names", 2.0, "many_fields_add", **options)
        yield _cliff(f"{fields} fields: sample 32 by name", 3.0, "many_fields_named", **options)
        yield _cliff(f"{fields} fields: one of a mixture", 3.0, "mixture_of_one_field", **options)
    for n in (32, 256):
        options = {"rows": effort.rows, "n": n}
        yield _cliff(f"small steps: sample {n} into a batch", 1.0, "small_out", **options)


def _casts(effort: Effort) -> Iterator[Case]:
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


def _walked(effort: Effort) -> Iterator[Case]:
    for envs, what, times in ((None, "one environment", 6.0), (16, "16 environments", 12.0)):
        yield _cliff(f"recorder.add: {what}", times, "recorder_add", envs=envs)
    rows = {"rows": max(2000, effort.image_rows // 5)}
    for what, times in (("sample", 1.2), ("add", 1.2), ("nbytes", 1.01)):
        unit = "B" if what == "nbytes" else "s"
        case = f"stacks without their axis, frames first: {what}"
        yield _cliff(case, times, f"stacks_{what}", unit, **rows)
    images = {"rows": effort.image_rows, "n": 1024}
    yield _cliff("1024 pairs of images: above memcpy", 1.15, "image_pairs", **images)


def _cliff(what: str, times: float, operation: str, unit: str = "s", /, **options: Any) -> Case:
    return Case("Cliffs", what, operation, options, (AtMost(times),), unit)


def main() -> None:
    """Measure the cliffs that the options name."""
    options = _options()
    chosen = [case for case in cliffs(EFFORTS[options.effort]) if options.only in case.name]
    if not chosen:
        sys.exit(f"no cliff has '{options.only}' in its name; they are in benchmarks/cliffs.py")
    before = [] if options.before is None else [_other(options.before)]
    results = measured(options.effort, chosen, [Party(Path(sys.executable), MODULES)], before)
    for name, reason in results["absent"].items():
        sys.exit(f"{name}: {reason}")
    finish(results, options.output, cliffs)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--effort", choices=EFFORTS, default="quick", help="'full' has all rows; else 'quick'"
    )
    parser.add_argument("--only", default="", help="cliffs whose name contains this")
    parser.add_argument("--before", type=Path, help="the interpreter of another checkout")
    output = RESULTS / "cliffs.json"
    parser.add_argument("--output", type=Path, default=output, help="the file of results")
    return parser.parse_args()


def _other(python: Path) -> Party:
    """The checkout that an interpreter imports the package from."""
    found = subprocess.run(
        [python.absolute(), "-c", "import cpprb_like; print(cpprb_like.__file__)"],
        cwd=python.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode != 0:
        sys.exit(f"--before: {python} has no cpprb_like:\n{found.stderr}")
    return Party(python.absolute(), MODULES, Path(found.stdout.strip()).parents[1], BEFORE)


if __name__ == "__main__":
    main()
