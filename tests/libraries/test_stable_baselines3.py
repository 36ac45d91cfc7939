"""The buffers for Stable-Baselines3, held against its own: the same batches, the same training."""

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

import gymnasium
from gymnasium import spaces
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.buffers import (
    DictReplayBuffer,
    NStepReplayBuffer,
)
from stable_baselines3.common.buffers import ReplayBuffer as TheirReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from stable_baselines3_cases import ACTIONS, BOX, OBSERVATIONS, Steps

from cpprb_like.errors import NotEnoughDataError
from cpprb_like.integrations.stable_baselines3 import (
    EnvUniform,
    PrioritizedDQN,
    PrioritizedReplayBufferSamples,
    ReplayBuffer,
)
from cpprb_like.samplers import LegacyUniform, Prioritized, RankBased, Recency

torch.set_num_threads(1)  # two cores do not make small networks faster


def assert_same(theirs: Any, ours: Any) -> None:
    """Two tensors, or dicts of them, are equal in every bit."""
    if isinstance(theirs, dict):
        assert list(theirs) == list(ours)
        for key in theirs:
            assert_same(theirs[key], ours[key])
        return
    if theirs is None:
        assert ours is None
        return
    assert theirs.dtype == ours.dtype
    assert theirs.shape == ours.shape
    assert torch.equal(theirs, ours)


