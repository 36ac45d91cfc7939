"""A call of a front that is cut short has done everything or nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from interruptions import cut_everywhere

from cpprb_like.compat.dqn import ReplayBuffer
from cpprb_like.compat.keras_gym import ExperienceReplayBuffer

# Files that are open when the first step is cut short are closed by the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.slow,
]

SIZE = 6


def frame(number: int) -> Any:
    """A frame that differs from others."""
    return np.full((1, 1, 1), number, np.uint8)


def frames(stored: int, known: bool = True) -> ReplayBuffer:
    """Berkeley's buffer with some frames, of which the fourth ends an episode."""
    rb = ReplayBuffer(SIZE, 3, seed=0)
    for number in range(1, stored + 1):
        idx = rb.store_frame(frame(number))
        if known or number < stored:
            rb.store_effect(idx, number, float(number), number % 4 == 0)
    return rb


def look_at_frames(rb: ReplayBuffer) -> Any:
    """All that can be read of it, and what is read when the program goes on."""
    seen: list[Any] = []
    rb = copy.deepcopy(rb)
    for number in (100, None):
        drawable = max(n for n in range(SIZE + 1) if rb.can_sample(n) or n == 0)
        view = rb.encode_recent_observation().tolist() if rb.num_in_buffer else None
        batch = rb.sample(drawable) if drawable else ()
        rows = sorted(zip(*(column.tolist() for column in batch), strict=True))
        fields = [None if x is None else x[:].tolist() for x in (rb.obs, rb.action, rb.done)]
        seen.append((rb.num_in_buffer, rb.next_idx, drawable, view, rows, fields))
        if number is not None:
            idx = rb.store_frame(frame(number))
            rb.store_effect(idx, number, 0.0, False)
    return seen


@pytest.mark.parametrize(
    ("stored", "known"), [(0, True), (1, True), (1, False), (20, True), (20, False)]
)
@pytest.mark.parametrize(
    "call",
    [
        lambda rb: rb.store_frame(frame(99)),
        lambda rb: rb.store_effect(rb.next_idx - 1, 9, 9.0, True),
        lambda rb: rb.store_effect(rb.next_idx - 1, 9, np.float32(9.0), False, truncated=True),
        lambda rb: rb.store_effect(rb.next_idx - 2, 9, 9.0, True),
        lambda rb: rb.store_effect(rb.next_idx - 2, 9, 9.0, False, truncated=True),
    ],
    ids=["frame", "effect", "truncated", "older effect", "older truncated"],
)
def test_berkeleys_buffer(call: Callable[[ReplayBuffer], object], stored: int, known: bool) -> None:
    """Ctrl-C between the rows and the counters beside them left frames that were not counted."""
    rb = frames(stored, known)
    try:
        call(rb)
    except IndexError:
        return  # there is no frame in that slot

    assert cut_everywhere(lambda: frames(stored, known), call, look_at_frames) > 3


def steps(added: int) -> ExperienceReplayBuffer:
    """keras-gym's buffer with some steps, of which each fourth ends an episode."""
    env = SimpleNamespace(action_space=SimpleNamespace(n=9), num_frames=3)
    buffer = ExperienceReplayBuffer(env, SIZE, 1, 2, random_seed=0)
    for number in range(added):
        add(buffer, number, number // 4)
    return buffer


def add(buffer: ExperienceReplayBuffer, number: int, episode: int) -> None:
    """A step with its number."""
    state = np.full((1, 1, 3), number, np.uint8)
    buffer.add(state, number % 9, float(number), number % 8 == 7, episode)


def look_at_steps(buffer: ExperienceReplayBuffer) -> Any:
    """Many transitions, and those when the program goes on."""
    seen: list[Any] = []
    buffer = copy.deepcopy(buffer)
    for number in (100, 101, 102, None):
        rows: list[Any] = []
        buffer.batch_size = max(1, len(buffer))
        with suppress(ValueError):  # there may be none
            rows = [[column.tolist() for column in buffer.sample()] for _ in range(2)]
        seen.append((len(buffer), rows))
        if number is not None:
            add(buffer, number, 1)
    return seen


@pytest.mark.parametrize(
    ("added", "episode"),
    [(0, 1), (0, 2), (1, 1), (4, 1), (4, 2), (5, 2), (8, 2), (8, 4), (20, 1), (20, 4)],
)
def test_keras_gyms_buffer(added: int, episode: int) -> None:
    """Ctrl-C between the rows and the counters beside them shifted all steps by one."""

    def call(buffer: ExperienceReplayBuffer) -> None:
        add(buffer, 50, episode)

    assert cut_everywhere(lambda: steps(added), call, look_at_steps) > 3


def test_keras_gyms_buffer_is_cleared_or_not() -> None:
    """Steps of an episode that was forgotten are not those of one that begins."""
    assert cut_everywhere(lambda: steps(7), ExperienceReplayBuffer.clear, look_at_steps) > 0
