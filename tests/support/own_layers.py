"""The layers of examples/own_layer.py, for the table of combinations and its twin."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

__all__ = ["FIELDS", "Advantages", "ReturnsToGo"]

PATH = Path(__file__).resolve().parents[2] / "examples" / "own_layer.py"


def _load() -> None:
    """Import the example under its own name, so that its classes can be pickled."""
    spec = importlib.util.spec_from_file_location("own_layer", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["own_layer"] = module
    spec.loader.exec_module(module)


if "own_layer" not in sys.modules:
    _load()

FIELDS = sys.modules["own_layer"].FIELDS
Advantages = sys.modules["own_layer"].Advantages
ReturnsToGo = sys.modules["own_layer"].ReturnsToGo
