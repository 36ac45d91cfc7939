"""The recorder in place of an environment: the loop that a newcomer writes, for one or many."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array
from gymnasium_cases import (
    MAKERS,
    MODES,
    Trail,
    assert_same_rows,
    drawn_actions,
    plain_rows,
    spaces_of,
    stacked,
    stored_rows,
    vector,
)
from helpers import needs_optimised_modules, refused, rooms
from pages import blocks
from scale import repeats
from timing import ratio

from cpprb_like import GymnasiumRecorder, PrioritizedReplayBuffer, ReplayBuffer, train
from cpprb_like.samplers import Prioritized, RankBased
from cpprb_like.typing import FieldSpec

README = (Path(__file__).parents[2] / "README.md").read_text()


def recording(env: Any, size: int = 1000, **options: Any) -> tuple[GymnasiumRecorder, ReplayBuffer]:
    """A recorder that keeps all floats as they are, and its buffer."""
    recorder = GymnasiumRecorder(env, float_type="space", **options)
    fields = recorder.env_dict
    rb = ReplayBuffer(size, fields, n_envs=recorder.n_envs, room=rooms(fields))
    return recorder, recorder.attach(rb)


# ---------------------------------------------------------------- the first program


FIRST = blocks(README, "python")[0]
ONE = 'gymnasium.make("CartPole-v1")'


@pytest.mark.parametrize(
    "name", ["CartPole-v1", "Pendulum-v1", "MountainCarContinuous-v0", "Acrobot-v1"]
)
@pytest.mark.parametrize("n_envs", [None, 1, 4])
def test_first_program_of_the_readme(name: str, n_envs: int | None) -> None:
    """It runs with one environment and with many, and with another id, past the end of episodes.

    With one environment it raised after the first episode.
    """
    limits = "max_episode_steps=30"
    env = f'gymnasium.make("{name}", {limits})'
    if n_envs is not None:
        env = f'gymnasium.make_vec("{name}", num_envs={n_envs}, {limits})'
    assert FIRST.count(ONE) == 1
    names: dict[str, Any] = {}
    exec(compile(FIRST.replace(ONE, env), "README.md", "exec"), names)
    rows = names["buffer"].get_all_transitions()
    assert (rows["terminated"] | rows["truncated"]).sum() >= 10
    assert len(rows["obs"]) >= 450 * (n_envs or 1)
    assert names["batch"]["obs"].dtype == np.float32
    assert names["env"].observation_space.contains(np.asarray(names["obs"]))
    names["buffer"].check()
    names["env"].close()


def test_first_program_grows_into_an_agent() -> None:
    """An agent that acts on ``obs`` acts on the first observation of each episode, and on no other.

    The observation to act on next was thrown away.
    """
    program = FIRST.replace("env.action_space.sample()", "agent(obs)")
    assert "agent(obs)" in program
    seen: list[Any] = []

    def agent(obs: Any) -> int:
        seen.append(obs.copy())
        return int(obs[2] > 0)

    names: dict[str, Any] = {"agent": agent}
    exec(compile(program, "README.md", "exec"), names)
    rows = names["buffer"].get_all_transitions()
    np.testing.assert_array_equal(rows["obs"], np.array(seen))
    ends = np.flatnonzero(rows["terminated"][:-1])
    assert len(ends) >= 5
    assert (rows["next_obs"][ends] != rows["obs"][ends + 1]).any(axis=1).all()


# ---------------------------------------------------------------- what is stored, what comes back


@pytest.mark.parametrize("name", MAKERS)
def test_one_environment_steps_and_resets_as_a_plain_loop(name: str) -> None:
    """Rows are those of a loop by hand, and what comes back is what such a loop would act on."""
    env = MAKERS[name]()
    actions = [step[0] for step in drawn_actions(env, 60, 1, seed=3)]
    recorder, rb = recording(env)
    obs, info = recorder.reset(seed=5)
    for number, action in enumerate(actions):
        stored = copy.deepcopy(obs)
        obs, reward, terminated, truncated, info = recorder.step(action)
        row = stored_rows(recorder, rb)[number]
        np.testing.assert_equal(row["obs"], stored)
        assert ("final_obs" in info) == bool(terminated or truncated)
        np.testing.assert_equal(row["next_obs"], info.get("final_obs", obs))
        assert row["rew"] == np.float32(reward)
    assert "final_info" not in info or isinstance(info["final_info"], dict)

    expected = plain_rows(MAKERS[name](), 5, actions, reset_takes_a_step=False)

    assert_same_rows(stored_rows(recorder, rb), expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["trail", "cart pole", "words"])
def test_many_environments_step_and_reset_as_plain_loops(name: str, mode: AutoresetMode) -> None:
    """Rows are those of loops by hand, in each autoreset mode; no reset is made twice."""
    env = vector(name, mode)
    recorder = GymnasiumRecorder(env, float_type="space")
    fields: dict[str, FieldSpec] = {**recorder.env_dict, "env": {"shape": (), "dtype": int}}
    rb = recorder.attach(ReplayBuffer(1000, fields, n_envs=3, room=rooms(fields)))
    actions = drawn_actions(env, 60, 3, seed=1)
    recorder.reset(seed=7)
    n_ended = 0
    for each in actions:
        _, _, terminated, truncated, info = recorder.step(stacked(env, each), env=np.arange(3))
        ended = terminated | truncated
        n_ended += int(ended.sum())
        if mode is AutoresetMode.DISABLED and ended.any():
            assert info["_final_obs"].tolist() == ended.tolist()
            assert {"final_obs", "final_info"} <= info.keys()
        else:
            assert ("final_obs" in info) == (mode is AutoresetMode.SAME_STEP and ended.any())
    assert n_ended > 6
    rows = stored_rows(recorder, rb)
    for number in range(3):
        expected = plain_rows(
            MAKERS[name](),
            7 + number,
            [step[number] for step in actions],
            reset_takes_a_step=mode is AutoresetMode.NEXT_STEP,
        )
        assert_same_rows([row for row in rows if row["env"] == number], expected)


def test_a_reset_in_between() -> None:
    """``reset`` ends what is open; a habit of resetting by hand at ends does no harm."""
    recorder, rb = recording(gym.make("CartPole-v1"))
    obs, _ = recorder.reset(seed=0)
    for _ in range(100):
        before = obs
        obs, _, terminated, truncated, _ = recorder.step(1)
        np.testing.assert_array_equal(rb[len(rb) - 1]["obs"], before)
        if terminated or truncated or len(rb) % 7 == 0:
            obs, _ = recorder.reset()
            assert rb.get_current_episode_len() == 0
    ahead = rb.get_all_transitions()
    assert len(rb) == 100
    assert (np.abs(ahead["next_obs"] - ahead["obs"])[:, 0] < 0.1).all()


def test_a_reset_of_some_environments() -> None:
    """``options={"reset_mask": ...}`` begins new episodes where it says."""
    recorder, rb = recording(vector("cart pole", AutoresetMode.DISABLED))
    recorder.reset(seed=0)
    for _ in range(4):
        recorder.step(np.array([0, 1, 0]))
    mask = np.array([False, True, False])
    obs, _ = recorder.reset(options={"reset_mask": mask})
    assert [rb.get_current_episode_len(number) for number in range(3)] == [4, 0, 4]
    slot = len(rb)
    recorder.step(np.array([0, 1, 0]))
    np.testing.assert_array_equal(rb[np.arange(slot, slot + 3)]["obs"], obs)


def test_spaces_of_the_environment() -> None:
    """Those of all environments together, and of each."""
    many = GymnasiumRecorder(vector("cart pole", AutoresetMode.NEXT_STEP))
    assert many.observation_space.shape == (3, 4)
    assert many.single_observation_space.shape == (4,)
    assert many.action_space.shape == (3,)
    one = GymnasiumRecorder(gym.make("CartPole-v1"))
    assert one.observation_space is one.single_observation_space
    assert one.single_action_space is one.env.action_space
    assert many.buffer is None


# ---------------------------------------------------------------- wrappers inside and outside


def test_statistics_of_an_episode_stay_at_the_top() -> None:
    """Of one environment info at an end was that of the reset, with ``episode`` in ``final_info``.

    The reset's entries are over those of the step.
    """

    class Told(Trail):
        def reset(self, **options: Any) -> Any:
            obs, info = super().reset(**options)
            return obs, {**info, "of": "reset"}

        def step(self, action: Any) -> Any:
            *step, info = super().step(action)
            return *step, {**info, "of": "step", "seen": 3}

    env = gym.wrappers.RecordEpisodeStatistics(Told())
    recorder, _ = recording(env)
    recorder.reset(seed=0)
    n_ended = 0
    for action, *_ in drawn_actions(env, 60, 1, seed=3):
        _, _, terminated, truncated, info = recorder.step(action)
        ended = bool(terminated or truncated)
        n_ended += ended
        assert ("episode" in info) == ended
        assert info["seen"] == 3
        assert info["of"] == ("reset" if ended else "step")
        if ended:
            assert info["episode"] is info["final_info"]["episode"]
    assert n_ended > 3


def loop(env: Any, steps: int) -> list[Any]:
    """What a plain loop over an environment is given, with a reset after each end.

    Without the observations at an end: those of a recorder are the first of the next episode.
    """
    obs, info = env.reset(seed=3)
    seen = [obs, sorted(info)]
    env.action_space.seed(3)
    for _ in range(steps):
        obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
        episode = {name: info["episode"][name] for name in "rl"} if "episode" in info else None
        if terminated or truncated:
            obs, info = env.reset()
            seen.append(sorted(info))
        seen += [obs, reward, terminated, truncated, episode]
    return seen


@pytest.mark.parametrize(
    "wrap",
    [
        lambda env: env,
        gym.wrappers.RecordEpisodeStatistics,
        lambda env: gym.wrappers.FrameStackObservation(env, 3),
        lambda env: gym.wrappers.TimeLimit(gym.wrappers.RecordEpisodeStatistics(env), 7),
    ],
    ids=["none", "statistics", "stack", "limit"],
)
def test_gymnasium_wraps_a_recorder(wrap: Any) -> None:
    """It was no ``Env``: wrappers refused it. A loop is given what it would be without a recorder.

    ``reset`` after an end reset the environment twice.
    """
    recorder, rb = recording(gym.make("CartPole-v1", max_episode_steps=11))
    assert isinstance(recorder, gym.Env)
    wrapped = wrap(recorder)
    expected = loop(wrap(gym.make("CartPole-v1", max_episode_steps=11)), 60)
    np.testing.assert_equal(loop(wrapped, 60), expected)
    assert len(rb) == 60
    rb.check()
    assert wrapped.unwrapped is recorder.env.unwrapped
    assert tuple(wrapped.get_wrapper_attr("env_dict")) == rb.schema.names
    assert recorder.spec == recorder.env.spec
    assert str(recorder).startswith("<GymnasiumRecorder<")


@pytest.mark.parametrize("mode", MODES)
def test_gymnasium_wraps_a_recorder_of_several_environments(mode: AutoresetMode) -> None:
    """Statistics outside of the recorder are those of a wrapper inside.

    With mode DISABLED they are those of SAME_STEP: inside, Gymnasium 1.4 loses the reset mask.
    """

    def made(outside: bool) -> Any:
        same_step = not outside and mode is AutoresetMode.DISABLED
        env: Any = vector("cart pole", AutoresetMode.SAME_STEP if same_step else mode)
        if not outside:
            env = gym.wrappers.vector.RecordEpisodeStatistics(env)
        recorder, _ = recording(env)
        assert isinstance(recorder, gym.vector.VectorEnv)
        return gym.wrappers.vector.RecordEpisodeStatistics(recorder) if outside else recorder

    def played(env: Any) -> list[Any]:
        env.reset(seed=3)
        found = []
        for actions in drawn_actions(env, 60, 3, seed=1):
            *_, info = env.step(stacked(env, actions))
            inner = info.get("final_info", info)
            episode = info.get("episode", inner.get("episode"))
            if episode is not None:
                mask = info.get("_episode", inner.get("_episode"))
                found.append([np.where(mask, episode[name], 0) for name in "rl"])
        return found

    inside, outside = played(made(outside=False)), played(made(outside=True))
    assert len(inside) > 3
    np.testing.assert_equal(outside, inside)


def test_a_recorder_that_is_dropped_closes_nothing() -> None:
    """``ReplayBuffer(100, GymnasiumRecorder(env).env_dict)``, and on with the environment."""
    for env in (gym.make("CartPole-v1"), vector("cart pole", AutoresetMode.NEXT_STEP)):
        assert "obs" in GymnasiumRecorder(env).env_dict
        env.reset(seed=0)
        env.step(env.action_space.sample())
        assert not getattr(env, "closed", False)


# ---------------------------------------------------------------- the number of environments


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"next_of": "obs"},
        {"Nstep": {"size": 3, "discount": True}},
        {"sampler": Prioritized()},
        {"next_of": "obs", "Nstep": {"size": 2, "discount": True}, "sampler": RankBased()},
    ],
    ids=str,
)
def test_the_number_of_environments_is_that_of_the_recorder(options: Any) -> None:
    """``n_envs`` had to be given once more; all else is as if it had been."""
    buffers: list[Any] = []
    numbers: list[dict[str, Any]] = [{}, {"n_envs": 3}]
    for more in numbers:
        recorder = GymnasiumRecorder(vector("cart pole", AutoresetMode.NEXT_STEP))
        make: Any = PrioritizedReplayBuffer if "sampler" in options else ReplayBuffer
        rb = make(60, recorder.env_dict, seed=5, **copy.deepcopy(options), **more)
        view, batches = rb.view(), rb.batches(4)
        assert recorder.attach(rb) is rb
        assert rb.n_envs == 3
        recorder.reset(seed=3)
        for actions in drawn_actions(recorder, 50, 3, seed=1):
            recorder.step(stacked(recorder, actions))
        rb.check()
        buffers.append((rb, view, batches))
    (one, *made), (other, *expected) = buffers
    assert one.nbytes == other.nbytes
    np.testing.assert_equal(one[:], other[:])
    (view, batches), (same, others) = made, expected
    np.testing.assert_equal(view.sample(4), same.sample(4))
    np.testing.assert_equal(next(batches), next(others))
    np.testing.assert_equal(pickle.loads(pickle.dumps(one))[:], other[:])


def test_a_number_of_environments_that_was_given_stays(tmp_path: Path) -> None:
    """So does that of a buffer with rows, and of one in a file; the buffer is as it was."""
    recorder = GymnasiumRecorder(vector("cart pole", AutoresetMode.NEXT_STEP))
    fields = recorder.env_dict
    filled = ReplayBuffer(60, fields)
    filled.add(obs=np.zeros(4), act=0, rew=0, next_obs=np.zeros(4), terminated=0, truncated=0)
    ring = filled.ring
    others = [ReplayBuffer(60, fields, n_envs=1)]
    others.append(ReplayBuffer(60, fields, mmap_prefix=str(tmp_path / "rows")))
    others.append(pickle.loads(pickle.dumps(ReplayBuffer(60, fields))))
    for rb in (filled, *others):
        with refused(rb, ValueError, "expected a buffer of n_envs=3, got 1"):
            recorder.attach(rb)
    assert filled.ring is ring
    with pytest.raises(ValueError, match="n_envs: expected 1 to size=2, got 3"):
        recorder.attach(ReplayBuffer(2, fields))
    one = GymnasiumRecorder(gym.make("CartPole-v1"))
    assert one.attach(ReplayBuffer(60, fields)).n_envs == 1


# ---------------------------------------------------------------- when something goes wrong


class Sulking(Trail):
    """Raises in its third step."""

    n_steps = 0

    def step(self, action: Any) -> Any:
        self.n_steps += 1
        if self.n_steps == 3:
            raise KeyboardInterrupt
        return super().step(action)


def test_a_step_that_raises_needs_a_reset() -> None:
    """The state of the environment is unknown then; no row may begin from an older observation."""
    recorder, rb = recording(Sulking())
    action = (1, {"push": np.zeros(2)})
    with refused(rb, RuntimeError, "reset()"):
        recorder.step(action)
    recorder.reset()
    recorder.step(action)
    recorder.step(action)
    with refused(rb, KeyboardInterrupt):
        recorder.step(action)
    with refused(rb, RuntimeError, "reset()", "raised"):
        recorder.step(action)
    recorder.reset()
    recorder.step(action)


def test_a_step_that_cannot_be_stored_needs_a_reset() -> None:
    """The environment has moved on: the next row would lead over two steps."""
    env = gym.make("CartPole-v1")
    recorder = GymnasiumRecorder(env)
    rb = recorder.attach(ReplayBuffer(9, recorder.env_dict | {"logp": {"shape": ()}}))
    recorder.reset(seed=0)
    recorder.step(0, logp=-0.5)
    with refused(rb, TypeError, "logp"):
        recorder.step(0)
    with refused(rb, RuntimeError, "reset()"):
        recorder.step(0, logp=-0.5)
    recorder.reset(seed=0)
    assert rb.get_current_episode_len() == 0
    recorder.step(0, logp=-0.25)
    assert rb.get_all_transitions()["logp"].tolist() == [-0.5, -0.25]


def test_bad_resets() -> None:
    """What is done for the program and what it has done are not mixed."""
    recorder, rb = recording(gym.make("CartPole-v1"))
    with refused(rb, TypeError, "reset", "seed"):
        recorder.reset(np.zeros(4), seed=3)  # type: ignore[call-overload]
    with refused(rb, TypeError, "mask"):
        recorder.reset(mask=[True])  # type: ignore[call-overload]
    recorder.reset(seed=0)
    with refused(rb, ValueError, "'obs'"):
        recorder.reset(None)
    recorder.step(0)
    with pytest.raises(RuntimeError, match=r"attach\(buffer\)"):
        GymnasiumRecorder(gym.make("CartPole-v1")).reset()
    with pytest.raises(RuntimeError, match=r"attach\(buffer\)"):
        GymnasiumRecorder(gym.make("CartPole-v1")).step(0)


def test_train_refuses_an_environment_that_records_into_its_buffer() -> None:
    """Each step would be stored twice."""
    recorder, rb = recording(gym.make("CartPole-v1"))
    with refused(rb, ValueError, "env", "twice"):
        train(rb, recorder, lambda *_: 0, lambda *_: None, max_steps=3)
    train(rb, recorder.env, lambda *_: 0, lambda *_: None, max_steps=3)
    assert len(rb) == 3


def test_a_recorder_can_be_copied() -> None:
    """Copies go on by themselves."""
    recorder, rb = recording(gym.make("CartPole-v1"))
    recorder.reset(seed=0)
    recorder.step(0)
    for other in (copy.deepcopy(recorder), pickle.loads(pickle.dumps(recorder))):
        other.step(1)
        assert other.buffer is not None
        assert len(other.buffer) == 2
    assert len(rb) == 1


# ---------------------------------------------------------------- floats


class Doubles(gym.Env[Any, Any]):
    """Observations and actions of 64 bits, as MuJoCo's."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = spaces.Box(-1, 1, (2,), np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.normal(size=3), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        far = 1e300 if action[0] == 1 else 1.0
        return far * self.np_random.normal(size=3), 0.1, False, False, {}


