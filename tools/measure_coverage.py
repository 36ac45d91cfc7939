"""Which lines of the package, Python's and Cython's, the tests run: the command ``make coverage``.

Cython tells a tracer about its lines in the debug build only, and coverage.py finds them in the
generated C beside the sources. So all of it happens in a copy of the tree, ``.venv-coverage``, that
is kept for the next time. What is not traced: lines of C headers' inline functions; tests that
measure time, and those of interrupts and of threads, which skip themselves there.
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
plugins = Cython.Coverage
core = ctrace
source = cpprb_like
omit =
    cpprb_like/compat/reagent/*
    *.pxd
[report]
exclude_also =
    if TYPE_CHECKING:
    @overload
    ^\\s*\\.\\.\\.$
    : \\.\\.\\.$
"""
# The front of ReAgent needs PyTorch, and the project's own tests see no more lines than the others.
TESTS = ("store", "samplers", "views", "buffers", "integrations", "compat")


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


def main(arguments: Sequence[str]) -> int:
    """Build, run the tests (or what the command line tells pytest), and print the table."""
    copy_tree()
    environ = {**os.environ, "CPPRB_LIKE_DEBUG": "1"}
    environ.setdefault("HYPOTHESIS_PROFILE", "quick")
    python = str(COPY / ".venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))

    def run(*command: str) -> int:
        return subprocess.run(command, cwd=COPY, env=environ, check=False).returncode

    if run(sys.executable, "tools/bootstrap.py", "--venv", ".venv", "coverage"):
        return 1
    for path in COPY.glob("build/cython/cpprb_like/**/*.c"):
        shutil.copy(path, COPY / path.relative_to(COPY / "build" / "cython"))
    (COPY / ".coveragerc").write_text(SETTINGS, encoding="utf-8")
    tests = list(arguments) or ["-m", "not slow", *(f"tests/{room}" for room in TESTS)]
    failed = run(python, "-m", "coverage", "run", "-m", "pytest", "-q", *tests)
    return run(python, "-m", "coverage", "report", "--show-missing", "--skip-covered") or failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
