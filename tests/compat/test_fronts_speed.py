"""Fronts against the rules that they stand for, written plainly in NumPy: the time of a step."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers import needs_optimised_modules
from measure import Work, statement
from plain_fronts import PlainExperienceReplay, PlainFrames
from scale import repeats
from timing import ratio

from cpprb_like.compat.dqn import ReplayBuffer
from cpprb_like.compat.keras_gym import ExperienceReplayBuffer

pytestmark = [pytest.mark.once, needs_optimised_modules]

ROUNDS = repeats(60, 25)
CALLS = 1000  # of a turn: the same for both, so that a busy machine cannot make one of them short
MOST = 2.0  # times the original; it is 0.4 to 1.4 alone, and other programs are at work too
ROWS, EPISODE, ACTIONS, DEPTH = 2000, 200, 6, 4
FRAME = (84, 84)
STORE = (
    "idx = rb.store_frame(frame)\n"
    "view = rb.encode_recent_observation()\n"
    "rb.store_effect(idx, 1, 0.0, False)"
)


def storing_frames() -> list[Work]:
    """A step of Berkeley's program: store a frame, look at the newest stack, store the rest."""
    shape = (*FRAME, 1)
    frames = np.random.default_rng(0).integers(0, 256, (EPISODE, *shape), np.uint8)
    both: list[Any] = [ReplayBuffer(ROWS, DEPTH), PlainFrames(ROWS, DEPTH, shape)]
    for number in range(ROWS):
        for rb in both:
            idx = rb.store_frame(frames[number % EPISODE])
            rb.store_effect(idx, number % ACTIONS, 0.0, number % EPISODE == EPISODE - 1)
    copied = STORE.replace("observation()", "observation().copy()")  # as ours is a copy, too
    frame = np.zeros(shape, np.uint8)
    return [
        statement(text, rb=rb, frame=frame) for text, rb in zip((STORE, copied), both, strict=True)
    ]


def adding_steps(s: Any, frames: int) -> list[Work]:
    """``add`` of keras-gym's buffer, full, of an episode that does not end."""
    env = SimpleNamespace(action_space=SimpleNamespace(n=ACTIONS), num_frames=frames)
    front = ExperienceReplayBuffer(env, ROWS, 32, random_seed=0)
    slots = ROWS + front.bootstrap_n
    both: list[Any] = [front, PlainExperienceReplay(slots, frames, ACTIONS)]
    for step in range(slots):
        for target in both:
            done = step % EPISODE == EPISODE - 1
            target.add(s, step % ACTIONS, 1.0, done, step // EPISODE)
    add = f"target.add(s, 1, 1.0, False, {ROWS // EPISODE + 1})"
    return [statement(add, target=target, s=s) for target in both]


@pytest.mark.parametrize(
    ("make", "most"),
    [
        (storing_frames, MOST),
        (lambda: adding_steps(np.zeros((*FRAME, DEPTH), np.uint8), DEPTH), MOST),
        (lambda: adding_steps(np.zeros(4), 1), MOST),
    ],
    ids=["Berkeley: store a step, view", "keras-gym: add a stack", "keras-gym: add 4 floats"],
)
def test_a_step_takes_about_as_long_as_with_the_original(make: Any, most: float) -> None:
    """A step of a program is not slower than with the original, whose view is copied, as ours is.

    Checks of each value in Python, and arrays made for a single number, took up to five times as
    long.
    """
    ours, original = (partial(work, CALLS) for work in make())
    assert ratio(original, ours, turns=ROUNDS, number=1) < most
