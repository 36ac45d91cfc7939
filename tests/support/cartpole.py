"""The fields of CartPole, and its steps."""

from __future__ import annotations

from typing import Any

import numpy as np

CARTPOLE: dict[str, Any] = {
    "obs": {"shape": 4},
    "act": {"shape": 1, "dtype": np.int32},
    "rew": {},
    "next_obs": {"shape": 4},
    "done": {},
}


def step(i: int) -> dict[str, Any]:
    """Step number ``i``; every tenth ends its episode."""
    return {"obs": [i] * 4, "act": i % 2, "rew": 1.0, "next_obs": [i + 1] * 4, "done": i % 10 == 9}