@pytest.mark.parametrize("many", [False, True])
def test_floats_are_float32(many: bool) -> None:
    """Networks are; observations and actions of 64 bits made PyTorch raise."""
    env: Any = Doubles()
    if many:
        env = gym.vector.SyncVectorEnv([Doubles] * 3)
    for float_type, expected in (
        (None, np.float32),
        (np.float16, np.float16),
        ("space", np.float64),
        (float, np.float64),
    ):
        recorder = GymnasiumRecorder(env, float_type=float_type)
        rb = recorder.attach(ReplayBuffer(30, recorder.env_dict, n_envs=recorder.n_envs))
        assert rb.schema.names == ("obs", "act", "rew", "next_obs", "terminated", "truncated")
        obs, _ = recorder.reset(seed=0)
        action = 0.9 * env.action_space.sample()
        following, *_ = recorder.step(action)
        rows = rb.get_all_transitions()
        rew = np.float32 if float_type == "space" else expected
        assert [rows[name].dtype for name in ("obs", "act", "rew", "next_obs")] == [
            expected,
            expected,
            rew,
            expected,
        ]
        for name, value in (("obs", obs), ("act", action), ("next_obs", following)):
            np.testing.assert_array_equal(rows[name], np.atleast_2d(value).astype(expected))


def test_an_observation_beyond_float32_is_refused() -> None:
    """No infinity is made of a large number."""
    recorder = GymnasiumRecorder(Doubles())
    rb = recorder.attach(ReplayBuffer(30, recorder.env_dict))
    recorder.reset(seed=0)
    with refused(rb, ValueError, "'next_obs'", "float32"):
        recorder.step(np.array([1.0, 0.0]))


