"""The recorder on TF-Agents itself; ``make test-tf-agents`` runs this where TF-Agents can live."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optional import need

from cpprb_like.typing import FieldSpec

# This folder has the package's name: only a module of it tells whether it is installed.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    need("tf_agents.environments.py_environment", "make test-tf-agents")
    import tensorflow as tf
    from tf_agents.drivers import py_driver
    from tf_agents.environments import py_environment, tf_py_environment
    from tf_agents.environments.batched_py_environment import BatchedPyEnvironment
    from tf_agents.policies import random_py_policy
    from tf_agents.specs import ArraySpec, BoundedArraySpec
    from tf_agents.trajectories import time_step as ts

from cpprb_like import ReplayBuffer
from cpprb_like.integrations.dm_env import DmEnvRecorder, SpecNest, env_dict_from_spec

# TF-Agents 0.19 uses what newer packages deprecate.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

SCRIPT = Path(__file__).parents[2] / "examples" / "gridworld_tf_agents.py"


class Trail(py_environment.PyEnvironment):  # type: ignore[misc] # TF-Agents has no types
    """Episodes of random length, which end in both ways; nested specs and two rewards.

    ``clock`` counts episodes and steps.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__(handle_auto_reset=True)
        self.rng = np.random.default_rng(seed)
        self.clock = np.zeros(2, np.int32)

    def observation_spec(self) -> Any:
        camera = BoundedArraySpec((2, 3, 1), np.uint8, minimum=0, maximum=255, name="camera")
        return {"clock": ArraySpec((2,), np.int32), "parts": (camera, [ArraySpec((), np.float64)])}

    def action_spec(self) -> Any:
        return [
            BoundedArraySpec((), np.int32, minimum=0, maximum=4),
            {"push": BoundedArraySpec((2,), np.float32, minimum=-1.0, maximum=1.0)},
        ]

    def reward_spec(self) -> Any:
        return ArraySpec((2,), np.float32, name="reward")

    def observe(self) -> Any:
        camera = self.rng.integers(0, 256, (2, 3, 1)).astype(np.uint8)
        return {"clock": self.clock.copy(), "parts": (camera, [self.rng.random()])}

    def _reset(self) -> Any:
        self.clock[:] = self.clock[0] + 1, 0
        return ts.restart(self.observe(), reward_spec=self.reward_spec())

    def _step(self, action: Any) -> Any:
        self.clock[1] += 1
        seen, reward = self.observe(), np.array([action[0], action[1]["push"].sum()], np.float32)
        chance = self.rng.random()
        if chance < 0.1:
            return ts.TimeStep(ts.StepType.LAST, reward, np.float32(0), seen)
        if chance < 0.2:
            return ts.TimeStep(ts.StepType.LAST, reward, np.float32(0.75), seen)
        return ts.TimeStep(ts.StepType.MID, reward, np.float32(self.rng.choice([0.5, 1])), seen)


class Walk(py_environment.PyEnvironment):  # type: ignore[misc] # TF-Agents has no types
    """Made of TF-Agents' own functions: ends at 3, by termination or by truncation."""

    def __init__(self, end: Any) -> None:
        super().__init__(handle_auto_reset=True)
        self.end = end
        self.at = 0

    def observation_spec(self) -> Any:
        return ArraySpec((), np.int64, name="at")

    def action_spec(self) -> Any:
        return BoundedArraySpec((), np.int32, minimum=0, maximum=1, name="action")

    def _reset(self) -> Any:
        self.at = 0
        return ts.restart(np.int64(0))

    def _step(self, action: Any) -> Any:
        self.at += 1
        make = self.end if self.at == 3 else ts.transition
        return make(np.int64(self.at), float(action))


Row = tuple[Any, ...]


def drawn_actions(n_steps: int, seed: int) -> list[Any]:
    """Actions for a ``Trail``."""
    rng = np.random.default_rng(seed)
    pushes = rng.integers(-4, 5, (n_steps, 2)).astype(np.float32)
    return [[np.int32(rng.integers(5)), {"push": push}] for push in pushes]


def side_by_side(actions: list[Any]) -> Any:
    """One action of each environment, as a batch."""
    pushes = np.stack([one[1]["push"] for one in actions])
    return [np.array([one[0] for one in actions]), {"push": pushes}]


def row_of(before: Any, action: Any, reward: Any, discount: Any, after: Any) -> Row:
    """What is compared of a step."""
    return (
        *(before["clock"].tolist(), before["parts"][0].tolist(), float(before["parts"][1][0])),
        *(int(action[0]), action[1]["push"].tolist(), reward.tolist(), float(discount)),
        *(after["clock"].tolist(), after["parts"][0].tolist(), float(after["parts"][1][0])),
    )


