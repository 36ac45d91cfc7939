"""Fronts against the rules that they stand for, written plainly in NumPy: the time of a step."""

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
MOST_WITH_A_COPY = 6.0  # times the original, whose view is no copy; it is 3.6


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
    ("work", "parameters", "most"),
    [
        (fronts_dqn.dqn_store, {"rows": 2000}, MOST_WITH_A_COPY),
        (fronts_keras_gym.keras_gym_add, {"rows": 2000, "depth": 4}, MOST),
        (fronts_keras_gym.keras_gym_add, {"rows": 2000, "depth": 1}, MOST),
    ],
    ids=["Berkeley: store a step, view", "keras-gym: add a stack", "keras-gym: add 4 floats"],
)
def test_a_step_takes_about_as_long_as_with_the_original(
    work: Callable[..., Work], parameters: dict[str, Any], most: float
) -> None:
    """A step of a program is not slower than with the original, but for the copy of a view.

    Checks of each value in Python, and arrays made for a single number, took up to five times as
    long.
    """
    assert times_the_original(lambda place: work(place, **parameters)) < most
