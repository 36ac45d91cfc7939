"""Hindsight experience replay for Stable-Baselines3: goals, rewards, files, and what is learned."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optional import need

torch = need("torch")
need("stable_baselines3")

from stable_baselines3 import DQN, SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.her import GoalSelectionStrategy

from cpprb_like.integrations.stable_baselines3 import (
    HerReplayBuffer,
    PrioritizedDQN,
    PrioritizedReplayBufferSamples,
)
from cpprb_like.samplers import Prioritized

torch.set_num_threads(1)
BITS = 5


class Counted(BitFlippingEnv):  # type: ignore[misc]
    """Bit flipping whose ``compute_reward`` keeps what it was given."""

    def __init__(self, **options: Any) -> None:
        super().__init__(n_bits=BITS, max_steps=BITS, **options)
        self.calls: list[tuple[Any, Any, Any]] = []

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        self.calls.append((achieved_goal, desired_goal, info))
        return super().compute_reward(achieved_goal, desired_goal, info)


def model_with(
    buffer: type = HerReplayBuffer, *, n_envs: int = 1, algorithm: Any = DQN, **kwargs: Any
) -> Any:
    """A model whose buffer is filled and which has not learned."""
    options = kwargs.pop("options", {})
    env = make_vec_env(lambda: Counted(continuous=algorithm is SAC), n_envs, seed=0)
    return algorithm(
        "MultiInputPolicy", env, seed=0, learning_starts=10**6, train_freq=1, device="cpu",
        buffer_size=1000, replay_buffer_class=buffer, replay_buffer_kwargs=kwargs, **options,
    )  # fmt: skip


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    "strategy", ["future", "final", "Episode", GoalSelectionStrategy.FUTURE], ids=str
)
def test_goals_were_reached_later_in_the_episode(
    strategy: Any, compressed: bool, n_envs: int
) -> None:
    """And rewards are those of the new goals; rows that keep their goal are as they were added."""
    model = model_with(
        n_envs=n_envs, goal_selection_strategy=strategy, n_sampled_goal=3,
        options={"optimize_memory_usage": compressed},
    )  # fmt: skip
    model.learn(300)
    held = model.replay_buffer
    rows = held.buffer.get_all_transitions()
    batch = held.sample(500)
    goals = batch.observations["desired_goal"].numpy()
    assert (goals == batch.next_observations["desired_goal"].numpy()).all()
    after = batch.next_observations["achieved_goal"].numpy()
    reached = (after == goals).all(axis=1)
    assert (batch.rewards.numpy().ravel() == np.where(reached, 0, -1)).all()
    own = {row.tobytes() for row in rows["obs.desired_goal"]}
    kept = np.array([goal.tobytes() in own for goal in goals]).mean()
    assert kept > 0.15  # a quarter keeps it; others may have it by chance
    assert reached.mean() > rows["rew"].mean() + 1
    # With "final" a row's goal is the last state of its episode.
    if strategy == "final":
        flat = rows["next_obs.achieved_goal"]
        ends = [
            flat[episode.slot + (episode.length - 1) * n_envs]
            for episode in held.buffer.episodes.list()
            if episode.complete
        ]
        possible = own | {row.tobytes() for row in ends}
        assert np.mean([goal.tobytes() in possible for goal in goals]) > 0.95


def test_the_environment_gets_infos_if_they_are_stored() -> None:
    """Copies of them, of the rows that are relabelled; empty dicts otherwise."""
    model = model_with()
    model.learn(50)
    model.replay_buffer.sample(20)
    calls = model.env.envs[0].unwrapped.calls
    achieved, goal, infos = calls[-1]
    assert len(achieved) == len(goal) == len(infos)
    assert not any(infos)
    model = model_with(copy_info_dict=True)
    model.learn(50)
    model.replay_buffer.sample(20)
    infos = model.env.envs[0].unwrapped.calls[-1][2]
    assert all("is_success" in info for info in infos)
    infos[0]["is_success"] = "changed"
    kept = model.replay_buffer.buffer.get_all_transitions()["infos"]
    assert "changed" not in [info["is_success"] for info in kept]


def test_a_buffer_is_saved_and_loaded_with_its_model(tmp_path: Path) -> None:
    """Without its environment, which is set again; the last episode is cut unless one says no."""
    model = model_with()
    model.learn(52)
    model.save_replay_buffer(tmp_path / "rows")
    other = model_with()
    other.load_replay_buffer(tmp_path / "rows", truncate_last_traj=False)
    assert other.replay_buffer.buffer.get_current_episode_len() > 0
    other.load_replay_buffer(tmp_path / "rows")
    held = other.replay_buffer
    assert isinstance(held, HerReplayBuffer)
    assert held.buffer.get_current_episode_len() == 0
    assert held.size() == model.replay_buffer.size() == 52
    held.sample(30)
    other.learn(20, reset_num_timesteps=False)
    with pytest.raises(ValueError, match="set_env"):
        held.set_env(other.env)
    lost = pickle.loads(pickle.dumps(held))
    with pytest.raises(RuntimeError, match="call set_env"):
        lost.sample(30)


def test_episodes_end_where_the_environment_was_reset() -> None:
    """No goal of one episode gets into another: a second ``learn`` cuts the one before."""
    model = model_with()
    model.learn(3)
    model.learn(3)
    assert [e.length for e in model.replay_buffer.buffer.episodes.list()] in ([3, 3], [1, 2, 3])


def test_with_n_step_returns_and_priorities() -> None:
    """Rewards of all steps are computed for the new goal; weights are those of the rows."""
    options: dict[str, Any] = {"sampler": Prioritized(), "n_steps": 2, "gamma": 0.5}
    with pytest.raises(TypeError, match="use PrioritizedDQN"):
        model_with(**options)
    model = model_with(algorithm=PrioritizedDQN, options={"gamma": 0.5}, **options)
    model.learn(100)
    batch = model.replay_buffer.sample(200)
    assert isinstance(batch, PrioritizedReplayBufferSamples)
    assert set(batch.rewards.numpy().ravel().tolist()) <= {0.0, -0.5, -1.0, -1.5}
    model.replay_buffer.update_priorities(batch.indexes, batch.rewards.abs())
    learner = PrioritizedDQN(
        "MultiInputPolicy", make_vec_env(Counted, 1), replay_buffer_class=HerReplayBuffer,
        learning_starts=20, device="cpu", batch_size=16, seed=0,
    )  # fmt: skip
    learner.learn(60)


def success(model: Any) -> float:
    """Share of episodes that reach the goal: they are shorter than the longest or end with 0."""
    returns, _ = evaluate_policy(
        model, Counted(), 40, warn=False, return_episode_rewards=True, deterministic=True
    )
    return float(np.mean(np.array(returns) > -BITS))


def test_bits_are_flipped() -> None:
    """The agent learns to reach most goals."""
    model = DQN(
        "MultiInputPolicy", Counted(), seed=1, learning_starts=100, train_freq=2, device="cpu",
        buffer_size=10_000, target_update_interval=100, exploration_fraction=0.5,
        learning_rate=1e-3, batch_size=64, gamma=0.95, policy_kwargs={"net_arch": [64]},
        replay_buffer_class=HerReplayBuffer,
    )  # fmt: skip
    model.learn(3_000)
    assert success(model) > 0.8


def test_continuous_actions() -> None:
    """SAC takes it too."""
    model = model_with(algorithm=SAC, n_envs=2)
    model.learn(60)
    model.train(5, 32)
