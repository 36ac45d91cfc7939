"""One declaration with fields of many kinds, and a step that fits it."""

from __future__ import annotations

from typing import Any

import numpy as np

Fields = dict[str, Any]
SCHEMA: dict[str, Any] = {
    "obs": {"shape": (2, 3), "dtype": "f4"},
    "act": {"shape": (), "dtype": "i1"},
    "rew": {"shape": 1},
    "flag": {"shape": (), "dtype": "?"},
    "name": {"shape": (), "dtype": "U3"},
    "raw": {"shape": (), "dtype": "S2"},
    "id": {"shape": (), "dtype": "u8"},
    "image": {"shape": (20, 20), "dtype": "u1"},
    "when": {"shape": (), "dtype": "M8[s]"},
    "thing": {"shape": (), "dtype": "O"},
    "terminated": {"shape": (), "dtype": "?"},
}


def step(**changes: Any) -> Fields:
    """One good step, with some of its values changed."""
    good: Fields = {
        "obs": np.ones((2, 3), "f4"),
        "act": 1,
        "rew": 0.5,
        "flag": True,
        "name": "abc",
        "raw": b"ab",
        "id": 7,
        "image": np.ones((20, 20), "u1"),
        "when": np.datetime64("2020-01-01", "s"),
        "thing": {"any": "thing"},
        "terminated": False,
    }
    return good | changes
