"""The arrays that programs read of a buffer of Stable-Baselines3, beside its own."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optional import need

torch = need("torch")
need("stable_baselines3")

from gymnasium import spaces
from stable_baselines3 import DQN, HerReplayBuffer
from stable_baselines3.common.buffers import (
    DictReplayBuffer,
    NStepReplayBuffer,
)
from stable_baselines3.common.buffers import ReplayBuffer as TheirReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3_cases import ACTIONS, OBSERVATIONS, Steps

import cpprb_like.integrations.stable_baselines3 as ours_of
from cpprb_like.integrations.stable_baselines3 import ReplayBuffer

torch.set_num_threads(1)
NAMES = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


def assert_same_arrays(theirs: Any, ours: Any) -> None:
    """Both have the same arrays, of the same shapes and dtypes."""
    for name in NAMES:
        expected, found = getattr(theirs, name), getattr(ours, name)
        assert isinstance(expected, dict) == isinstance(found, dict)
        if not isinstance(expected, dict):
            expected, found = {"": expected}, {"": found}
        assert list(expected) == list(found)
        for key, values in expected.items():
            assert (values.dtype, values.shape) == (found[key].dtype, found[key].shape), name
            np.testing.assert_array_equal(values, found[key], name)


@pytest.mark.parametrize("act", ACTIONS)
@pytest.mark.parametrize("obs", OBSERVATIONS)
@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"optimize_memory_usage": True},
        {"handle_timeout_termination": False},
        {"n_steps": 3, "gamma": 0.9},
    ],
    ids=str,
)
def test_arrays_are_those_of_their_own_buffer(
    obs: str, act: str, n_envs: int, options: dict[str, Any]
) -> None:
    """Each step is in the place where Stable-Baselines3 writes it; the rest are zeros."""
    obs_space, act_space = OBSERVATIONS[obs], ACTIONS[act]
    make: Any = DictReplayBuffer if obs == "dict" else TheirReplayBuffer
    same = {name: value for name, value in options.items() if name.startswith("handle")}
    theirs = make(41, obs_space, act_space, "cpu", n_envs, **same)
    ours = ReplayBuffer(41, obs_space, act_space, "cpu", n_envs, **options)
    steps = Steps(obs_space, act_space, n_envs)
    assert_same_arrays(theirs, ours)
    for t in range(60):
        step = steps()
        if not options.get("handle_timeout_termination", True):
            step[-1][:] = [{}] * n_envs
        theirs.add(*copy.deepcopy(step))
        ours.add(*step)
        if t in (0, 5, 12, 13, 39, 40, 41, 59):
            assert_same_arrays(theirs, ours)
    before = pickle.loads(pickle.dumps(ours))
    assert_same_arrays(theirs, before)
    ours.reset()
    assert all(not np.any(getattr(ours, name)) for name in NAMES[2:])


def test_a_batch_is_made_of_the_arrays() -> None:
    """``dones`` of a batch are ``dones * (1 - timeouts)``, as Stable-Baselines3 computes them."""
    obs, act = OBSERVATIONS["float32"], ACTIONS["discrete"]
    rb, steps = ReplayBuffer(30, obs, act, "cpu", 3), Steps(obs, act, 3)
    for _ in range(17):
        rb.add(*steps())
    batch = rb.sample(64)
    arrays = {name: getattr(rb, name) for name in NAMES}
    ended = arrays["dones"] * (1 - arrays["timeouts"])
    assert ended.sum() > 0
    for k in range(64):
        same = (arrays["observations"] == batch.observations[k].numpy()).all(axis=2)
        (place,) = np.argwhere(same)
        assert ended[tuple(place)] == batch.dones[k].item()
        assert arrays["rewards"][tuple(place)] == batch.rewards[k].item()


def test_arrays_are_read_only() -> None:
    """An assignment says so, of an array, of a part of it and of the attribute; copies are free."""
    obs, act = OBSERVATIONS["dict"], ACTIONS["discrete"]
    rb, steps = ReplayBuffer(30, obs, act, "cpu", 3), Steps(obs, act, 3)
    for _ in range(4):
        rb.add(*steps())
    for name in NAMES:
        array = getattr(rb, name)
        array = array["at"] if isinstance(array, dict) else array
        before = array.copy()
        for part in (array, array[1], array[:, 0]):
            with pytest.raises(ValueError, match=rf"^{name}: a read-only copy .*buffer\.update"):
                part[0] = 1
        with pytest.raises(ValueError, match="read-only"):
            array += 1
        with pytest.raises(AttributeError, match=rf"^{name}: a read-only copy"):
            setattr(rb, name, before)
        copied = array.copy()
        copied[0] = 1
        assert copied[0].all()
        np.testing.assert_array_equal(getattr(array, "base", before).reshape(before.shape), before)
        assert pickle.loads(pickle.dumps(array)).shape == array.shape
    with pytest.raises(ValueError, match="dones: a read-only copy"):
        rb.dones[0] = True  # which is not the newest step
    assert rb.buffer.get_current_episode_len() > 0 or rb.dones[3].any()


@pytest.mark.parametrize("n_envs", [1, 2])
def test_the_last_step_can_be_marked_as_done(n_envs: int) -> None:
    """As Stable-Baselines3 does before a second ``learn`` with ``optimize_memory_usage``."""
    obs, act = OBSERVATIONS["float32"], ACTIONS["discrete"]
    rb = ReplayBuffer(8, obs, act, "cpu", n_envs, optimize_memory_usage=True)
    with pytest.raises(ValueError, match="dones"):
        rb.dones[rb.pos - 1] = True  # there is none yet
    for t in range(6):
        values = np.full((n_envs, 3), t, np.float32)
        rb.add(values, values + 1, np.zeros(n_envs), np.ones(n_envs), np.zeros(n_envs), [{}] * 2)
    assert not rb.dones.any()
    rb.dones[(rb.pos - 1) % rb.buffer_size] = True
    ended = np.flatnonzero(rb.dones.all(axis=1)).tolist()
    assert ended == [(rb.pos - 1) % rb.buffer_size]
    np.testing.assert_array_equal(rb.dones, rb.timeouts)
    assert not rb.sample(32).dones.any()


def test_saved_and_loaded_arrays_are_the_same(tmp_path: Path) -> None:
    """What Stable-Baselines3's own tests of saving compare, for flat and for dict observations."""
    model = DQN(
        "MlpPolicy", "CartPole-v1", replay_buffer_class=ReplayBuffer, seed=0, buffer_size=300,
        learning_starts=1000, device="cpu",
    )  # fmt: skip
    model.learn(200)
    rb = model.replay_buffer
    observations, next_observations = rb.observations, rb.next_observations
    assert observations.shape == (300, 1, 4)
    assert rb.dones.sum() > 0
    inside = rb.dones[:199, 0] == 0
    np.testing.assert_array_equal(next_observations[:199][inside], observations[1:200][inside])
    assert not observations[200:].any()
    model.save_replay_buffer(tmp_path / "rows.pkl")
    model.load_replay_buffer(tmp_path / "rows.pkl")
    assert_same_arrays(rb, model.replay_buffer)