def plain_rows(env: Any, actions: list[Any]) -> list[Row]:
    """Step one environment by hand; the last entries say how the episode ended."""
    rows = []
    before = env.reset()
    for action in actions:
        step = env.step(action)
        if not step.is_first():
            row = row_of(before.observation, action, step.reward, step.discount, step.observation)
            over = bool(step.is_last())
            rows.append((*row, over and step.discount == 0, over and step.discount != 0))
        before = step
    return rows


def stored_rows(recorder: DmEnvRecorder, rb: ReplayBuffer, env: int) -> list[Row]:
    """The rows of one environment."""
    batch = rb.get_all_transitions()
    chosen = batch.pop("env") == env
    batch = recorder.restore({name: column[chosen] for name, column in batch.items()})
    return [
        (
            *row_of(
                take(batch["obs"], row),
                take(batch["act"], row),
                batch["rew"][row],
                batch["discount"][row],
                take(batch["next_obs"], row),
            ),
            batch["terminated"][row],
            batch["truncated"][row],
        )
        for row in range(chosen.sum())
    ]


def take(nested: Any, row: int) -> Any:
    """Row of a nested batch."""
    if isinstance(nested, dict):
        return {key: take(value, row) for key, value in nested.items()}
    if isinstance(nested, (list, tuple)):
        return type(nested)(take(value, row) for value in nested)
    return nested[row]


def attached(env: Any) -> tuple[DmEnvRecorder, ReplayBuffer]:
    """A recorder and its buffer, with the number of the environment as a further field."""
    recorder = DmEnvRecorder(env)
    fields: dict[str, FieldSpec] = {**recorder.env_dict, "env": {"shape": (), "dtype": int}}
    return recorder, recorder.attach(ReplayBuffer(1000, fields, n_envs=recorder.n_envs))


def test_fields() -> None:
    """Names, shapes and dtypes are those of the specs; also in a batch, and of tensors."""
    expected = {
        "obs.clock": ((2,), "int32"),
        "obs.parts.0": ((2, 3, 1), "uint8"),
        "obs.parts.1.0": ((), "float64"),
        "act.0": ((), "int32"),
        "act.1.push": ((2,), "float32"),
        "rew": ((2,), "float32"),
        "discount": ((), "float32"),
        "next_obs.clock": ((2,), "int32"),
        "next_obs.parts.0": ((2, 3, 1), "uint8"),
        "next_obs.parts.1.0": ((), "float64"),
        "terminated": ((), "bool"),
        "truncated": ((), "bool"),
    }
    batched = BatchedPyEnvironment([Trail(), Trail()], multithreading=False)
    tensors = tf_py_environment.TFPyEnvironment(batched)
    for env, n_envs in ((Trail(), 1), (batched, 2), (tensors, 2)):
        recorder = DmEnvRecorder(env)
        fields: dict[str, Any] = recorder.env_dict
        found = {name: (spec["shape"], spec["dtype"].name) for name, spec in fields.items()}
        assert found == expected
        assert recorder.n_envs == n_envs


def test_single_environment_gives_the_rows_of_a_plain_loop() -> None:
    """Every step is stored as it was, and the step in which the environment resets is not."""
    env, actions = Trail(), drawn_actions(80, seed=3)
    recorder, rb = attached(env)
    recorder.reset(env.reset())
    for action in actions:
        recorder.add(action, env.step(action), env=0)
    expected = plain_rows(Trail(), actions)
    assert {row[-2:] for row in expected} == {(False, False), (True, False), (False, True)}
    assert stored_rows(recorder, rb, 0) == expected


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("tensors", [False, True])
def test_batched_environments_give_the_rows_of_plain_loops(n_envs: int, tensors: bool) -> None:
    """Each environment's rows are those of the same environment alone, as arrays and tensors."""
    env: Any = BatchedPyEnvironment([Trail(seed) for seed in range(n_envs)], multithreading=False)
    if tensors:
        env = tf_py_environment.TFPyEnvironment(env)
    actions = [drawn_actions(60, seed) for seed in range(n_envs)]
    recorder, rb = attached(env)
    recorder.reset(env.reset())
    for each in zip(*actions, strict=True):
        action = side_by_side(list(each))
        if tensors:
            action = tf.nest.map_structure(tf.convert_to_tensor, action)
        recorder.add(action, env.step(action), env=np.arange(n_envs))
    for number in range(n_envs):
        expected = plain_rows(Trail(number), actions[number])
        assert stored_rows(recorder, rb, number) == expected


