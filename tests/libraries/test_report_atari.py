"""A report of runs of Atari games finds nothing wrong, and shows their frames."""

from __future__ import annotations

from typing import Any

import pytest
from optional import need

gymnasium: Any = need("gymnasium")
ale_py: Any = need("ale_py", "the games are its environments")
need("cv2", "a wrapper of Gymnasium resizes frames by it")

from cpprb_like import ReplayBuffer
from cpprb_like.integrations.gymnasium import GymnasiumRecorder

gymnasium.register_envs(ale_py)


def record(env: Any, **options: Any) -> ReplayBuffer:
    """A buffer of 1,000 steps with random actions."""
    recorder = GymnasiumRecorder(env)
    rb: ReplayBuffer = recorder.attach(ReplayBuffer(1000, recorder.env_dict, seed=0, **options))
    recorder.reset(seed=0)
    recorder.action_space.seed(0)
    for _ in range(1000):
        recorder.step(recorder.action_space.sample())
    return rb


@pytest.mark.once
@pytest.mark.parametrize("game", ["Pong", "Breakout", "SpaceInvaders", "Freeway"])
@pytest.mark.parametrize("stacked", [False, True], ids=["RGB", "stacks"])
def test_nothing_is_found_in_games(game: str, stacked: bool) -> None:
    """Frames with the channels last, and stacks of grey ones with the newest last on axis 0."""
    env = gymnasium.make(f"ALE/{game}-v5")
    if stacked:
        env = gymnasium.wrappers.GrayscaleObservation(env)
        env = gymnasium.wrappers.ResizeObservation(env, (84, 84))
        env = gymnasium.wrappers.FrameStackObservation(env, 4)
    compressed = {"stack_compress": {"obs": 0}, "next_of": "obs"} if stacked else {}
    rb = record(env, **compressed)
    found = rb.describe()
    assert found.findings == []
    assert "Frames of" in found._repr_html_()


@pytest.mark.once
def test_nothing_is_found_in_several_games_at_once() -> None:
    """Stacks of a vector environment that are stored once are described as those of one are."""

    def make() -> Any:
        env = gymnasium.wrappers.GrayscaleObservation(gymnasium.make("ALE/Pong-v5"))
        env = gymnasium.wrappers.ResizeObservation(env, (84, 84))
        return gymnasium.wrappers.FrameStackObservation(env, 4)

    found = record(
        gymnasium.vector.SyncVectorEnv([make] * 2), stack_compress={"obs": 0}, next_of="obs"
    ).describe()
    assert found.findings == []
    assert "Frames of" in found._repr_html_()
