"""What type checkers know: of right programs no complaint, of wrong ones each mistake."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from optional import need

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
RIGHT, WRONG = (Path(__file__).parent / "programs" / name for name in ("right.py", "wrong.py"))
Findings = dict[int, str]  # what is said about a line


@cache
def by_mypy() -> dict[Path, Findings]:
    """What mypy finds in each program, as strict as it can be."""
    need("mypy", "make typecheck")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary"]
    command += ["--no-pretty", "--cache-dir", os.devnull, str(RIGHT), str(WRONG)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[Path, Findings] = {RIGHT: defaultdict(str), WRONG: defaultdict(str)}
    for line in done.stdout.splitlines():
        place = re.fullmatch(r"(.+?):(\d+): (?:error|note): (.*)", line)
        assert place is not None, done.stdout + done.stderr
        assert Path(ROOT, place[1]) in found, done.stdout
        found[Path(ROOT, place[1])][int(place[2])] += place[3] + "\n"
    return found


@cache
def by_pyright() -> dict[Path, Findings]:
    """What pyright finds in each program, and Pylance with it, in their standard mode."""
    need("pyright", "make typecheck")
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    command += [str(RIGHT), str(WRONG)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[Path, Findings] = {RIGHT: defaultdict(str), WRONG: defaultdict(str)}
    for one in json.loads(done.stdout)["generalDiagnostics"]:
        assert Path(one["file"]) in found, one
        found[Path(one["file"])][one["range"]["start"]["line"] + 1] += one["message"] + "\n"
    return found


both_checkers = pytest.mark.parametrize("findings", [by_mypy, by_pyright])


@both_checkers
def test_right_programs_pass(findings: Callable[[], dict[Path, Findings]]) -> None:
    """Nothing is said about what is right, of whatever types its parts are."""
    assert findings()[RIGHT] == {}


def test_right_programs_run() -> None:
    """What the checkers let pass does what it says."""
    need("typing_extensions", "make typecheck")
    runpy.run_path(str(RIGHT))


@both_checkers
def test_mistakes_are_found(findings: Callable[[], dict[Path, Findings]]) -> None:
    """Each line with a mistake is complained about in words that name it, and no other line is."""
    expected = {
        number: mark[1]
        for number, line in enumerate(WRONG.read_text(encoding="utf-8").splitlines(), 1)
        if (mark := re.search(r"  # wrong: (\w+)$", line))
    }
    found = findings()[WRONG]
    assert sorted(found) == sorted(expected)
    assert {n: (word, found[n]) for n, word in expected.items() if word not in found[n]} == {}