def test_arrays_of_hindsight() -> None:
    """Goals as they were added, and ends that ``truncate_last_trajectory`` makes."""
    env = make_vec_env(lambda: BitFlippingEnv(n_bits=3, max_steps=3), 2, seed=0)
    made: list[Any] = [
        DQN(
            "MultiInputPolicy", env, replay_buffer_class=kind, seed=0, learning_starts=1000,
            buffer_size=50, device="cpu", train_freq=1,
        )
        for kind in (HerReplayBuffer, ours_of.HerReplayBuffer)
    ]  # fmt: skip
    for model in made:
        env.seed(0)
        np.random.seed(0)
        model.action_space.seed(0)
        model.learn(32)
    theirs, ours = (model.replay_buffer for model in made)
    for name in NAMES[2:]:
        assert getattr(theirs, name).shape == getattr(ours, name).shape
    assert sorted(ours.observations) == ["achieved_goal", "desired_goal", "observation"]
    assert ours.dones.sum() >= 8
    newest = (ours.pos - 1) % ours.buffer_size
    is_open = ours.dones[newest] == 0
    ours.truncate_last_trajectory()
    assert ours.dones[newest].all()
    np.testing.assert_array_equal(ours.timeouts[newest][is_open], 1)
    positional = ours_of.HerReplayBuffer(
        50, env.observation_space, env.action_space, env, "cpu", 2, False, True, 7, "final", True
    )
    assert (positional.n_sampled_goal, positional.copy_info_dict) == (7, True)


