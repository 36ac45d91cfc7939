"""Measure the package against floors and peers, print the table, and write the results.

``make bench`` runs it. Each peer has an environment, which the first run makes, and a process; all
take turns on one core. The waits of a learner for its batches come first, on all cores (``--only
waiting``: nothing else). Exits with 1 if a promise was not held. Not here: ``cliffs``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any, NoReturn

from cases import EFFORTS, Case, Effort, cases
from contest import Contest, Party, use_one_core
from environments import PEERS, Environment, answer, this_machine
from reports.findings import Cases
from reports.tables import missed, table
from reports.waits import waits_table
from result_files import write
from tqdm import tqdm

import cpprb_like

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
OURS = tuple(
    f"contenders.{name}"
    for name in ("uniform", "files", "weighted", "readings", "recording", "any_length")
)
WITH_TORCH = ("contenders.with_torch",)  # in the environment of a peer
HAS_TORCH = "stable_baselines3"
WAITING = "waiting"
PATIENCE = 1200.0  # seconds
# What ``waiting`` measures in each environment: contenders that need these packages.
WAITING_FOR = {HAS_TORCH: ("torch", HAS_TORCH), "torchrl": ("torchrl",)}


def main() -> None:
    """Measure the cases that the options name."""
    options = _options()
    effort = EFFORTS[options.effort]
    chosen = [case for case in cases(effort) if options.only in f"{case.group}: {case.name}"]
    if not chosen and options.only != WAITING:
        sys.exit(f"no case or group is named '{options.only}'; they are in benchmarks/cases.py")
    peers, absent = _environments(options.peers, options.environments)
    if HAS_TORCH in peers and options.only in ("", WAITING):
        _measure_waits(effort, peers, options)
    if options.only == WAITING:
        return
    ours = [Party(Path(sys.executable), OURS)]
    if HAS_TORCH in peers:
        ours.append(Party(peers[HAS_TORCH].python, WITH_TORCH))
    whole = _whole(options) if options.again else None
    results = measured(options.effort, chosen, ours, list(peers.values()))
    results["absent"] |= absent
    finish(results if whole is None else _put_into(whole, results), options.output)


def measured(
    effort: str, chosen: list[Case], ours: list[Party], others: list[Party]
) -> dict[str, Any]:
    """The results of some cases, as files hold them."""
    machine, start = this_machine(), perf_counter()
    use_one_core()
    with Contest(EFFORTS[effort], ours, others) as contest:
        found = []
        for case in (bar := tqdm(chosen, unit="case")):
            bar.set_postfix_str(case.name)
            results = contest.results(case)
            found.append(
                {"group": case.group, "name": case.name, "unit": case.unit, "results": results}
            )
        return {
            "effort": effort,
            "version": cpprb_like.__version__,
            "minutes": round((perf_counter() - start) / 60, 1),
            "machine": machine,
            "entrants": contest.entrants(),
            "absent": contest.failures(),
            "cases": found,
        }


def finish(results: dict[str, Any], output: Path, of: Cases = cases) -> NoReturn:
    """Write results, print their table, and exit with 1 if a promise was not held."""
    write(output, results)
    print(f"{table(results, of)}\n\nwritten to {output}")
    promises = missed(results, of)
    sys.exit("\nnot held:\n" + "\n".join(promises) if promises else 0)


def _environments(names: Iterable[str], folder: Path) -> tuple[dict[str, Party], dict[str, str]]:
    """Peers whose environment is there, and why others' are not."""
    parties, absent = {}, {}
    for name in (bar := tqdm(names, unit="environment")):
        bar.set_postfix_str(name)
        environment = Environment(folder, name)
        reason = environment.make()
        if reason is None:
            parties[name] = Party(environment.python, environment.modules)
        else:
            absent[name] = reason
    return parties, absent


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    efforts = parser.add_mutually_exclusive_group()
    for effort, what in (
        ("full", "everything, under 30 minutes; the default"),
        ("quick", "the most telling cases, under 5 minutes"),
        ("smoke", "small and rough, to see that it runs"),
    ):
        efforts.add_argument(
            f"--{effort}", dest="effort", action="store_const", const=effort, help=what
        )
    parser.add_argument("--only", default="", help="cases whose group or name contains this")
    parser.add_argument("--peers", type=_peers, default=PEERS, help="names with commas, or 'none'")
    parser.add_argument("--environments", type=Path, default=ROOT / ".bench", help="their folder")
    parser.add_argument(
        "--again",
        action="store_true",
        help="measure the cases of --only and put them into the results of the last whole run",
    )
    parser.add_argument("--output", type=Path, help="the file of results, else in results/")
    parser.set_defaults(effort="full")
    options = parser.parse_args()
    if options.output is None:
        whole = options.peers == PEERS and (options.again or not options.only)
        name = options.effort if whole else "partial"
        options.output = RESULTS / f"{name}.json"
    return options


def _measure_waits(effort: Effort, peers: dict[str, Party], options: argparse.Namespace) -> None:
    """How long a learner waits, into a file of its own."""
    pythons = {name: party.python for name, party in peers.items()}
    found = _waits(pythons, steps=effort.learner_steps, rows=effort.learner_rows)
    found["machine"] = this_machine()
    whole = options.peers == PEERS
    path = options.output.with_name(f"waiting-{options.effort if whole else 'partial'}.json")
    write(path, found)
    print(f"{waits_table(found)}\n\nwritten to {path}")


def _waits(pythons: Mapping[str, Path], *, steps: int, rows: int) -> dict[str, Any]:
    """Results of all environments that are there, and the reasons of those that failed."""
    found: dict[str, Any] = {"about": {}, "cases": [], "failed": {}}
    for peer in (peer for peer in WAITING_FOR if peer in pythons):
        options = f"--steps={steps}", f"--rows={rows}", "--need", *WAITING_FOR[peer]
        one = answer(pythons[peer], "waiting.py", *options, timeout=PATIENCE)
        if "error" in one:
            found["failed"][peer] = one["error"]
        else:
            found["about"][peer] = one["about"]
            found["cases"] += one["cases"]
    return found


def _peers(text: str) -> tuple[str, ...]:
    names = () if text == "none" else tuple(text.split(","))
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no such peer: {unknown}; there are {', '.join(PEERS)}")
    return names


def _whole(options: argparse.Namespace) -> dict[str, Any]:
    """The whole results that single cases are put into."""
    path = RESULTS / f"{options.effort}.json"
    if not path.exists():
        sys.exit(f"--again puts cases into {path}, which is not there: run all cases first")
    whole: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return whole


def _put_into(whole: dict[str, Any], again: dict[str, Any]) -> dict[str, Any]:
    """Whole results with the cases that were measured again, in the order of ``cases.py``.

    What a peer took beside us is only compared with what we took beside it, so a case is replaced
    as one.
    """
    measured = {case["name"]: case for case in whole["cases"] + again["cases"]}
    order = [case.name for case in cases(EFFORTS[whole["effort"]]) if case.name in measured]
    return whole | {
        "entrants": whole["entrants"] | again["entrants"],
        "machine": again["machine"],
        "cases": [measured[name] for name in order],
    }


if __name__ == "__main__":
    main()
