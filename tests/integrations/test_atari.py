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


def play(game: str, steps: int) -> Iterator[dict[str, Any]]:
    """Steps of random play, episode after episode, with the frames of a stack first."""
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # its banner is no news
    env = FrameStackObservation(AtariPreprocessing(gym.make(game, frameskip=1)), 4)
    try:
        env.action_space.seed(1)
        obs, _ = env.reset(seed=1)
        for _ in range(steps):
            action = env.action_space.sample()
            following, reward, terminated, truncated, _ = env.step(action)
            yield {
                "obs": obs,
                "act": action,
                "rew": reward,
                "next_obs": following,
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


class Pair:
    """A buffer of shared frames, and one of full stacks: the same batches of the same seed."""

    def __init__(self, axis: int, prioritized: bool) -> None:
        self.axis = axis
        self.rb, self.full = buffers(axis, prioritized)

    def add(self, step: dict[str, Any]) -> None:
        """Add a step to both."""
        stacks = {name: np.moveaxis(step[name], 0, self.axis) for name in ("obs", "next_obs")}
        assert self.rb.add(**step | stacks) == self.full.add(**step | stacks)

    def draw(self, number: int) -> None:
        """Draw from both, and give the rows new priorities."""
        batch = self.rb.sample(32, indexes=True)
        assert_same_bytes(batch, self.full.sample(32, indexes=True))
        priorities = np.random.default_rng(number).random(32)
        for buffer in (self.rb, self.full):
            if isinstance(buffer, PrioritizedReplayBuffer):
                buffer.update_priorities(batch["indexes"], priorities)

    def end(self) -> None:
        """All rows are the same; one buffer takes an eighth of the memory."""
        rb, full = self.rb, self.full
        assert len(rb) == len(full) > SIZE - 3
        for batch, expected in zip(
            rb.epoch(256, shuffle=False), full.epoch(256, shuffle=False), strict=True
        ):
            assert_same_bytes(batch, expected)
        rb.check()
        assert full.nbytes > SIZE * FULL_NBYTES
        newest = 2 * FULL_NBYTES  # kept as they came, in two places of a buffer
        assert rb.nbytes <= SIZE * LEAN_NBYTES + newest


def buffers(axis: int, prioritized: bool) -> tuple[ReplayBuffer, ReplayBuffer]:
    """An empty buffer that shares frames, and one that does not."""
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
    return rb, kind(SIZE, {**fields, "next_obs": stack}, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("game", "options"),
    [
        ("ALE/Pong-v5", [(-1, False), (0, True)]),
        ("ALE/Breakout-v5", [(-1, True)]),  # random play loses within 200 steps
    ],
)
def test_shared_frames_read_as_full_stacks(game: str, options: list[tuple[int, bool]]) -> None:
    """Both buffers of each pair give the same batches; a game is played once for all pairs."""
    pairs = [Pair(axis, prioritized) for axis, prioritized in options]
    ends = 0
    rewards = set()

    for number, step in enumerate(play(game, STEPS), 1):
        for pair in pairs:
            pair.add(step)
        ends += step["terminated"] or step["truncated"]
        rewards.add(float(step["rew"]))
        if number % (STEPS // COMPARISONS) == 0:
            for pair in pairs:
                pair.draw(number)

    assert ends >= 2, "no episode began anew"
    assert len(rewards) > 1, "nothing happened in the game"
    for pair in pairs:
        pair.end()
