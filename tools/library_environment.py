"""A virtual environment with the package and the libraries that a leg of the tests needs.

``constraints/NAME.in`` names the libraries, ``constraints/NAME.txt`` fixes their versions. A second
call installs the package anew and moves libraries to the versions that the files have now.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

from environment import (
    PIP_INSTALL,
    ROOT,
    NotReadyError,
    check_venv,
    create_environment,
    fix_pip,
    interpreter,
)
from fixed_versions import FOLDER, check_if_asked, options

VERSION = ("-c", "import sys; print(sys.version)")


def is_of_this_python(python: Path) -> bool:
    """Whether the environment is there, and was made with the Python that runs this."""
    if not python.exists():
        return False
    told = subprocess.run([str(python), *VERSION], capture_output=True, text=True, check=False)
    return told.stdout.strip() == sys.version.strip()


def install(folder: Path, name: str, package: str) -> None:
    """Make the environment hold the package, and what the file names."""
    python = interpreter(folder)
    if is_of_this_python(python):
        fix_pip(python, name)
    else:
        create_environment(folder, name)

    def pip(*words: str) -> None:
        subprocess.run([str(python), *words], cwd=ROOT, check=True)

    # pip would take a wheel of the same version for the same.
    pip("-m", "pip", "uninstall", "--quiet", "--quiet", "--yes", "cpprb_like")
    pip(*PIP_INSTALL, *options(name), package, "--requirement", str(FOLDER / f"{name}.in"))
    alone = FOLDER / f"{name}-alone.txt"
    if alone.exists():
        without = ("--no-deps", "--ignore-requires-python")
        pip(*PIP_INSTALL, *options("build"), *without, "--requirement", str(alone))
    check_if_asked(python, name)


def main() -> None:
    """Make the environment that is named on the command line."""
    parser = argparse.ArgumentParser(description="Set up an environment of libraries for tests.")
    parser.add_argument("name", help="of the file in constraints/")
    parser.add_argument("--venv", type=Path, required=True, help="the folder of the environment")
    parser.add_argument("--package", default=".", help="a wheel of the package, or its tree")
    chosen = parser.parse_args()
    try:
        check_venv()
        install(chosen.venv.resolve(), chosen.name, chosen.package)
    except NotReadyError as error:
        sys.exit(str(error))
    except subprocess.CalledProcessError as error:
        sys.exit(f"This failed, for the reason above: {shlex.join(map(str, error.cmd))}")


if __name__ == "__main__":
    main()