def assert_same_batches(theirs: Any, ours: Any, env: Any = None, n: int = 16) -> None:
    """The same numbers from NumPy's global state give the same batches, and use up as many."""
    np.random.seed(3)
    expected = [theirs.sample(n, env) for _ in range(3)]
    after = np.random.random()
    np.random.seed(3)
    found = [ours.sample(n, env) for _ in range(3)]
    assert np.random.random() == after
    for one, other in zip(expected, found, strict=True):
        assert type(one) is type(other)
        for name in one._fields:
            assert_same(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize("act", ACTIONS)
@pytest.mark.parametrize("obs", OBSERVATIONS)
@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize(
    "options", [{}, {"optimize_memory_usage": True}, {"handle_timeout_termination": False}], ids=str
)
def test_batches_are_those_of_their_own_buffer(
    obs: str, act: str, n_envs: int, options: dict[str, Any]
) -> None:
    """With all spaces and several environments, before and after the buffer is full."""
    obs_space, act_space = OBSERVATIONS[obs], ACTIONS[act]
    make: Any = DictReplayBuffer if obs == "dict" else TheirReplayBuffer
    # Theirs has no such option beside time-outs; what is drawn is to be the same.
    same = {name: value for name, value in options.items() if name != "optimize_memory_usage"}
    theirs = make(41, obs_space, act_space, "cpu", n_envs, **same)
    ours = ReplayBuffer(41, obs_space, act_space, "cpu", n_envs, **options)
    steps = Steps(obs_space, act_space, n_envs)
    for t in range(100):
        step = steps()
        theirs.add(*copy.deepcopy(step))
        ours.add(*step)
        assert (theirs.pos, theirs.full, theirs.size()) == (ours.pos, ours.full, ours.size())
        if t in (0, 5, 12, 13, 39, 40, 41, 99):
            assert_same_batches(theirs, ours)
    theirs.reset()
    ours.reset()
    assert ours.size() == ours.pos == 0
    assert not ours.full
    more = [steps() for _ in range(3)]
    theirs.extend(*zip(*copy.deepcopy(more), strict=True))
    ours.extend(*zip(*more, strict=True))
    assert_same_batches(theirs, ours)


class Spread(gymnasium.Env[Any, Any]):
    """Observations and rewards of a scale that wants to be normalized."""

    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, space: Any) -> None:
        self.observation_space = space
        space.seed(0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        ended = bool(self.np_random.random() < 0.1)
        reward = 10 * self.np_random.normal()
        return self.observation_space.sample(), reward, ended, False, {}


WIDE = spaces.Box(-100, 100, (3,), np.float32)


@pytest.mark.parametrize(
    "space", [WIDE, spaces.Dict({"at": WIDE, "to": WIDE})], ids=["box", "dict"]
)
def test_batches_are_normalized_when_they_are_drawn(space: Any) -> None:
    """By a ``VecNormalize``, whose statistics may have changed since the steps were added."""
    env = VecNormalize(DummyVecEnv([lambda: Spread(space)] * 2), clip_reward=1.0)
    make: Any = DictReplayBuffer if isinstance(space, spaces.Dict) else TheirReplayBuffer
    theirs = make(100, space, env.action_space, "cpu", 2)
    ours = ReplayBuffer(100, space, env.action_space, "cpu", 2)
    env.seed(0)
    env.reset()
    before = env.get_original_obs()
    for _ in range(30):
        _, _, done, infos = env.step(np.zeros((2, 1), np.float32))
        after = env.get_original_obs()
        step = (before, after, np.zeros((2, 1)), env.get_original_reward(), done, infos)
        theirs.add(*copy.deepcopy(step))
        ours.add(*step)
        before = after
    assert_same_batches(theirs, ours, env)
    assert ours.sample(200, env).rewards.abs().max() == 1.0


def parameters(model: Any) -> Any:
    """All of a policy, in a row."""
    return torch.cat([values.detach().flatten() for values in model.policy.parameters()])


@pytest.mark.parametrize(
    ("algorithm", "env", "n_envs", "options"),
    [
        (DQN, "CartPole-v1", 1, {}),
        (DQN, "CartPole-v1", 4, {"optimize_memory_usage": True}),
        (SAC, "Pendulum-v1", 1, {}),
        (TD3, "Pendulum-v1", 2, {}),
        (DDPG, "Pendulum-v1", 1, {}),
    ],
)
def test_training_is_the_same_in_every_bit(
    algorithm: Any, env: str, n_envs: int, options: dict[str, Any]
) -> None:
    """The same seed leads to the same parameters, with our buffer or with theirs.

    Ours may compress next observations beside time-outs, which theirs refuses.
    """

    def train(buffer: Any, **more: Any) -> Any:
        model = algorithm(
            "MlpPolicy", make_vec_env(env, n_envs, seed=0), seed=0, learning_starts=50,
            device="cpu", batch_size=32, train_freq=4, policy_kwargs={"net_arch": [16]},
            replay_buffer_class=buffer, **more,
        )  # fmt: skip
        model.learn(600)
        return parameters(model)

    assert torch.equal(train(TheirReplayBuffer), train(ReplayBuffer, **options))


# ---------------------------------------------------------------------- n-step returns


@pytest.mark.parametrize("compressed", [False, True])
def test_n_step_returns_are_theirs(compressed: bool) -> None:
    """Of every row whose steps are all there; a terminated one has discount 0, as it is not used.

    Ours holds the newest 50 rows that can be drawn, so it has two more.
    """
    theirs = NStepReplayBuffer(52, BOX, ACTIONS["discrete"], "cpu", n_steps=3, gamma=0.9)
    ours = ReplayBuffer(
        50, BOX, ACTIONS["discrete"], "cpu", 1, compressed, n_steps=3, gamma=0.9, seed=0
    )
    steps = Steps(BOX, ACTIONS["discrete"], 1)
    for t in range(120):
        step = steps()
        theirs.add(*step)
        ours.add(*step)
        if t < 10:
            continue
        batch = ours.sample(32)
        assert batch.discounts.shape == (32, 1)
        slots = [
            int(np.flatnonzero((theirs.observations[:, 0] == one).all(axis=1))[0])
            for one in batch.observations.numpy()
        ]
        expected = theirs._get_samples(np.array(slots))
        for name in ("observations", "actions", "next_observations", "dones", "rewards"):
            np.testing.assert_allclose(
                getattr(batch, name), getattr(expected, name), rtol=1e-5, err_msg=name
            )
        np.testing.assert_allclose(
            batch.discounts * (1 - batch.dones),
            expected.discounts * (1 - expected.dones),
            rtol=1e-6,
        )


def test_n_step_returns_end_where_the_environment_was_reset() -> None:
    """A second ``learn`` resets in the middle of an episode, and does not say so."""
    model = DQN(
        "MlpPolicy", "CartPole-v1", seed=0, learning_starts=1000, train_freq=1,
        device="cpu", replay_buffer_class=ReplayBuffer,
        replay_buffer_kwargs={"n_steps": 5, "gamma": 0.99},
    )  # fmt: skip
    model.learn(7)
    assert len(model.replay_buffer.buffer) == 3
    model.learn(7)
    assert len(model.replay_buffer.buffer) == 10
    assert (model.replay_buffer.sample(200).rewards <= sum(0.99**k for k in range(5)) + 1e-5).all()
    rows = model.replay_buffer.buffer.get_all_transitions()
    np.testing.assert_allclose(rows["rew"][6], 1.0)  # the last step before the reset
    np.testing.assert_allclose(rows["rew"][4], 1 + 0.99 + 0.99**2, rtol=1e-6)


def test_a_step_that_is_refused_ends_no_episode() -> None:
    """Neither that of the environment which was reset, nor any other."""
    space = spaces.Box(-1, 1, (2,), np.float32)
    rb = ReplayBuffer(20, space, space, "cpu", n_steps=3, gamma=0.9)
    obs = np.zeros((1, 2), np.float32)
    for _ in range(4):
        rb.add(obs, obs, obs, np.ones(1), np.zeros(1), [{}])
    with pytest.raises(ValueError, match="rew"):
        rb.add(obs + 1, obs, obs, np.array(["x"]), np.zeros(1), [{}])
    assert rb.buffer.get_current_episode_len() == 4
    rb.add(obs + 1, obs, obs, np.ones(1), np.zeros(1), [{}])
    assert rb.buffer.get_current_episode_len() == 1


def test_a_second_learn_with_compressed_observations() -> None:
    """Stable-Baselines3 then marks the last step as done, in an array that there is not."""
    model = DQN(
        "MlpPolicy", "CartPole-v1", seed=0, device="cpu", optimize_memory_usage=True,
        learning_starts=1000, replay_buffer_class=ReplayBuffer,
    )  # fmt: skip
    model.learn(8)
    with pytest.warns(UserWarning, match="last trajectory in the replay buffer will be truncated"):
        model.learn(8)
    rows = model.replay_buffer.buffer.get_all_transitions()
    assert not (rows["next_obs"][7] == rows["obs"][8]).all()
    assert not rows["terminated"].any()
    assert [episode.length for episode in model.replay_buffer.buffer.episodes.list()] == [8, 8]


def test_normalized_n_step_returns_are_clipped_as_sums() -> None:
    """Sums of three rewards of the largest size have the bound of three."""
    env = VecNormalize(DummyVecEnv([lambda: Spread(WIDE)]), clip_reward=0.5, norm_obs=False)
    env.ret_rms.var = np.array(4.0)
    ours = ReplayBuffer(100, WIDE, env.action_space, "cpu", n_steps=3, gamma=0.5)
    steps = Steps(WIDE, env.action_space, 1)
    for t in range(30):
        obs, next_obs, act, _, _, _ = steps()
        reward = np.array([100.0 if t < 15 else 0.2])
        ours.add(obs, next_obs, act, reward, np.array([t == 14]), [{}])
    rewards = ours.sample(200, env).rewards.numpy()
    expected = {0.5 * 1.75, 0.1 * 1.75}
    assert {round(float(value), 5) for value in rewards.ravel()} >= {
        round(value, 5) for value in expected
    }
    assert rewards.max() <= 0.5 * 1.75


# ---------------------------------------------------------------------- priorities


def filled(n: int = 60, **options: Any) -> ReplayBuffer:
    """A buffer with steps of an environment."""
    ours = ReplayBuffer(100, BOX, ACTIONS["discrete"], "cpu", **options)
    steps = Steps(BOX, ACTIONS["discrete"], 1)
    for _ in range(n):
        ours.add(*steps())
    return ours


@pytest.mark.parametrize("sampler", [Prioritized(alpha=0.7, beta=0.5), RankBased()], ids=repr)
def test_priorities_are_drawn_weighted_and_updated(sampler: Any) -> None:
    """Batches have weights of shape (n, 1), as the loss has; the option's sampler stays unused."""
    ours = filled(sampler=sampler)
    batch = ours.sample(32)
    assert isinstance(batch, PrioritizedReplayBufferSamples)
    assert batch.weights.shape == (32, 1)
    ours.update_priorities(batch.indexes, torch.full((32, 1), 0.1, requires_grad=True))
    ours.update_priorities(range(60), 1.0 * (np.arange(60) == 7))
    if isinstance(sampler, Prioritized):
        rows = ours.buffer.get_all_transitions()
        assert (ours.sample(100).observations.numpy() == rows["obs"][7]).mean() > 0.9
    other = filled(sampler=sampler)
    assert other.buffer.sampler is not ours.buffer.sampler
    pickle.dumps(sampler)  # an algorithm saves its arguments


ALGORITHMS = [(DQN, "CartPole-v1"), (SAC, "Pendulum-v1"), (TD3, "Pendulum-v1")]


@pytest.mark.parametrize("sampler", [Prioritized(), RankBased()], ids=repr)
@pytest.mark.parametrize(("algorithm", "env_id"), ALGORITHMS)
def test_algorithms_without_priorities_refuse_a_sampler_by_priority(
    algorithm: Any, env_id: str, sampler: Any, tmp_path: Path
) -> None:
    """They never updated priorities: replay was uniform, and a warning came after 1000 batches."""
    remedy = (
        r"use PrioritizedDQN" if algorithm is DQN else r"a subclass of .* update_priorities\(\)"
    )
    files = tmp_path / "rows"
    options = {"sampler": sampler, "mmap_prefix": str(files)}
    with pytest.raises(TypeError, match=rf"^sampler: expected .* {algorithm.__name__} .*{remedy}"):
        algorithm(
            "MlpPolicy", env_id, replay_buffer_class=ReplayBuffer, replay_buffer_kwargs=options
        )
    assert not list(tmp_path.iterdir())
    # A buffer that is handed over later is refused when it is drawn from, pickled or not.
    model = algorithm("MlpPolicy", env_id, learning_starts=10, device="cpu", buffer_size=100)
    spaces = model.observation_space, model.action_space
    model.replay_buffer = ReplayBuffer(100, *spaces, "cpu", sampler=sampler)
    with pytest.raises(TypeError, match=r"^sampler: expected "):
        model.learn(20)
    model.save_replay_buffer(tmp_path / "rows.pkl")
    model.load_replay_buffer(tmp_path / "rows.pkl")
    with pytest.raises(TypeError, match=r"^sampler: expected "):
        model.train(1)


@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.parametrize(("algorithm", "env_id"), [*ALGORITHMS, (PrioritizedDQN, "CartPole-v1")])
def test_gamma_is_that_of_the_model(algorithm: Any, env_id: str, n_steps: int) -> None:
    """Another one was taken without a word, of one step also where that of n steps was refused."""
    options: dict[str, Any] = {"n_steps": n_steps, "gamma": 0.9}
    more: dict[str, Any] = {"replay_buffer_class": ReplayBuffer, "replay_buffer_kwargs": options}
    with pytest.raises(ValueError, match=r"^gamma: expected 0\.99 .* got 0\.9 in"):
        algorithm("MlpPolicy", env_id, **more)
    model = algorithm("MlpPolicy", env_id, gamma=0.9, learning_starts=10, device="cpu", **more)
    model.learn(20)
    model.gamma = 0.5
    model.replay_buffer = pickle.loads(pickle.dumps(model.replay_buffer))
    with pytest.raises(ValueError, match=r"^gamma: expected 0\.5 "):
        model.train(1)


def test_zero_weights_mean_no_learning() -> None:
    """The weights of ``PrioritizedDQN`` are in the gradient of every row, and nowhere else."""

    class Weightless(ReplayBuffer):
        def sample(self, batch_size: int, env: Any = None) -> Any:
            batch = super().sample(batch_size, env)
            return batch._replace(weights=0 * batch.weights)

    def trained(buffer: Any) -> bool:
        model = PrioritizedDQN(
            "MlpPolicy", "CartPole-v1", seed=0, learning_starts=50, device="cpu",
            replay_buffer_class=buffer, target_update_interval=10**6,
        )  # fmt: skip
        before = parameters(model)
        model.learn(120)
        return not torch.equal(before, parameters(model))

    assert trained(ReplayBuffer)
    assert not trained(Weightless)


def test_priorities_become_absolute_errors() -> None:
    """The priorities after a step of training are those of the rows before it."""
    model = PrioritizedDQN(
        "MlpPolicy", "CartPole-v1", seed=0, device="cpu", learning_starts=10**6, learning_rate=0.0,
        replay_buffer_kwargs={"sampler": Prioritized(alpha=1.0, eps=0.0)},
    )  # fmt: skip
    model.learn(40)
    model.train(30, 64)
    rows = {name: torch.as_tensor(value) for name, value in model.replay_buffer.buffer[:].items()}
    with torch.no_grad():
        following = model.q_net_target(rows["next_obs"]).amax(1, keepdim=True)
        target = rows["rew"] + (1 - rows["terminated"]) * model.gamma * following
        errors = (model.q_net(rows["obs"]).gather(1, rows["act"]) - target).abs().numpy().ravel()
    batch = model.replay_buffer.sample(50_000)
    slots = batch.indexes % model.replay_buffer.buffer.capacity
    shares = np.bincount(slots, minlength=40) / 50_000
    np.testing.assert_allclose(shares, errors / errors.sum(), atol=0.01)


@pytest.mark.parametrize("kwargs", [{"sampler": Recency(0.5)}, {"sampler": None}])
def test_prioritized_dqn_wants_priorities(kwargs: dict[str, Any]) -> None:
    """It says so when it is made."""
    with pytest.raises(TypeError, match="expected a replay buffer with priorities"):
        PrioritizedDQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs=kwargs)