@pytest.mark.parametrize(
    ("end", "terminated", "discounts"),
    [(ts.termination, True, [1, 1, 0]), (ts.truncation, False, [1, 1, 1])],
)
def test_ends_that_are_made_by_tf_agents(
    end: Any, terminated: bool, discounts: list[float]
) -> None:
    """``termination`` terminates; ``truncation``, whose discount is 1 by default, truncates."""
    env = Walk(end)
    recorder, rb = attached(env)
    recorder.reset(env.reset())
    for _ in range(8):
        recorder.add(1, env.step(1), env=0)
    batch = rb.get_all_transitions()
    assert batch["obs"].tolist() == [0, 1, 2] * 2
    assert batch["next_obs"].tolist() == [1, 2, 3] * 2
    assert batch["discount"].tolist() == discounts * 2
    assert batch["terminated"].tolist() == [False, False, terminated] * 2
    assert batch["truncated"].tolist() == [False, False, not terminated] * 2


def test_environment_that_does_not_reset_itself() -> None:
    """A batch in which an ended environment goes on is refused, and says which one."""
    envs = [Walk(ts.termination), Walk(ts.termination)]
    envs[1]._handle_auto_reset = False
    env = BatchedPyEnvironment(envs, multithreading=False)
    recorder, rb = attached(env)
    recorder.reset(env.reset())
    action = np.array([1, 1], np.int32)
    for _ in range(3):
        recorder.add(action, env.step(action), env=[0, 1])
    with pytest.raises(RuntimeError, match=r"environments \[1\] has ended"):
        recorder.add(action, env.step(action), env=[0, 1])
    assert len(rb) == 6


def test_driver() -> None:
    """The recorder is an observer of transitions of TF-Agents' driver, with the policy's info."""
    env = Walk(ts.termination)
    told = {"logp": BoundedArraySpec((1,), np.float32, minimum=-2.0, maximum=-1.0)}
    policy = random_py_policy.RandomPyPolicy(
        env.time_step_spec(), env.action_spec(), info_spec=told, seed=0
    )
    recorder, info = DmEnvRecorder(env), SpecNest(policy.info_spec, "info")
    rb = recorder.attach(ReplayBuffer(100, {**recorder.env_dict, **info.env_dict}))
    given = []

    def record(transition: Any) -> None:
        _, action_step, time_step = transition
        slot = recorder.add(action_step.action, time_step, **info.flatten(action_step.info))
        if slot is not None:
            given.append(action_step.info["logp"])

    time_step = env.reset()
    recorder.reset(time_step)
    driver = py_driver.PyDriver(env, policy, [], transition_observers=[record], max_steps=10)
    time_step, state = driver.run(time_step)
    driver.run(time_step, state)
    batch = rb.get_all_transitions()
    np.testing.assert_array_equal(batch["next_obs"], batch["obs"] + 1)
    np.testing.assert_array_equal(batch["terminated"], batch["obs"] == 2)
    np.testing.assert_array_equal(batch["rew"], batch["act"])
    np.testing.assert_array_equal(info.restore(batch)["logp"], given)
    assert len(given) >= 20


def test_specs_of_a_trajectory() -> None:
    """Named tuples of TF-Agents are nests, and come back as such."""
    spec = ts.time_step_spec(Trail().observation_spec())
    nest = SpecNest(spec)
    assert list(nest.env_dict) == list(env_dict_from_spec(spec))
    assert {"step_type", "reward", "discount", "observation.clock"} < set(nest.names)
    rb = ReplayBuffer(10, nest.env_dict)
    env = Trail()
    steps = [env.reset(), env.step(drawn_actions(1, 0)[0])]
    for step in steps:
        rb.add(**nest.flatten(step._replace(reward=step.reward[0])))
    found = nest.restore(rb.get_all_transitions())
    assert isinstance(found, ts.TimeStep)
    assert found.step_type.tolist() == [int(step.step_type) for step in steps]
    assert found.observation["clock"].tolist() == [[1, 0], [1, 1]]


def test_the_example_learns_on_the_real_environment() -> None:
    """Where TF-Agents is installed, the example is about its ``PyEnvironment``."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Environment: tf_agents.environments.py_environment" in done.stdout
    found = re.search(r"Learned in \d+ steps: (.*)\.", done.stdout)
    assert found is not None
    assert sorted(found[1].split(", ")) == ["down"] * 3 + ["right"] * 3
