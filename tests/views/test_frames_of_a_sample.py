"""How many Python functions one ``sample`` of a view crosses."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

from cpprb_like import ReplayBuffer
from cpprb_like.views import FrameStacks, Layer, NStep, Sequences

BUDGETS: list[tuple[tuple[Layer, ...], int]] = [
    ((NStep(3, gamma=0.99, discount=True),), 10),
    ((FrameStacks({"obs": 4}),), 12),
    ((FrameStacks({"obs": 4}), NStep(3, gamma=0.99, discount=True)), 12),
    ((Sequences(8),), 12),
]


def frames(call: Callable[[], Any]) -> list[str]:
    """Names of the Python functions that a call enters, without those of a garbage collection."""
    found: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            found.append(frame.f_code.co_name)

    before = sys.getprofile()
    gc.disable()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
        gc.enable()
    return found[1:]


@pytest.mark.parametrize(("layers", "most"), BUDGETS)
def test_a_batch_crosses_few_functions(layers: tuple[Layer, ...], most: int) -> None:
    """Stacked 3-step returns took 56, and walked the rows six times."""
    fields: dict[str, Any] = {
        "obs": {"shape": (4, 4)},
        "rew": {"shape": ()},
        "done": {"shape": (), "dtype": bool},
    }
    rb = ReplayBuffer(1000, fields, next_of="obs", seed=0)
    for t in range(600):
        rb.add(obs=np.full((4, 4), t), next_obs=np.full((4, 4), t + 1), rew=1, done=t % 50 == 49)
    view = rb.view(*layers)
    view.sample(32)
    found = frames(lambda: view.sample(32))
    assert len(found) <= most, found
