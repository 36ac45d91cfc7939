"""Exact versions of all that the commands install: options for pip, and a check.

``constraints/NAME.in`` names packages, ``constraints/NAME.txt`` has the versions of these and of
all that they need, for each Python and system. ``NAME-alone.txt`` has packages that are installed
without what they ask for. Not here: how the files are written (``renew_constraints``).

``CPPRB_LIKE_PACKAGES`` is ``fixed`` (default), ``newest`` (no constraints), or ``checked``: fixed,
and an environment that holds a package of another version is an error.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "constraints"
SWITCH = "CPPRB_LIKE_PACKAGES"
LIST = """
import importlib.metadata as m, json
print(json.dumps([[d.metadata["Name"], d.version] for d in m.distributions()]))
"""


def mode() -> str:
    """How versions are chosen."""
    chosen = os.environ.get(SWITCH) or "fixed"
    if chosen not in ("fixed", "newest", "checked"):
        sys.exit(f"{SWITCH}: expected 'fixed', 'newest' or 'checked', got {chosen!r}.")
    return chosen


def options(name: str) -> list[str]:
    """What fixes the versions for ``pip install`` and ``pip wheel``, those of the build too."""
    build = [] if mode() == "newest" else ["--build-constraint", str(FOLDER / "build.txt")]
    return [*runtime_options(name), *build]


def runtime_options(name: str) -> list[str]:
    """What fixes the versions of what is installed; a pip of any version knows it."""
    return [] if mode() == "newest" else ["--constraint", str(FOLDER / f"{name}.txt")]


def normalized(name: str) -> str:
    """The name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text: str) -> set[tuple[str, str]]:
    """Names and versions that the text of a constraints file fixes, for any Python."""
    found = re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE)
    return {(normalized(name), version) for name, version in found}


def fixed(name: str) -> set[tuple[str, str]]:
    """Names and versions that an environment of this file may hold."""
    files = [FOLDER / f"{name}.txt", FOLDER / f"{name}-alone.txt"]
    return {
        pin for file in files if file.exists() for pin in pins(file.read_text(encoding="utf-8"))
    }


def complaints(
    installed: Iterable[tuple[str, str]], allowed: Iterable[tuple[str, str]]
) -> list[str]:
    """The installed packages whose versions are not fixed; a local build counts as its version."""
    known = set(allowed)
    return sorted(
        f"{name} {version}"
        for name, version in installed
        if normalized(name) != "cpprb-like"
        and (normalized(name), version.partition("+")[0]) not in known
    )


def check(python: Path | str, name: str) -> None:
    """End with an error if the environment of ``python`` holds what the file does not fix."""
    command = [str(python), "-c", LIST]
    listed = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=True)
    found = complaints(
        [(name, version) for name, version in json.loads(listed.stdout)], fixed(name)
    )
    if found:
        sys.exit(
            f"Without a fixed version in constraints/{name}.txt: {', '.join(found)}."
            " Name what brings them in pyproject.toml or constraints/*.in,"
            " and run 'make constraints'."
        )


def check_if_asked(python: Path | str, name: str) -> None:
    """Check where ``CPPRB_LIKE_PACKAGES`` says so."""
    if mode() == "checked":
        check(python, name)
