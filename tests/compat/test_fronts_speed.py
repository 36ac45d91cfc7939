"""No front is slower than the rule that it stands for, written plainly in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from time import process_time
from typing import Any

import pytest
from contenders import fronts_dqn, fronts_keras_gym
from helpers import needs_optimised_modules
from measure import Work

pytestmark = needs_optimised_modules

ROUNDS = 60
CALLS = 1000  # of a turn: the same for both, so that a busy machine cannot make one of them short
MOST = 1.5  # times the original; it is at most 1, and other programs are at work too


def times_the_original(make: Callable[[int], Work]) -> float:
    """The fastest turn of ours over that of the original; they take turns."""
    works = [make(place) for place in range(2)]
    best = [1e9, 1e9]
    for _ in range(ROUNDS):
        for place, work in enumerate(works):
            start = process_time()
            work(CALLS)
            best[place] = min(best[place], process_time() - start)
    return best[0] / best[1]


@pytest.mark.parametrize(
    ("work", "parameters"),
    [
        (fronts_dqn.dqn_store, {"rows": 2000}),
        (fronts_keras_gym.keras_gym_add, {"rows": 2000, "depth": 4}),
        (fronts_keras_gym.keras_gym_add, {"rows": 2000, "depth": 1}),
    ],
    ids=["Berkeley: store a step, view", "keras-gym: add a stack", "keras-gym: add 4 floats"],
)
def test_a_step_takes_no_longer_than_with_the_original(
    work: Callable[..., Work], parameters: dict[str, Any]
) -> None:
    """What a program does at each step is not slower than it was.

    Checks of each value in Python, arrays made for a single number and a copy of each view took up
    to five times as long.
    """
    assert times_the_original(lambda place: work(place, **parameters)) < MOST
