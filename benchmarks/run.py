"""Measure the package against floors and peers in one run on one core, and print the table.

``python benchmarks/run.py`` (or ``make bench``) exits with 1 if a budget was missed. Each group
runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import floor_readings
import floor_tree
from cases import GROUPS
from floor import NoCompilerError, build
from fronts_dqn import FRONTS_DQN
from fronts_keras_gym import KERAS_GYM
from fronts_reagent import REAGENT
from measure import Effort, Row, table
from peers import PEERS
from readings import READINGS
from weighted import WEIGHTED

OURS = GROUPS | WEIGHTED | READINGS
FRONTS = KERAS_GYM | REAGENT | FRONTS_DQN
FULL = Effort(60, 0.005, 1_000_000, 20_000, (10_000, 100_000, 1_000_000, 10_000_000), 1 << 20)
QUICK = Effort(3, 0.0005, 10_000, 200, (10_000, 100_000), 1 << 13)
HUNDRED_MILLION = 100_000_000  # 6.4 GB
HEADING = ("what", "measured", "floor", "ratio", "budget", "")
PEER_HEADING = ("what", "ours", "theirs", "times faster", "budget", "")


def main() -> None:
    """Run all groups, or the one that is named."""
    options = _options()
    effort = QUICK if options.quick else FULL
    if options.large:
        effort = replace(effort, growth=(*effort.growth, HUNDRED_MILLION))
    if options.group is not None:
        if options.preload:
            import_module(options.preload)
        for row in (OURS | FRONTS | PEERS)[options.group](effort, options.floor):
            print(json.dumps(asdict(row)), flush=True)
        return
    _use_one_core()
    print(_machine(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        try:
            library = build(Path(folder), floor_tree.SOURCE, floor_readings.SOURCE)
        except NoCompilerError as error:
            sys.exit(str(error))
        rows = [row for name in OURS for row in _run_group(name, library)]
        if find_spec("torch"):
            rows += [
                replace(row, what=f"{row.what}, torch loaded")
                for row in _run_group("images", library, "--preload=torch")
            ]
        others = [*FRONTS, *(name for name in PEERS if find_spec(name))]
        peer_rows = [row for name in others for row in _run_group(name, library)]
    print(f"\n{table(HEADING, rows)}")
    print(f"\n{table(PEER_HEADING, peer_rows)}")
    missed = [row.what for row in rows + peer_rows if row.held is False]
    sys.exit(f"\nbudgets missed: {'; '.join(missed)}" if missed else 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small and rough, to see that it runs")
    parser.add_argument("--large", action="store_true", help="a buffer of 1e8 rows too (6.4 GB)")
    inner = parser.add_argument_group("how it calls itself")
    inner.add_argument("--group", choices=[*OURS, *FRONTS, *PEERS])
    inner.add_argument("--floor", type=Path, help="the compiled loops")
    inner.add_argument("--preload", help="a module to import first")
    return parser.parse_args()


def _run_group(name: str, library: Path, *further: str) -> Iterator[Row]:
    arguments = [*sys.argv[1:], f"--group={name}", f"--floor={library}", *further]
    command = [sys.executable, __file__, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            row = Row(**json.loads(line))
            print(".", end="", file=sys.stderr, flush=True)
            yield row
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def _use_one_core() -> None:
    """This process and those that it starts run on one core, numerical libraries too."""
    os.environ["OMP_NUM_THREADS"] = "1"
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def _machine() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    packages = [name for name in ("numpy", "torch", *PEERS) if find_spec(name)]
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    load = (
        ", ".join(f"{load:.1f}" for load in os.getloadavg()) if hasattr(os, "getloadavg") else "?"
    )
    return (
        f"{models[0] if models else platform.processor()}, {os.cpu_count()} cores, "
        f"{platform.system()}, Python {platform.python_version()}, {versions}; load {load}"
    )


if __name__ == "__main__":
    main()
