"""Files of results, as all benchmarks write them: JSON with a line for each case.

Not here: the tables and pictures that are made of them (``reports``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["write"]


def write(path: Path, results: Mapping[str, Any]) -> None:
    """Write results to a file; each entry of a list or dict of them is a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = (f"{json.dumps(name)}: {_lines(value)}" for name, value in results.items())
    path.write_text("{\n" + ",\n".join(entries) + "\n}\n", encoding="utf-8")


def _lines(value: Any) -> str:
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"
    if isinstance(value, dict) and value:
        entries = (f"{json.dumps(name)}: {json.dumps(one)}" for name, one in value.items())
        return "{\n" + ",\n".join(entries) + "\n}"
    return json.dumps(value)