def mean_return(model: Any, env: Any, episodes: int = 10) -> float:
    """Of the greedy policy."""
    mean, _ = evaluate_policy(model, env, episodes, warn=False)
    return float(np.mean(mean))


def test_prioritized_dqn_learns(tmp_path: Path) -> None:
    """Three-step returns, priorities and compressed observations together learn CartPole.

    And a saved model goes on with its buffer.
    """
    model = PrioritizedDQN(
        "MlpPolicy", "CartPole-v1", seed=0, device="cpu", learning_rate=2.3e-3, batch_size=64,
        buffer_size=20_000, learning_starts=500, target_update_interval=50, train_freq=32,
        gradient_steps=16, exploration_fraction=0.16, exploration_final_eps=0.04,
        optimize_memory_usage=True, policy_kwargs={"net_arch": [64, 64]},
        replay_buffer_kwargs={"sampler": Prioritized(alpha=0.5), "n_steps": 3, "gamma": 0.99},
    )  # fmt: skip
    model.learn(8_000)
    assert mean_return(model, model.get_env(), 5) > 60  # 220 to 436 over seeds; 20 at random
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "rows")
    again = PrioritizedDQN.load(tmp_path / "model", env=model.get_env())
    again.load_replay_buffer(tmp_path / "rows")
    assert torch.equal(parameters(model), parameters(again))
    for name in ("observations", "weights"):
        one, other = (getattr(held.replay_buffer.sample(8), name) for held in (model, again))
        assert torch.equal(one, other)
    again.learn(64, reset_num_timesteps=False)


