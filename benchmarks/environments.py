"""A virtual environment for each peer, made from its file in ``requirements``.

Peers want different releases of the same packages, and a peer that does not install must not keep
the others from being measured: it has a reason, which the table shows.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PEERS", "Environment"]

REQUIREMENTS = Path(__file__).resolve().parent / "requirements"
PEERS = tuple(sorted(path.stem for path in REQUIREMENTS.glob("*.txt")))


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

    def make(self) -> str | None:
        """Make it, unless it is there already; returns the reason where that is not possible."""
        requirements = REQUIREMENTS / f"{self.peer}.txt"
        words = [sys.version, requirements.read_text(encoding="utf-8")]
        origin = hashlib.sha256(repr(words).encode()).hexdigest()
        record = self.home / "origin.txt"
        if record.exists() and record.read_text(encoding="utf-8") == origin:
            return None
        create = [sys.executable, "-m", "venv", "--clear", str(self.home)]
        pip = [str(self.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for command in (create, [*pip, "-r", str(requirements)]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                lines = [line for line in done.stderr.splitlines() if line.strip()]
                return f"does not install: {lines[-1] if lines else done.returncode}"
        record.write_text(origin, encoding="utf-8")
        return None