def test_repr_tells_sizes_options_and_memory() -> None:
    """One line of what it is, and the bytes of each field."""
    obs, act = OBSERVATIONS["float32"], ACTIONS["discrete"]
    rb, steps = ReplayBuffer(30, obs, act, "cpu", 3, n_steps=2, gamma=0.5), Steps(obs, act, 3)
    for _ in range(4):
        rb.add(*steps())
    head, *table = repr(rb).splitlines()
    assert head == (
        "ReplayBuffer(buffer_size=10, n_envs=3, stored=4, n_steps=2, gamma=0.5, sampler=Uniform())"
    )
    assert any(line.split()[0] == "next_obs" for line in table if line.split())
    env = make_vec_env(lambda: BitFlippingEnv(n_bits=3), 1, seed=0)
    her = ours_of.HerReplayBuffer(50, env.observation_space, env.action_space, env)
    assert "HerReplayBuffer(buffer_size=50, n_envs=1, stored=0" in repr(her)
    assert "n_sampled_goal=4, strategy=future)" in repr(her)


# ---- options -----------------------------------------------------------------------------


def test_n_steps_take_gamma_of_the_algorithm() -> None:
    """A program names it once; without an algorithm there is none to take."""
    model: Any = DQN(
        "MlpPolicy", "CartPole-v1", replay_buffer_class=ReplayBuffer, device="cpu", gamma=0.9,
        replay_buffer_kwargs={"n_steps": 3}, learning_starts=10, seed=0,
    )  # fmt: skip
    assert model.replay_buffer.gamma == 0.9
    model.learn(60)
    inside = [value for value in model.replay_buffer.sample(64).discounts.tolist() if value[0]]
    assert inside[0][0] == pytest.approx(0.9**3)
    model.gamma = 0.5
    model.replay_buffer = pickle.loads(pickle.dumps(model.replay_buffer))
    with pytest.raises(ValueError, match=r"^gamma: expected 0\.5 "):
        model.train(1)
    with pytest.raises(TypeError, match=r"^gamma: expected a number, as n_steps is 3 and no algo"):
        ReplayBuffer(30, OBSERVATIONS["float32"], ACTIONS["discrete"], n_steps=3)
    theirs = NStepReplayBuffer(30, OBSERVATIONS["float32"], ACTIONS["discrete"])
    assert theirs.n_steps == 3  # theirs has defaults, which may differ from the algorithm's


@pytest.mark.parametrize("n_envs", [1, 3])
def test_multi_discrete_spaces_of_two_axes(n_envs: int) -> None:
    """Observations keep their axes; actions become one, as those of a Box do."""
    space = spaces.MultiDiscrete(np.array([[3, 4], [5, 2], [7, 7]]))
    both = spaces.Dict({"at": space, "on": spaces.MultiBinary((2, 3))})
    for obs_space in (space, both):
        for act_space in (space, spaces.MultiBinary((2, 3))):
            rb = ReplayBuffer(30, obs_space, act_space, "cpu", n_envs)
            steps = Steps(obs_space, act_space, n_envs)
            added = [steps() for _ in range(5)]
            for step in added:
                rb.add(*step)
            stored = rb.observations if obs_space is space else rb.observations["at"]
            seen = [step[0] if obs_space is space else step[0]["at"] for step in added]
            np.testing.assert_array_equal(stored[:5], seen)
            acts = np.stack([step[2] for step in added]).reshape(5, n_envs, 6)
            np.testing.assert_array_equal(rb.actions[:5], acts)
            batch = rb.sample(8)
            assert batch.actions.shape == (8, 6)
            drawn = batch.observations if obs_space is space else batch.observations["at"]
            assert drawn.shape == (8, 3, 2)