# ---------------------------------------------------------------------- the rest


def test_the_default_sampler_goes_into_checkpoints(tmp_path: Path) -> None:
    """``save`` and ``restore`` need no class to be named."""
    ours = filled()
    assert isinstance(ours.buffer.sampler, EnvUniform)
    ours.buffer.save(tmp_path)
    other = ReplayBuffer(100, BOX, ACTIONS["discrete"], "cpu")
    other.buffer.restore(tmp_path)
    assert_same_batches(ours, other)


@pytest.mark.parametrize(
    ("here", "message"),
    [
        ({"n_envs": 2}, "n_envs: 2 here, 1 in"),
        ({"n_steps": 3, "gamma": 0.9}, "Nstep: NStepReturns"),
    ],
)
def test_a_checkpoint_of_other_options_is_refused(
    here: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """The buffer became one of one environment, and mixed the steps of several."""
    filled(seed=1).buffer.save(tmp_path)
    other = ReplayBuffer(100, BOX, ACTIONS["discrete"], "cpu", seed=1, **here)
    with pytest.raises(ValueError, match=message):
        other.buffer.restore(tmp_path)
    assert other.buffer.n_envs == other.n_envs


def test_pickles_go_on_as_the_original() -> None:
    """By value, with the step that is compared with the next one."""
    ours = filled(n_steps=3, gamma=0.9, seed=1)
    again = pickle.loads(pickle.dumps(ours))
    for name in ("observations", "rewards", "discounts"):
        torch.testing.assert_close(getattr(ours.sample(9), name), getattr(again.sample(9), name))
        again.buffer.rng.bit_generator.state = ours.buffer.rng.bit_generator.state


def test_draws_by_a_seed_leave_the_global_state_alone() -> None:
    """And so does a buffer that is made: what follows has the numbers that it had without it."""
    np.random.seed(0)
    expected = np.random.random()
    np.random.seed(0)
    ours = filled(seed=3)
    one = ours.sample(9).observations
    filled()
    assert np.random.random() == expected
    assert torch.equal(one, filled(seed=3).sample(9).observations)


def test_what_is_refused_changes_nothing() -> None:
    """A step with a value of a wrong shape, or an option that means nothing."""
    ours = filled()
    obs, next_obs, act, reward, done, infos = Steps(BOX, ACTIONS["discrete"], 1)()
    with pytest.raises(ValueError, match="field 'next_obs': expected shape"):
        ours.add(obs, next_obs[:, :2], act, reward, done, infos)
    assert ours.pos == 60
    with pytest.raises(ValueError, match="stack_compress: expected observations of three axes"):
        ReplayBuffer(9, BOX, ACTIONS["discrete"], stack_compress=True)
    with pytest.raises(TypeError, match="stack_compress: expected a bool, got 'sen'"):
        ReplayBuffer(9, OBSERVATIONS["dict"], ACTIONS["discrete"], stack_compress="sen")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="n_steps"):
        ReplayBuffer(9, BOX, ACTIONS["discrete"], n_steps=0)
    with pytest.raises(TypeError, match="gamma: expected a number, as n_steps is 3 and no"):
        ReplayBuffer(9, BOX, ACTIONS["discrete"], n_steps=3)
    options = {"n_steps": 3, "gamma": 0.9}
    with pytest.raises(ValueError, match=r"gamma: expected 0.99 .* got 0.9 in"):
        PrioritizedDQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs=options)
    with pytest.raises(NotEnoughDataError):
        ReplayBuffer(9, BOX, ACTIONS["discrete"]).sample(1)
    with pytest.raises(TypeError, match="no priorities"):
        ours.update_priorities([0], [1.0])


