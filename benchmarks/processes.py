"""Measure replays that processes share: ``python benchmarks/processes.py``.

Each measurement runs ``between_processes`` in the environment of its package. Packages take turns,
so that all see the same machine. Not here: the tables of the results (``reports.processes``), and
replays of one process (``run``).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from environments import Environment, answer, this_machine
from reports.processes import processes_tables
from result_files import write
from tqdm import tqdm

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "processes.json"
OTHERS = {"cpprb": "cpprb", "reverb": "processes/reverb"}  # and their requirements
RATES = ("adds", "batches")
LIMIT = 120  # seconds of a measurement


def measurements() -> list[dict[str, Any]]:
    """The measurements, of each package that can."""
    found: list[dict[str, Any]] = []
    for case in ("small", "images"):
        found.append({"package": "cpprb_like", "case": case, "actors": 0, "what": "draws"})
        for package in ("cpprb_like", "one process", "copy", "cpprb", "reverb"):
            for actors in (1, 2, 4):
                found.append({"package": package, "case": case, "actors": actors, "what": "adds"})
                if package not in ("one process", "copy"):
                    found.append({**found[-1], "what": "beside"})
            one = {"package": package, "case": case, "actors": 1}
            if package not in ("one process", "copy"):
                found.append({**one, "what": "latency"})
    return found


def interpreters(folder: Path, packages: Iterable[str]) -> dict[str, Path | str]:
    """The interpreter of each package, or the reason why there is none."""
    found: dict[str, Path | str] = {}
    for package in packages:
        if package in OTHERS:
            environment = Environment(folder, OTHERS[package])
            found[package] = environment.make() or environment.python
        else:
            found[package] = Path(sys.executable)
    return found


def main() -> None:
    """Measure in turns, and write the results."""
    parser = argparse.ArgumentParser(description="Measure replays that processes share.")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    parser.add_argument("--only", nargs="*", default=(), help="packages")
    parser.add_argument("--folder", type=Path, default=HERE.parent / ".bench")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    wanted = [one for one in measurements() if not options.only or one["package"] in options.only]
    packages = dict.fromkeys(one["package"] for one in wanted)
    pythons = interpreters(options.folder, packages)
    rounds: list[list[dict[str, Any]]] = [[] for _ in wanted]
    for _ in range(options.rounds):
        for one, found in zip(tqdm(wanted, mininterval=1.0), rounds, strict=True):
            found.append(result(pythons, one))
    results = {
        "machine": this_machine(),
        "rounds": options.rounds,
        "about": {name: result(pythons, {"package": name, "what": "about"}) for name in packages},
        "cases": [one | best(found) for one, found in zip(wanted, rounds, strict=True)],
    }
    write(options.out, results)
    print(processes_tables(results))


def result(pythons: dict[str, Path | str], wanted: dict[str, Any]) -> dict[str, Any]:
    """One measurement in the environment of its package, or the reason why there is none."""
    python = pythons[wanted["package"]]
    if isinstance(python, str):
        return {"error": python}
    return answer(python, "between_processes.py", json.dumps(wanted), timeout=LIMIT)


def best(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The result of all rounds of a measurement: the least of times, the medians of rates."""
    good = [one for one in found if "error" not in one]
    if not good:
        return found[0]
    return {
        key: statistics.median(values) if key in RATES else min(values)
        for key, values in ((key, [one[key] for one in good]) for key in good[0])
    }


if __name__ == "__main__":
    main()
