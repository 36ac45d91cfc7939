"""Programs that measure in the environment of a package, and the machine on which they do.

A program prints what it found as JSON. Not here: contenders that take turns (``contest``).
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

__all__ = ["answer", "this_machine"]

FOLDER = Path(__file__).resolve().parent


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
