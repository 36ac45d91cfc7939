"""A virtual environment with the package built into it, in place; a second call changes nothing.

Checks first that this machine can build: whoever lacks something gets one sentence that says what
to install. Needs nothing but the standard library. How the modules are built is in setup.py.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from fixed_versions import FOLDER, check_if_asked, mode, runtime_options

ROOT = Path(__file__).resolve().parent.parent
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
PIP_INSTALL = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
PACKAGES = {  # what each package manager calls a C compiler, Python's headers, and venv
    "apt-get": ("build-essential", f"python{VERSION}-dev", f"python{VERSION}-venv"),
    "dnf": ("gcc", f"python{VERSION}-devel", f"python{VERSION}-libs"),
    "apk": ("build-base", "python3-dev", "python3"),
    "pacman": ("base-devel", "python", "python"),
    "zypper": ("gcc", "python3-devel", "python3-venv"),
}


def interpreter(folder: Path) -> Path:
    """The interpreter of a virtual environment."""
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


class NotReadyError(Exception):
    """This machine lacks something; the message says what to install."""


def advice(what: int) -> str:
    """How to install a C compiler (0), Python's headers (1) or venv (2) on this machine."""
    if sys.platform == "darwin":
        return "run 'xcode-select --install'" if what == 0 else f"install Python {VERSION} anew"
    for manager, names in PACKAGES.items():
        if shutil.which(manager):
            return f"run '{manager} {'add' if manager == 'apk' else 'install'} {names[what]}'"
    return f"install {('gcc or clang', 'the headers of Python', 'the venv module')[what]}"


def check_venv() -> None:
    """The interpreter can make virtual environments."""
    if find_spec("venv") is None or find_spec("ensurepip") is None:
        raise NotReadyError(f"{sys.executable} cannot make virtual environments: {advice(2)}.")


def check_compiler(command: str) -> None:
    """The C compiler exists, and can build a program."""
    words = shlex.split(command)
    if not words or shutil.which(words[0]) is None:
        raise NotReadyError(f"No C compiler: there is no '{command}' on the PATH; {advice(0)}.")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text("#include <stdlib.h>\nint main(void) { return EXIT_SUCCESS; }\n")
        probe = [*words, str(source), "-o", str(source.with_suffix(".out"))]
        if subprocess.run(probe, capture_output=True, check=False).returncode:
            raise NotReadyError(
                f"The C compiler '{command}' cannot build an empty program; {advice(0)}."
            )


def check_headers(folder: str) -> None:
    """The headers of the interpreter are there."""
    if not Path(folder, "Python.h").is_file():
        raise NotReadyError(
            f"The headers of Python {VERSION} are missing (no Python.h in {folder}); {advice(1)}."
        )