def test_other_samplers_are_options() -> None:
    """Such as the newest rows only, or cpprb's draws."""
    newest = filled(sampler=Recency(0.001, updates=1, least=1)).sample(5).observations
    assert (newest == newest[0]).all()
    filled(sampler=LegacyUniform()).sample(5)


def test_rows_in_a_file(tmp_path: Path) -> None:
    """For a buffer that is larger than memory."""
    ours = filled(mmap_prefix=tmp_path / "rows")
    assert (tmp_path / "rows.dat").stat().st_size > 0
    assert_same_batches(filled(), ours)


def drawn_by_a_script(cls: Any, env_id: str, n_envs: int) -> list[list[Any]]:
    """Batches of a loop with the calls of CleanRL's scripts, random actions, and this buffer."""
    np.random.seed(1)
    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    envs: Any = gymnasium.vector.SyncVectorEnv(
        [lambda: gymnasium.make(env_id)] * n_envs, autoreset_mode=mode
    )
    envs.action_space.seed(1)
    envs.single_observation_space.dtype = np.dtype(np.float32)
    rb = cls(
        60,
        envs.single_observation_space,
        envs.single_action_space,
        torch.device("cpu"),
        n_envs=n_envs,
        handle_timeout_termination=False,
    )
    obs, _ = envs.reset(seed=1)
    batches = []
    for step in range(250):
        actions = envs.action_space.sample()
        next_obs, rewards, terminations, truncations, infos = envs.step(actions)
        real_next_obs = next_obs.copy()
        for index, truncated in enumerate(truncations):
            if truncated:
                real_next_obs[index] = infos["final_obs"][index]
        rb.add(obs, real_next_obs, actions, rewards, terminations, infos)
        obs = next_obs
        if step > 30:
            data = rb.sample(16)
            target = data.rewards.flatten() + 0.9 * (1 - data.dones.flatten())
            batches.append([data.observations, data.next_observations, data.actions, target])
    return batches


@pytest.mark.parametrize(("env_id", "n_envs"), [("CartPole-v1", 3), ("Pendulum-v1", 1)])
def test_the_calls_of_scripts_in_one_file_stay(env_id: str, n_envs: int) -> None:
    """Six positional values, ``infos`` as the dict of a vector environment: the same batches."""
    theirs = drawn_by_a_script(TheirReplayBuffer, env_id, n_envs)
    ours = drawn_by_a_script(ReplayBuffer, env_id, n_envs)
    for one, two in zip(theirs, ours, strict=True):
        for left, right in zip(one, two, strict=True):
            assert left.dtype == right.dtype
            assert torch.equal(left, right)
