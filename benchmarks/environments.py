"""A virtual environment for each peer, made from its file in ``requirements``; programs in them.

Peers want different releases of the same packages, and a peer that does not install must not keep
the others from being measured: it has a reason, which the table shows. A program prints what it
found as JSON. Not here: contenders that take turns (``contest``).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
REQUIREMENTS = FOLDER / "requirements"
PEERS = tuple(sorted(path.stem for path in REQUIREMENTS.glob("*.txt")))
# Modules with the contenders of an environment, where that is not one module of its name.
MODULES = {
    "any_length": ("any_length_torch", "any_length_geometric", "any_length_arrow"),
    "torchrl": ("torchrl", "any_length_torchrl"),
}


@dataclass(frozen=True)
class Environment:
    """The environment of a peer, in a folder that holds those of all peers."""

    folder: Path
    peer: str

    @property
    def home(self) -> Path:
        """Where it is."""
        return self.folder / self.peer

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules with its contenders."""
        return tuple(f"contenders.{name}" for name in MODULES.get(self.peer, (self.peer,)))

    def make(self) -> str | None:
        """Make it, unless it is there already; returns the reason where that is not possible."""
        requirements = REQUIREMENTS / f"{self.peer}.txt"
        words = [sys.version, requirements.read_text(encoding="utf-8")]
        origin = hashlib.sha256(repr(words).encode()).hexdigest()
        record = self.home / "origin.txt"
        if record.exists() and record.read_text(encoding="utf-8") == origin:
            return None
        create = [sys.executable, "-m", "venv", "--without-pip", "--clear", str(self.home)]
        pip = [sys.executable, "-m", "pip", f"--python={self.python}", "install", "--quiet"]
        for command in (create, [*pip, "--disable-pip-version-check", "-r", str(requirements)]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                lines = [line for line in done.stderr.splitlines() if line.strip()]
                return f"does not install: {lines[-1] if lines else done.returncode}"
        record.write_text(origin, encoding="utf-8")
        return None


def answer(python: Path, program: str, *arguments: str, timeout: float) -> dict[str, Any]:
    """The last line that a program of this folder prints; or an ``error``."""
    search = [str(FOLDER.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        done = subprocess.run(
            [str(python), str(FOLDER / program), *arguments],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(search), "PYTHONWARNINGS": "ignore"},
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no end within {timeout:g} s"}
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        errors = [line for line in lines if "Error" in line] or lines
        return {"error": errors[-1] if errors else f"ended with {done.returncode}"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def this_machine() -> dict[str, Any]:
    """Its processor, how busy it is, and the day."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "load": os.getloadavg() if hasattr(os, "getloadavg") else None,
        "date": datetime.now(timezone.utc).date().isoformat(),
    }
