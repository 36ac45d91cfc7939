"""Run the examples with three seeds, and write their scores into docs/examples.md.

    python benchmarks/example_scores.py --jobs 2
    python benchmarks/example_scores.py --only rlpd.py,world_model.py

An example takes part if its docstring has a line ``Score: at least 450 (mean return of 20
episodes).``, and its output a line such as ``score: 487.3 (mean return of 20 episodes)``. Each run
is a process with one thread. Results are in results/examples.json, which keeps those of examples
that are not run again. Not here: how fast a buffer is (``run``).
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distributions, version
from pathlib import Path
from time import perf_counter
from typing import Any

from environments import this_machine
from report import update_page
from result_files import write

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES, RESULTS = ROOT / "examples", ROOT / "benchmarks" / "results" / "examples.json"
SEEDS = (0, 1, 2)
PACKAGES = ("numpy", "gymnasium", "torch", "jax", "stable-baselines3", "ale-py")
STATED = re.compile(r"^Score: (at (?:least|most) -?[\d.]+)\b", re.MULTILINE)
SCORE = re.compile(r"^score: (-?[\d.]+) \((.+)\)$", re.MULTILINE)


def main() -> None:
    """Run, and write after each run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1, help="examples that run at the same time")
    parser.add_argument("--only", help="names of files, with commas between them")
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument("--quick", action="store_true", help="--quick of the examples, as a trial")
    parser.add_argument("--examples", type=Path, default=EXAMPLES, help="folder")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    stated = statements(options.examples)
    names = options.only.split(",") if options.only else [*stated]
    unknown = [name for name in names if name not in stated]
    if unknown:
        sys.exit(f"no line 'Score: ...' in the docstring of {', '.join(unknown)}")

    results: dict[str, Any] = {"examples": {}}
    if options.output.exists():
        results = json.loads(options.output.read_text(encoding="utf-8"))
    results |= {"packages": releases()}
    machine = this_machine()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    more = ["--quick"] if options.quick else []
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = [
            (name, pool.submit(run, options.examples / name, seed, *more))
            for name in names
            for seed in seeds
        ]
        for name, future in runs:
            found = future.result()
            print(f"{name}: {found}", flush=True)
            add(results, name, {"stated": stated[name], "machine": machine}, found)
            write(options.output, results)
    if options.output == RESULTS:
        update_page(ROOT, "docs/examples.md")


def statements(folder: Path) -> dict[str, str]:
    """The score that the docstring of each example states; of examples that state none nothing."""
    found = {}
    for path in sorted(folder.glob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        match = STATED.search(text)
        if match is not None:
            found[path.name] = match[1].rstrip(".")
    return found


def run(script: Path, seed: int, *options: str) -> dict[str, Any]:
    """The score of one run, and the seconds that the processor took; or the error."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(script), "--seed", str(seed), *options]
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        out, err = Path(folder) / "stdout", Path(folder) / "stderr"
        began = perf_counter()
        with out.open("wb") as output, err.open("wb") as errors:
            process = subprocess.Popen(
                command, cwd=folder, stdout=output, stderr=errors, env={**os.environ, **threads}
            )
            seconds = wait(process)
        passed = perf_counter() - began
        score = parse(out.read_text(encoding="utf-8"))
        if score is None:
            lines = [line for line in err.read_text(encoding="utf-8").splitlines() if line.strip()]
            return {"seed": seed, "error": lines[-1] if lines else "it printed no score"}
    return {"seed": seed, **score, "seconds": round(passed if seconds is None else seconds, 3)}


def parse(output: str) -> dict[str, Any] | None:
    """The score that an example has printed, and what it is."""
    found = SCORE.findall(output)
    return {"score": float(found[-1][0]), "what": found[-1][1]} if found else None


def wait(process: subprocess.Popen[bytes]) -> float | None:
    """Seconds of the processor until the end, those of its processes too; None on Windows."""
    if sys.platform == "win32":
        process.wait()
        return None
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return float(used.ru_utime + used.ru_stime)


def add(results: dict[str, Any], name: str, about: dict[str, Any], found: dict[str, Any]) -> None:
    """Put a run into the results, in place of an older one with the same seed."""
    example = results["examples"].setdefault(name, {"runs": []})
    runs = [run for run in example["runs"] if run["seed"] != found["seed"]]
    example |= about
    example["runs"] = sorted([*runs, found], key=lambda run: int(run["seed"]))
    results["examples"] = dict(sorted(results["examples"].items()))


def releases() -> dict[str, str]:
    """Of the packages that are there."""
    there = {one.metadata["Name"].lower().replace("_", "-") for one in distributions()}
    return {name: version(name) for name in PACKAGES if name in there}


if __name__ == "__main__":
    main()
