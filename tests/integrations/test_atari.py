"""Atari games, preprocessed as is usual: rows that share frames read as rows stored in full.

``CPPRB_LIKE_ATARI_STEPS`` is the number of steps of each game, 3,000 if it is not set; 100,000 take
some two minutes and 1.5 GB for each.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation
from optional import need

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like.typing import FieldSpec

ale_py = need("ale_py", "Atari games need ale-py")
need("cv2", "AtariPreprocessing needs opencv-python-headless")

STEPS = int(os.environ.get("CPPRB_LIKE_ATARI_STEPS", "3000"))
SIZE = min(STEPS * 2 // 3, 20_000)  # of both buffers: rows are overwritten
COMPARISONS = 30  # while the game goes on
FULL_NBYTES = 2 * 84 * 84 * 4  # of a step's two stacks
LEAN_NBYTES = 7_300  # that a step may take; its frame takes 7,056

Fields = dict[str, npt.NDArray[Any]]


def play(game: str, steps: int, axis: int) -> Iterator[dict[str, Any]]:
    """Steps of random play, episode after episode, with the frames of a stack along ``axis``."""
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # its banner is no news
    env = FrameStackObservation(AtariPreprocessing(gym.make(game, frameskip=1)), 4)
    try:
        env.action_space.seed(1)
        obs, _ = env.reset(seed=1)
        for _ in range(steps):
            action = env.action_space.sample()
            following, reward, terminated, truncated, _ = env.step(action)
            yield {
                "obs": np.moveaxis(obs, 0, axis),
                "act": action,
                "rew": reward,
                "next_obs": np.moveaxis(following, 0, axis),
                "terminated": terminated,
                "truncated": truncated,
            }
            obs = env.reset()[0] if terminated or truncated else following
    finally:
        env.close()


def assert_same_bytes(batch: Fields, expected: Fields) -> None:
    """The columns are the same, byte for byte, whatever their order."""
    assert sorted(batch) == sorted(expected)
    for name, column in expected.items():
        assert (batch[name].dtype, batch[name].shape) == (column.dtype, column.shape), name
        same = batch[name].tobytes() == column.tobytes()
        assert same, name  # pytest would compare megabytes in its report


@pytest.mark.slow
@pytest.mark.parametrize(
    ("game", "axis", "prioritized"),
    [
        ("ALE/Pong-v5", -1, False),
        ("ALE/Pong-v5", 0, True),
        ("ALE/Breakout-v5", -1, True),  # random play loses within 200 steps
    ],
)
def test_shared_frames_read_as_full_stacks(game: str, axis: int, prioritized: bool) -> None:
    """Both buffers give the same batches of the same seed; one takes an eighth of the memory."""
    stack: FieldSpec = {"shape": (4, 84, 84) if axis == 0 else (84, 84, 4), "dtype": np.uint8}
    fields: dict[str, Any] = {
        "obs": stack,
        "act": {"shape": (), "dtype": np.uint8},
        "rew": {"shape": ()},
        "terminated": {"shape": (), "dtype": bool},
        "truncated": {"shape": (), "dtype": bool},
    }
    options: dict[str, Any] = {"seed": 7}
    kind: type[ReplayBuffer] = ReplayBuffer
    if prioritized:
        kind = PrioritizedReplayBuffer
        options["check_for_update"] = True
        options["Nstep"] = {"size": 3, "rew": "rew", "next": "next_obs", "discount": True}
    rb = kind(SIZE, fields, next_of="obs", stack_compress={"obs": axis}, **options)
    full = kind(SIZE, {**fields, "next_obs": stack}, **options)
    ends = 0
    rewards = set()

    for number, step in enumerate(play(game, STEPS, axis), 1):
        assert rb.add(**step) == full.add(**step)
        ends += step["terminated"] or step["truncated"]
        rewards.add(float(step["rew"]))
        if number % (STEPS // COMPARISONS) == 0:
            batch = rb.sample(32, indexes=True)
            assert_same_bytes(batch, full.sample(32, indexes=True))
            priorities = np.random.default_rng(number).random(32)
            for buffer in (rb, full):
                if isinstance(buffer, PrioritizedReplayBuffer):
                    buffer.update_priorities(batch["indexes"], priorities)

    assert ends >= 2, "no episode began anew"
    assert len(rewards) > 1, "nothing happened in the game"
    assert len(rb) == len(full) > SIZE - 3
    for batch, expected in zip(
        rb.epoch(256, shuffle=False), full.epoch(256, shuffle=False), strict=True
    ):
        assert_same_bytes(batch, expected)
    rb.check()
    print(f"{game}: {ends} episodes, {rb.nbytes / SIZE:.0f} of {full.nbytes / SIZE:.0f} bytes")
    assert full.nbytes > SIZE * FULL_NBYTES
    newest = FULL_NBYTES  # kept as they came, once for a buffer
    assert rb.nbytes <= SIZE * LEAN_NBYTES + newest