@pytest.mark.parametrize(
    ("wrong", "error"), [(int, ValueError), ("spec", TypeError), ({}, ValueError)]
)
def test_float_types_that_are_none(wrong: Any, error: type[Exception]) -> None:
    """The message says what is taken."""
    with pytest.raises(error, match=r"float_type: expected a .*'space'"):
        GymnasiumRecorder(Doubles(), float_type=wrong)


# ---------------------------------------------------------------- the short way


class Slow(GymnasiumRecorder):
    """Takes no step the short way."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        none: Any = None
        self._steps = type(self._steps)(
            self._names, none, none, none, self._n_rows, self.autoreset_mode.name
        )


PLAIN_SPACES: dict[str, Any] = {
    "box": spaces.Box(-9, 9, (2, 3)),
    "bytes": spaces.Box(0, 255, (4, 4), np.uint8),
    "number": spaces.Box(-9, 9, (), np.float64),
    "discrete": spaces.Discrete(9),
    "bits": spaces.MultiBinary(5),
    "several": spaces.MultiDiscrete([3, 4]),
    "goal": spaces.Dict(
        {
            "observation": spaces.Box(-9, 9, (3,), np.float64),
            "desired_goal": spaces.Box(-9, 9, (2,), np.float64),
            "achieved_goal": spaces.Discrete(9),
        }
    ),
    "pair": spaces.Tuple([spaces.Box(-9, 9, (2, 2)), spaces.Discrete(3)]),
    "nested": spaces.Dict(
        {
            "parts": spaces.Tuple([spaces.MultiBinary(2), spaces.Dict({"x": spaces.Discrete(4)})]),
            "image": spaces.Box(0, 255, (2, 2, 1), np.uint8),
        }
    ),
}
ODD: list[Callable[[Any], Any]] = [
    lambda value: value,
    lambda value: value,
    np.asfortranarray,
    lambda value: np.asarray(value).tolist(),
    lambda value: np.asarray(value, ">f8"),
    lambda value: np.asarray(value)[None],
    np.ma.array,
    lambda value: np.repeat(np.asarray(value)[..., None], 2, -1)[..., 0],
    lambda value: None,
]
ODD_DICTS: list[Callable[[Any], Any]] = [
    OrderedDict,
    lambda value: dict(reversed(value.items())),
    lambda value: dict(list(value.items())[1:]),
    lambda value: value | {"more": 1},
    lambda value: {f"{key}_": item for key, item in value.items()},
    lambda value: tuple(value.values()),
    lambda value: None,
]
ODD_TUPLES: list[Callable[[Any], Any]] = [
    list,
    lambda value: value[1:],
    lambda value: (*value, 1),
    lambda value: dict(enumerate(value)),
    lambda value: None,
]


def made_odd(value: Any, rng: np.random.Generator) -> Any:
    """The value with something odd about it, or about one of its parts."""
    nested = isinstance(value, (dict, tuple))
    odd = ODD_DICTS if isinstance(value, dict) else ODD_TUPLES if nested else ODD
    if not nested or rng.random() < 0.5:
        return odd[rng.integers(len(odd))](value)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = keys[rng.integers(len(keys))]
    part = made_odd(value[key], rng)
    if isinstance(value, dict):
        return value | {key: part}
    return (*value[:key], part, *value[key + 1 :])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
@pytest.mark.parametrize("n_envs", [None, 1, 5])
@pytest.mark.parametrize("observation", PLAIN_SPACES)
def test_the_short_way_stores_what_the_long_way_does(
    observation: str, n_envs: int | None, mode: str, rng: np.random.Generator
) -> None:
    """Both store the same and refuse the same, whatever comes, sense or nonsense."""
    space = copy.deepcopy(PLAIN_SPACES[observation])
    space.seed(int(rng.integers(1000)))
    action = PLAIN_SPACES[str(rng.choice(list(PLAIN_SPACES)))]
    axis = {} if n_envs is None else {"num_envs": n_envs}
    env = spaces_of(space, action, metadata={}, **axis)
    recorders = [kind(env, autoreset_mode=mode) for kind in (GymnasiumRecorder, Slow)]
    buffers = [
        one.attach(ReplayBuffer(50, one.env_dict, n_envs=one.n_envs, seed=0)) for one in recorders
    ]

    def some(of: Any) -> Any:
        if n_envs is None:
            value = of.sample()
        else:
            out: Any = create_empty_array(of, n_envs)
            value = concatenate(of, [of.sample() for _ in range(n_envs)], out)
        return made_odd(value, rng) if rng.random() < 0.15 else value

    def flags() -> Any:
        value = np.asarray(rng.random(n_envs) < 0.2)[()]
        if n_envs is None and rng.random() < 0.8:
            return bool(value)
        if rng.random() < 0.1:
            return [value.astype(float), [value], None][rng.integers(3)]
        return value

    def final(ended: Any) -> dict[str, Any]:
        if rng.random() < (0.1 if mode == "SAME_STEP" else 0.9):
            return {}
        if n_envs is None:
            return {"final_obs": some(space)} if ended else {}
        if not np.any(ended):
            return {}
        found = np.full(n_envs, None, object)
        for number in range(n_envs):
            if np.asarray(ended).ravel()[number] != (rng.random() < 0.05):
                found[number] = space.sample()
        return {"final_obs": found}

    def outcome(call: Callable[[GymnasiumRecorder], Any], recorder: GymnasiumRecorder) -> Any:
        try:
            return call(recorder)
        except (ValueError, TypeError, RuntimeError) as error:
            return type(error), str(error)

    def both(call: Callable[[GymnasiumRecorder], Any]) -> None:
        outcomes = [outcome(call, recorder) for recorder in recorders]
        assert outcomes[0] == outcomes[1]

    taken = 0
    for _ in range(repeats(150, 75)):
        if rng.random() < 0.2:
            first = some(space)
            mask: Any = np.asarray(rng.random(n_envs) < 0.5)[()]
            if rng.random() < 0.1:
                mask = [mask.astype(int), mask[..., None], None][rng.integers(3)]
            both(partial(GymnasiumRecorder.reset, obs=first))
            both(partial(GymnasiumRecorder.reset, obs=some(space), mask=mask))
        step = [some(action), some(space), rng.random(n_envs), flags(), flags()]
        try:
            ended = np.logical_or(step[3], step[4])
        except (TypeError, ValueError):
            ended = False
        step.append(final(ended) if rng.random() < 0.98 else [])
        extra = {"rew": 1.0} if rng.random() < 0.02 else {}
        both(partial(recorded, step, extra))
        taken += buffers[0].get_next_index() > 0
        np.testing.assert_equal(buffers[0].get_all_transitions(), buffers[1].get_all_transitions())
        buffers[0].check()
    assert taken > 10


# ---------------------------------------------------------------- what it costs


def recorded(step: Any, extra: dict[str, Any], recorder: GymnasiumRecorder) -> int | None:
    """What ``add`` returns."""
    return recorder.add(*step, **extra)


def nothing() -> None:
    """An empty call, to compare with."""


@needs_optimised_modules
@pytest.mark.parametrize(("n_envs", "most"), [(None, 60), (16, 120)])
def test_a_step_is_recorded_in_a_few_calls(n_envs: int | None, most: float) -> None:
    """20 empty calls for one environment, 40 for 16, and twice as much again for noise.

    Each value was made an array, looked at and copied in Python: 170 and 140 calls more.
    """
    env: Any = gym.make("CartPole-v1")
    if n_envs is not None:
        env = gym.make_vec("CartPole-v1", num_envs=n_envs, vectorization_mode="sync")
    recorder, _ = recording(env, size=1600)
    obs, _ = env.reset(seed=0)
    recorder.reset(obs)
    action = env.action_space.sample()
    step = env.step(action)
    assert ratio(nothing, lambda: recorder.add(action, *step), 60, 300) < most


class Reaching(gym.Env[Any, Any]):
    """A goal environment whose episodes take 20 steps, of nested dicts and tuples."""

    observation_space = spaces.Dict(
        {
            "observation": spaces.Box(-1, 1, (10,), np.float32),
            "achieved_goal": spaces.Box(-1, 1, (3,), np.float32),
            "desired_goal": spaces.Tuple([spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4)]),
        }
    )
    action_space = spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.age = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.age += 1
        return self.observation_space.sample(), -1.0, False, self.age == 20, {}


def steps_with_ends(env: Any, mode: AutoresetMode) -> tuple[Any, list[tuple[Any, Any]]]:
    """A first observation, and 100 steps: the arguments of ``add``, and of the reset after it."""
    first = env.reset(seed=0)[0]
    steps = []
    for _ in range(100):
        action = env.action_space.sample()
        step = copy.deepcopy(env.step(action))
        ended = np.logical_or(step[2], step[3])
        reset: Any = None
        if mode is AutoresetMode.DISABLED and ended.any():
            reset = (env.reset(options={"reset_mask": ended.copy()} if ended.ndim else None)[0],)
            reset += (ended,) if ended.ndim else ()
        steps.append(((action, *step), copy.deepcopy(reset)))
    return first, steps


@needs_optimised_modules
@pytest.mark.parametrize("name", ["CartPole-v1", "goals"])
@pytest.mark.parametrize(
    ("n_envs", "mode", "most"), [(None, AutoresetMode.DISABLED, 60), *((16, m, 120) for m in MODES)]
)
def test_steps_with_ends_are_recorded_in_a_few_calls(
    name: str, n_envs: int | None, mode: AutoresetMode, most: float
) -> None:
    """The same on the average of real steps and resets, in each mode, of nested spaces too.

    With 16 environments every other step of CartPole ends an episode of one of them. A masked reset
    took as long as ten steps, and a step of nested parts 10 us.
    """

    def make() -> Any:
        return Reaching() if name == "goals" else gym.make(name)

    env = make() if n_envs is None else SyncVectorEnv([make] * n_envs, autoreset_mode=mode)
    if name == "goals":  # twelve fields and not six
        most *= 2
    recorder = GymnasiumRecorder(env)
    recorder.attach(ReplayBuffer(1600, recorder.env_dict, n_envs=recorder.n_envs))
    first, steps = steps_with_ends(env, mode)
    recorder.reset(first)

    def record() -> None:
        for step, reset in steps:
            recorder.add(*step)
            if reset is not None:
                recorder.reset(*reset)

    def call() -> None:
        for _ in steps:
            nothing()

    assert ratio(call, record, turns=20, number=3) < most
