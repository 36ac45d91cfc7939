"""Try a built wheel or sdist as a user gets it: outside the tree, and where there is no compiler.

An sdist is first made a wheel by the interpreter that is to use it. Then: does the wheel hold what
it should and nothing else; does a buffer work in an environment that holds NumPy and it alone; do
the tests pass against it?
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from environment import PIP_INSTALL, ROOT, create_environment
from fixed_versions import FOLDER, check_if_asked, options

ALLOWED = re.compile(r"cpprb_like/([\w/]+\.pyi?|py\.typed|(\w+/)*\w+\.[\w.-]+\.(so|pyd))")
# The same as for cibuildwheel, see pyproject.toml.
TEST_SOURCES = (
    *("tests", "examples", "benchmarks", "docs"),
    *("pyproject.toml", "Makefile", "LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"),
    *("SECURITY.md", "CITATION.cff"),
)
# They look at the tree.
NOT_FOR_WHEELS = (
    "tests/site",
    "tests/project/test_reference_pages.py",
    "tests/project/test_combinations_page.py",
    "tests/project/test_architecture.py",
    "tests/project/test_constraints.py",
    "tests/project/test_packaging.py",
    "tests/project/test_release.py",
)
USE = """
import pathlib, sys
import numpy as np
import cpprb_like

assert pathlib.Path(cpprb_like.__file__).is_relative_to(sys.prefix), cpprb_like.__file__
rb = cpprb_like.ReplayBuffer(8, {"obs": {"shape": 3}, "done": {"dtype": bool}}, seed=1)
for step in range(10):
    rb.add(obs=np.full(3, step), done=step == 9)
batch = rb.sample(64)
assert batch["obs"].shape == (64, 3) and batch["done"].dtype == bool
assert set(np.unique(batch["obs"])) <= set(range(2, 10)), batch["obs"]
versions = f"Python {sys.version.split()[0]}, NumPy {np.__version__}"
print(f"cpprb_like {cpprb_like.__version__} works on {versions}")
"""


def complaints(names: Iterable[str], tree: Path) -> list[str]:
    """What is missing from a wheel that holds these files, and what should not be in it."""
    held = {name for name in names if ".dist-info/" not in name}
    package = tree / "cpprb_like"
    plain = {
        path.relative_to(tree).as_posix()
        for pattern in ("*.py", "*.pyi", "py.typed")
        for path in package.rglob(pattern)
    }
    compiled = {path.relative_to(tree).as_posix()[: -len("pyx")] for path in package.rglob("*.pyx")}
    return [
        *(f"{name} is missing" for name in sorted(plain - held)),
        *(
            f"the module {stem} is missing"
            for stem in sorted(compiled)
            if not any(name.startswith(stem) and name.endswith((".so", ".pyd")) for name in held)
        ),
        *(f"{name} should not be there" for name in sorted(held) if not ALLOWED.fullmatch(name)),
    ]


def sdist_complaints(names: Iterable[str]) -> list[str]:
    """What should not be in an sdist that holds these files: whatever was generated."""
    generated = re.compile(r".*(\.(c|so|pyd|html|pyc)|/__pycache__/.*)")
    return [f"{name} should not be there" for name in names if generated.fullmatch(name)]


def run(command: Sequence[str | Path], cwd: Path, environ: dict[str, str] | None = None) -> None:
    """Run a command that must succeed."""
    subprocess.run([str(word) for word in command], cwd=cwd, env=environ, check=True)


def without_compiler(folder: Path) -> dict[str, str]:
    """The variables of a process that finds no compiler and no Python but its own."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return environ | {"PATH": str(folder), "CC": "false", "CXX": "false"}


def refuse(package: Path, found: Sequence[str]) -> None:
    """End if there are complaints."""
    if found:
        sys.exit(f"{package.name}: {'; '.join(found)}")


def check(package: Path, python: str, constraints: str, arguments: Sequence[str]) -> None:
    """Raise or exit if the package does not work with this interpreter and these versions."""
    further = FOLDER / f"{constraints}.in"
    requirements = ["--requirement", str(further)] if further.exists() else []
    with tempfile.TemporaryDirectory(prefix="cpprb_like-") as name:
        place = Path(name).resolve()
        own_python = create_environment(place / "venv", constraints, python)
        scripts = own_python.parent
        wheel, fixed = package, options(constraints)
        if package.suffix != ".whl":
            with tarfile.open(package) as sdist:
                refuse(package, sdist_complaints(sdist.getnames()))
            run([own_python, "-m", "pip", "wheel", "--quiet", *fixed, "--no-deps", package], place)
            (wheel,) = place.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            refuse(wheel, complaints(archive.namelist(), ROOT))

        environ = without_compiler(scripts)
        run([own_python, *PIP_INSTALL, *fixed, wheel, *requirements], place, environ)
        run([own_python, "-c", USE], place, environ)
        run([own_python, *PIP_INSTALL, *fixed, f"{wheel}[test]", *requirements], place, environ)
        check_if_asked(own_python, constraints)
        for item in TEST_SOURCES:
            if (ROOT / item).is_dir():
                # What was compiled in the tree names files of the tree.
                left_out = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / item, place / item, ignore=left_out)
            else:
                shutil.copy(ROOT / item, place / item)
        ignored = [f"--ignore={test}" for test in NOT_FOR_WHEELS]
        run([scripts / "pytest", *ignored, *arguments], place, environ)


def main() -> None:
    """Check the package that is named on the command line."""
    parser = argparse.ArgumentParser(description="Try a built wheel or sdist as a user gets it.")
    parser.add_argument("package", type=Path, help="the wheel or sdist")
    parser.add_argument("--python", default=sys.executable, help="the interpreter to use")
    parser.add_argument("--constraints", default="tree", help="a file of that folder, by name")
    chosen, arguments = parser.parse_known_args()
    try:
        check(chosen.package.resolve(), chosen.python, chosen.constraints, arguments)
    except subprocess.CalledProcessError as error:
        sys.exit(f"This failed, for the reason above: {shlex.join(error.cmd)}")


if __name__ == "__main__":
    main()
