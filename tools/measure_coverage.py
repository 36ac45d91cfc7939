"""Which lines of the package, Python's and Cython's, the tests run: the command ``make coverage``.

All of it happens in a copy of the tree, ``.venv-coverage``, with a build of its own that checks
every index and counts lines; it is kept for the next time. Not counted: what runs in other
processes, and in a process that is killed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COPY = ROOT / ".venv-coverage"
SETTINGS = """
[run]
source = cpprb_like
omit =
    cpprb_like/compat/reagent/*
"""
# The plugin traces nothing, but the quick way to count lines (``sys.monitoring``) works with none.
SETTINGS_OF_REPORT = f"""{SETTINGS}
plugins = compiled_lines
[report]
exclude_also =
    if TYPE_CHECKING:
    @overload
    ^\\s*\\.\\.\\.$
    : \\.\\.\\.$
"""
# The front of ReAgent needs PyTorch; tests of the project look at the tree, and run no other lines.
LEFT_OUT = ("project", "tf_agents", "typing")
# Run in the copy, whose coverage.py makes the report.
STORE = "from compiled_lines import *; store('.coverage.compiled')"


def copy_tree() -> None:
    """Bring the copy up to date; what has not changed stays, so that it is not built anew."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = {name for name in listed.split("\0") if (ROOT / name).is_file()}
    for name in names:
        source, target = ROOT / name, COPY / name
        if not target.exists() or source.read_bytes() != target.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    for path in [*COPY.glob("cpprb_like/**/*"), *COPY.glob("tests/**/*.py")]:
        is_source = path.suffix in (".py", ".pyi", ".pyx", ".pxd")
        if is_source and path.relative_to(COPY).as_posix() not in names:
            path.unlink()
    for path in COPY.glob("build/**/*.gcda"):
        path.unlink()


def main(arguments: Sequence[str]) -> int:
    """Build, run the tests (or what the command line tells pytest), and print the table."""
    copy_tree()
    environ = {
        **os.environ,
        "CPPRB_LIKE_DEBUG": "1",
        "CPPRB_LIKE_COVERAGE": "1",
        "PYTHONPATH": str(COPY / "tools"),  # the plugin
    }
    environ.setdefault("HYPOTHESIS_PROFILE", "quick")
    if sys.version_info >= (3, 12):
        environ.setdefault("COVERAGE_CORE", "sysmon")
    python = str(COPY / ".venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))

    def run(*command: str) -> int:
        return subprocess.run(command, cwd=COPY, env=environ, check=False).returncode

    if run(sys.executable, "tools/bootstrap.py", "--venv", ".venv", "coverage"):
        return 1
    (COPY / ".coveragerc").write_text(SETTINGS_OF_REPORT, encoding="utf-8")
    (COPY / ".coveragerc-run").write_text(SETTINGS, encoding="utf-8")
    left_out = [f"--ignore=tests/{room}" for room in LEFT_OUT]
    tests = ["-q", *left_out, *(arguments or ["-m", "not slow"])]
    counted = ("-m", "coverage", "run", "--rcfile", ".coveragerc-run")
    failed = run(python, *counted, "-m", "pytest", *tests)
    failed = run(python, "-c", STORE) or failed
    failed = run(python, "-m", "coverage", "combine", "--append", ".coverage.compiled") or failed
    return run(python, "-m", "coverage", "report", "--show-missing", "--skip-covered") or failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
