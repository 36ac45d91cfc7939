"""Measure replays that processes share, side by side: ``python benchmarks/processes.py``.

Each measurement is a program of its own (``between_processes``), in the environment of its package;
packages take turns, so that all see the same machine. Not here: the tables of the results
(``reports.processes``), and replays of one process (``run``).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from environments import Environment
from machine import this_machine
from reports.processes import processes_tables
from tqdm import tqdm

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "processes.json"
OWN = ("cpprb_like", "one process", "copy")
RATES = ("adds", "batches")
LIMIT = 120  # seconds of a measurement


def measurements() -> list[dict[str, Any]]:
    """What is measured, of each package that can."""
    found: list[dict[str, Any]] = []
    for case in ("small", "images"):
        found.append({"package": "cpprb_like", "case": case, "actors": 0, "what": "draws"})
        for package in ("cpprb_like", "one process", "copy", "cpprb", "reverb"):
            for actors in (1, 2, 4):
                found.append({"package": package, "case": case, "actors": actors, "what": "adds"})
                if package not in ("one process", "copy"):
                    found.append({**found[-1], "what": "beside"})
            one = {"package": package, "case": case, "actors": 1}
            if package == "one process":
                found.append({**one, "what": "alone"})
            elif package != "copy":
                found.append({**one, "what": "latency"})
    return found


def interpreters(folder: Path) -> dict[str, Path | str]:
    """The interpreter of each package, or why there is none."""
    found: dict[str, Path | str] = dict.fromkeys(OWN, Path(sys.executable))
    for package, requirements in {"cpprb": "cpprb", "reverb": "processes/reverb"}.items():
        environment = Environment(folder, requirements)
        found[package] = environment.make() or environment.python
    return found


def measure(python: Path, wanted: dict[str, Any]) -> dict[str, Any]:
    """One measurement; or an ``error``."""
    command = [str(python), str(HERE / "between_processes.py"), json.dumps(wanted)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=LIMIT, cwd=HERE.parent
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no end within {LIMIT} s"}
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "Error" in line]
        return {"error": lines[-1] if lines else f"ends with {done.returncode}"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure in turns, and write what was found."""
    parser = argparse.ArgumentParser(description="Measure replays that processes share.")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    parser.add_argument("--only", nargs="*", default=(), help="packages")
    parser.add_argument("--folder", type=Path, default=HERE.parent / ".bench")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    pythons = interpreters(options.folder)
    wanted = [one for one in measurements() if not options.only or one["package"] in options.only]
    rounds: list[list[dict[str, Any]]] = [[] for _ in wanted]
    for _ in range(options.rounds):
        for one, found in zip(tqdm(wanted, mininterval=1.0), rounds, strict=True):
            found.append(result(pythons, one))
    packages = dict.fromkeys(one["package"] for one in wanted)
    results = {
        "machine": this_machine(),
        "rounds": options.rounds,
        "about": {name: result(pythons, {"package": name, "what": "about"}) for name in packages},
        "cases": [one | best(found) for one, found in zip(wanted, rounds, strict=True)],
    }
    options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(processes_tables(results))


def result(pythons: dict[str, Path | str], wanted: dict[str, Any]) -> dict[str, Any]:
    """One measurement, in the environment of its package, if that is there."""
    python = pythons[wanted["package"]]
    return {"error": python} if isinstance(python, str) else measure(python, wanted)


def best(found: list[dict[str, Any]]) -> dict[str, Any]:
    """What a measurement gave in its rounds: the least of times, the medians of rates."""
    good = [one for one in found if "error" not in one]
    if not good:
        return found[0]
    return {
        key: statistics.median(values) if key in RATES else min(values)
        for key, values in ((key, [one[key] for one in good]) for key in good[0])
    }


if __name__ == "__main__":
    main()
