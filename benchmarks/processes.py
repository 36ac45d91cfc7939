"""Measure replays that processes share, side by side: ``python benchmarks/processes.py``.

Each measurement is a program of its own (``between_processes``), in the environment of its package;
packages take turns, so that all see the same machine. The table goes to docs/performance.md. Not
here: replays of one process (``run``).
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
from tqdm import tqdm

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "processes.json"
OWN = ("cpprb_like", "one process", "copy")
LIMIT = 120  # seconds of a measurement


def measurements() -> list[dict[str, Any]]:
    """What is measured, of each package that can."""
    found = []
    for case in ("small", "images"):
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
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return {"error": lines[-1] if lines else str(done.returncode)}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure in turns, and write the medians."""
    parser = argparse.ArgumentParser(description="Measure replays that processes share.")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    parser.add_argument("--only", nargs="*", default=(), help="packages")
    parser.add_argument("--folder", type=Path, default=HERE.parent / ".bench")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    pythons = interpreters(options.folder)
    wanted = [one for one in measurements() if not options.only or one["package"] in options.only]
    results: list[list[dict[str, Any]]] = [[] for _ in wanted]
    for _ in range(options.rounds):
        for one, found in zip(tqdm(wanted, mininterval=1.0), results, strict=True):
            python = pythons[one["package"]]
            found.append({"error": python} if isinstance(python, str) else measure(python, one))
    lines = []
    for one, found in zip(wanted, results, strict=True):
        good = [result for result in found if "error" not in result]
        line = dict(one)
        if good:
            line |= {key: statistics.median(one[key] for one in good) for key in good[0]}
        else:
            line["error"] = found[0]["error"]
        lines.append(line)
        print(json.dumps(line))
    options.out.write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
