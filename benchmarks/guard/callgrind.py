"""Counts the instructions of a program's paths under valgrind's callgrind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .runner import MARK, MARKS, MORE_CALLS

BENCHMARKS = Path(__file__).resolve().parents[1]
NEEDED = ("PATH", "LD_LIBRARY_PATH")


class CallgrindError(Exception):
    """Nothing was counted; the message says why."""


@dataclass(frozen=True)
class Count:
    """Instructions of one call of a path, with the loop around it."""

    all: int
    compiled: int  # those in the compiled modules of the package

    def least(self, other: Count) -> Count:
        """The lower of each."""
        return Count(min(self.all, other.all), min(self.compiled, other.compiled))


def count(
    program: Path,
    names: Sequence[str],
    package: Path,
    libraries: Sequence[Path] = (),
    placement: int = 0,
) -> dict[str, Count]:
    """What each of these paths of a program costs.

    Parameters
    ----------
    program : Path
        A Python program that calls ``guard.runner.run``.
    names : sequence of str
        Its paths.
    package : Path
        The folder whose compiled modules are counted by themselves.
    libraries : sequence of Path
        Folders in which the program looks for packages first.
    placement : int
        Another number puts the interpreter's objects elsewhere in memory. What it does for one call
        depends on that, as its caches go by address: 1,200 instructions were seen between two.

    Raises
    ------
    CallgrindError
        There is no valgrind, the program failed, or its marks were not seen.
    """
    with tempfile.TemporaryDirectory() as folder:
        elsewhere = [Path(folder, "nothing", str(number)) for number in range(placement)]
        processes = _run(program, names, Path(folder), [*libraries, *elsewhere])
        return {
            name: _count(Path(folder), process, package)
            for name, process in zip(names, processes, strict=True)
        }


def instructions(profile: Iterable[str]) -> Counter[str]:
    """Instructions by the binary file that they are in, from the lines of a profile."""
    found: Counter[str] = Counter()
    binary, total, of_a_call = "", 0, False
    for line in profile:
        key, _, value = line.rstrip("\n").partition("=")
        if key == "ob":
            binary = value
        elif key == "calls":
            of_a_call = True  # the next line has what was called, which is counted where it is
        elif line[:1].isdigit():
            if not of_a_call:
                found[binary] += int(line.split()[1])
            of_a_call = False
        elif line.startswith("summary:"):
            total = int(line.split()[1])
    if found.total() != total:
        raise CallgrindError(f"a profile of {total} instructions was read as {found.total()}")
    return found


def _run(program: Path, names: Sequence[str], folder: Path, libraries: Sequence[Path]) -> list[str]:
    """Write profiles into a folder; returns the numbers of the processes, a path each."""
    if shutil.which("valgrind") is None:
        raise CallgrindError(
            "No valgrind, which counts instructions: install the system's package of that name"
        )
    valgrind = [
        *("valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={folder}/%p"),
        *(f"--dump-before={MARK}", "--compress-strings=no", "--compress-pos=no"),
    ]
    done = subprocess.run(
        [*valgrind, sys.executable, str(program), *names],
        env=_environment(libraries),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CallgrindError(f"{program.name} failed under valgrind:\n{done.stderr}")
    return done.stdout.split()


def _environment(libraries: Sequence[Path]) -> dict[str, str]:
    """What the program needs to start, and no more: what is there moves its stack."""
    kept = {name: os.environ[name] for name in NEEDED if name in os.environ}
    folders = [*map(str, libraries), str(BENCHMARKS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return kept | {
        "PYTHONPATH": os.pathsep.join(folders),
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
    }


def _count(folder: Path, process: str, package: Path) -> Count:
    """From the profiles of one path; the first has what came before it."""
    profiles = [folder / f"{process}.{mark}" for mark in range(1, MARKS + 1)]
    if {*folder.glob(f"{process}.*")} != {*profiles}:
        raise CallgrindError(f"valgrind did not see each call of {MARK}, which marks the paths")
    fewer, more = map(_read, profiles[1:])
    difference = {binary: more[binary] - fewer[binary] for binary in fewer | more}
    compiled = [binary for binary in difference if Path(binary).is_relative_to(package)]
    return Count(
        round(sum(difference.values()) / MORE_CALLS),
        round(sum(difference[binary] for binary in compiled) / MORE_CALLS),
    )


def _read(profile: Path) -> Counter[str]:
    with profile.open(encoding="utf-8", errors="replace") as lines:
        return instructions(lines)
