"""Atari under Stable-Baselines3: seven kilobytes a step, and the batches of full stacks."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from optional import need

torch = need("torch")
need("stable_baselines3")
ale_py = need("ale_py")
need("cv2")

import gymnasium
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer as TheirReplayBuffer
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack

from cpprb_like.integrations.stable_baselines3 import ReplayBuffer

ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
gymnasium.register_envs(ale_py)
torch.set_num_threads(1)
FRAME = 84 * 84


class Both(ReplayBuffer):
    """Ours, which writes the same steps into theirs as well."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        size, obs, act = args
        self.theirs = TheirReplayBuffer(size, obs, act, n_envs=options["n_envs"])

    def add(self, *step: Any) -> None:
        self.theirs.add(*copy.deepcopy(step))
        super().add(*step)


@pytest.mark.parametrize("n_envs", [1, 2])
def test_a_step_takes_one_frame_and_reads_as_two_stacks(n_envs: int) -> None:
    """Lost lives, time limits and resets included, with the frames that a reset leaves out.

    Theirs takes 56 kB a step, or 28 without the handling of time limits.
    """
    game = make_atari_env(
        "BreakoutNoFrameskip-v4", n_envs, seed=0, env_kwargs={"max_episode_steps": 300}
    )
    model = DQN(
        "CnnPolicy", VecFrameStack(game, 4), buffer_size=1500, seed=0, device="cpu",
        learning_starts=10**6, optimize_memory_usage=True, replay_buffer_class=Both,
        replay_buffer_kwargs={"stack_compress": True},
    )  # fmt: skip
    model.learn(2000)
    ours, theirs = model.replay_buffer, model.replay_buffer.theirs
    assert ours.buffer.n_envs == n_envs
    np.random.seed(1)
    expected = [theirs.sample(64) for _ in range(20)]
    np.random.seed(1)
    for one in expected:
        other = ours.sample(64)
        for name in ("observations", "next_observations", "actions", "rewards", "dones"):
            assert torch.equal(getattr(one, name), getattr(other, name)), name
    rows = ours.buffer.get_all_transitions()
    ends = int(rows["truncated"].sum() + rows["terminated"].sum())
    assert ends > 10
    nbytes, full = ours.buffer.nbytes / 1500, 8 * FRAME
    print(f"{nbytes:.0f} of {full} bytes a step; {ends} ends among 1500 steps")
    assert nbytes < 1.05 * FRAME + 8 * FRAME * ends / 1500
