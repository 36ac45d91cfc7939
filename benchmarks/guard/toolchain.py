"""What the counts depend on besides the package: compiler, interpreter, libraries, valgrind."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "build" / "guard"
FASTER_BUILDS = ("--enable-optimizations", "--with-lto")


def toolchain() -> dict[str, str]:
    """What must be the same for counts to be compared.

    Of the machine it is little: valgrind shows the program a processor of its own, which has AVX2
    if the machine has it, and never AVX-512.
    """
    configured = shlex.split(str(sysconfig.get_config_var("CONFIG_ARGS") or ""))
    options = [word for word in configured if word.startswith(FASTER_BUILDS)]
    python = (platform.python_implementation(), platform.python_version(), "by")
    cc = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    return {
        "interpreter": " ".join([*python, platform.python_compiler(), *options]),
        "compiler": _compiler(_first_line([*cc, "--version"])),
        "C library": " ".join(platform.libc_ver()),
        "machine": platform.machine() + (" with AVX2" if _has_avx2() else ""),
        "valgrind": _first_line(["valgrind", "--version"]),
    }


def differences(recorded: Mapping[str, str], here: Mapping[str, str]) -> str:
    """A sentence that says what is different, or nothing."""
    other = [name for name in recorded if recorded[name] != here[name]]
    if not other:
        return ""
    then, now = (", ".join(tools[name] for name in other) for tools in (recorded, here))
    return f"recorded with {then}; this is {now}: not compared"


def numpy_folders(wanted: str) -> Sequence[Path]:
    """Where this version of NumPy is found, if it is not the one that is found anyway."""
    if version("numpy") == wanted:
        return ()
    folder = FOLDER / f"numpy-{wanted}-{sys.implementation.cache_tag}"
    if not folder.exists():
        part = folder.with_suffix(".part")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--upgrade", "--target", part, f"numpy=={wanted}"], check=True)
        part.rename(folder)
    return (folder,)


def _compiler(line: str) -> str:
    """Name and number, without the words of a distribution."""
    numbers = re.findall(r"\d+\.\d+\.\d+", line)
    return f"{'clang' if 'clang' in line else 'GCC'} {numbers[-1]}" if numbers else line


def _first_line(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return f"no {command[0]}"
    return done.stdout.partition("\n")[0]


def _has_avx2() -> bool:
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and "avx2" in cpuinfo.read_text(encoding="utf-8").split()
