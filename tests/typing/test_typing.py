"""What type checkers know: of right programs no complaint, of wrong ones each mistake."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from optional import need

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).parent / "programs"
Findings = dict[int, str]  # what is said about a line


def by_mypy(path: Path, cache: Path) -> Findings:
    """What mypy finds, as strict as it can be."""
    need("mypy", "make typecheck")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary"]
    command += ["--no-pretty", f"--cache-dir={cache}", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[int, str] = defaultdict(str)
    for line in done.stdout.splitlines():
        place = re.fullmatch(r"(.+?):(\d+): (?:error|note): (.*)", line)
        assert place is not None, done.stdout + done.stderr
        assert Path(ROOT, place[1]) == path, done.stdout
        found[int(place[2])] += place[3] + "\n"
    return found


def by_pyright(path: Path, cache: Path) -> Findings:
    """What pyright finds, and Pylance with it, in their standard mode."""
    need("pyright", "make typecheck")
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(
        [*command, str(path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[int, str] = defaultdict(str)
    for one in json.loads(done.stdout)["generalDiagnostics"]:
        assert Path(one["file"]) == path, one
        found[one["range"]["start"]["line"] + 1] += one["message"] + "\n"
    return found


both_checkers = pytest.mark.parametrize("findings", [by_mypy, by_pyright])


@both_checkers
def test_right_programs_pass(findings: object, tmp_path: Path) -> None:
    """Nothing is said about what is right, of whatever types its parts are."""
    assert callable(findings)
    assert findings(PROGRAMS / "right.py", tmp_path) == {}


def test_right_programs_run() -> None:
    """What the checkers let pass does what it says."""
    need("typing_extensions", "make typecheck")
    runpy.run_path(str(PROGRAMS / "right.py"))


@both_checkers
def test_mistakes_are_found(findings: object, tmp_path: Path) -> None:
    """Each line with a mistake is complained about in words that name it, and no other line is."""
    path = PROGRAMS / "wrong.py"
    expected = {
        number: mark[1]
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (mark := re.search(r"  # wrong: (\w+)$", line))
    }
    assert callable(findings)
    found = findings(path, tmp_path)
    assert sorted(found) == sorted(expected)
    assert {n: (word, found[n]) for n, word in expected.items() if word not in found[n]} == {}