def check_build() -> None:
    """This machine can build the package. On Windows setuptools itself finds the compiler."""
    if sys.platform != "win32":
        check_compiler(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
        check_headers(sysconfig.get_path("include"))


def origin(wheel: Path | None) -> str:
    """What an environment is made from: the interpreter, the package's metadata, the versions."""
    metadata = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("\n[tool.")[0]
    package = (ROOT / "cpprb_like" / "__init__.py").read_text(encoding="utf-8")
    versions = re.findall(r"^__version__.*", package, re.MULTILINE)
    if mode() != "newest":
        versions.append((FOLDER / "tree.txt").read_text(encoding="utf-8"))
    if wheel is not None:
        versions.append(hashlib.sha256(wheel.read_bytes()).hexdigest())
    words = repr([sys.version, sys.executable, metadata, versions])
    return hashlib.sha256(words.encode()).hexdigest()


def build_requirements() -> list[str]:
    """The requirements of the build; read by hand, as Python 3.10 has no reader of TOML."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r"^requires = (\[.*?\])", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    requirements: list[str] = ast.literal_eval(found[1])
    return requirements


def create_environment(folder: Path, name: str, python: str = sys.executable) -> Path:
    """Make it anew, with nothing in it but pip, for the packages of ``constraints/NAME.txt``."""
    if folder.exists() and not (folder / "pyvenv.cfg").exists():
        raise NotReadyError(f"{folder} is something else: name another folder as VENV.")
    subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)
    own_python = interpreter(folder)
    fix_pip(own_python, name)
    # Pythons before 3.12 put one in, of their own time.
    remove = ("-m", "pip", "uninstall", "--quiet", "--quiet", "--yes", "setuptools")
    subprocess.run([str(own_python), *remove], check=True)
    return own_python


def fix_pip(python: Path, name: str) -> None:
    """Bring pip to its fixed version."""
    upgrade = (*PIP_INSTALL, *runtime_options(name), "--upgrade", "pip")
    subprocess.run([str(python), *upgrade], check=True)


class Environment:
    """A virtual environment that knows what it was made from: this tree, or a wheel of it."""

    def __init__(self, folder: Path, wheel: Path | None = None) -> None:
        self.folder = folder
        self.wheel = wheel
        self.python = interpreter(folder)
        self.record = folder / "cpprb_like.json"

    def run(self, *arguments: str) -> None:
        """Run the environment's interpreter in the root of the tree."""
        subprocess.run([str(self.python), *arguments], cwd=ROOT, check=True)

    def installed_extras(self) -> set[str]:
        """The extras it holds; none if it is not there or was made from something else."""
        if not self.record.exists():
            return set()
        record = json.loads(self.record.read_text(encoding="utf-8"))
        return set(record["extras"]) if record["origin"] == origin(self.wheel) else set()

    def create(self) -> None:
        """Make it anew, with nothing in it but what the build needs."""
        say(f"creating {self.folder} with Python {VERSION}")
        create_environment(self.folder, "tree")
        if self.wheel is None:
            self.run(*PIP_INSTALL, *runtime_options("tree"), *build_requirements())

    def install(self, extras: set[str]) -> None:
        """Install the package with these extras: in place, or the wheel."""
        names = ",".join(sorted(extras))
        say(f"installing cpprb_like[{names}]")
        if self.wheel is None:
            package = ["--no-build-isolation", "--editable", f".[{names}]"]
        else:
            package = [f"{self.wheel}[{names}]"]
        self.run(*PIP_INSTALL, *runtime_options("tree"), *package)
        record = {"origin": origin(self.wheel), "extras": sorted(extras)}
        self.record.write_text(json.dumps(record), encoding="utf-8")

    def build(self) -> None:
        """Build the modules; does nothing if they are up to date, or come with the wheel."""
        if self.wheel is None:
            self.run("setup.py", "--quiet", "build_ext", "--inplace")


def say(what: str) -> None:
    """Tell the user what takes so long."""
    print(f"==> {what}", flush=True)


def main(arguments: Sequence[str]) -> None:
    """Make ``--venv`` hold the package, built, and the extras that are named."""
    parser = argparse.ArgumentParser(description="Set up a virtual environment with the package.")
    parser.add_argument("extras", nargs="+", help="extras of pyproject.toml")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="its folder")
    parser.add_argument("--wheel", type=Path, help="install this, and compile nothing")
    chosen = parser.parse_args(arguments)
    try:
        wheel = None if chosen.wheel is None else chosen.wheel.resolve()
        if wheel is not None and not wheel.is_file():
            raise NotReadyError(f"There is no wheel {wheel}: 'make wheel' makes one in dist/.")
        environment = Environment(chosen.venv.resolve(), wheel)
        check_venv()
        if wheel is None:
            check_build()
        installed = environment.installed_extras()
        if not installed:
            environment.create()
        if not installed.issuperset(chosen.extras):
            environment.install(installed.union(chosen.extras))
        environment.build()
        check_if_asked(environment.python, "tree")
    except NotReadyError as error:
        sys.exit(str(error))
    except subprocess.CalledProcessError as error:
        sys.exit(f"This failed, for the reason above: {shlex.join(map(str, error.cmd))}")
