"""The machine that measures, as files of results name it."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

__all__ = ["this_machine"]


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
