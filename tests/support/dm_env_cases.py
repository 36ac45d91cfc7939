"""dm_env environments to record from, what a plain loop over them gives, and a slow recorder."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import Any, NamedTuple

import dm_env
import numpy as np
import numpy.typing as npt
from dm_env import specs
from helpers import rooms

from cpprb_like import ReplayBuffer
from cpprb_like.integrations.dm_env import DmEnvRecorder

Array = npt.NDArray[Any]
Row = dict[str, Any]
FIRST, MID, LAST = range(3)


class Arm(NamedTuple):
    """A part of an observation."""

    angles: Any
    held: Any


class Trail(dm_env.Environment):  # type: ignore[misc] # dm_env has no types
    """Episodes of random length, which end in both ways, with a discount of each step.

    ``clock`` counts episodes and steps. The step after an end resets, whatever the action.
    """

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.clock = np.zeros(2, np.int32)
        self.over = True

    def observation_spec(self) -> Any:
        return {
            "clock": specs.Array((2,), np.int32),
            "arms": [
                Arm(specs.BoundedArray((3,), float, -1, 1), specs.StringArray(())),
                Arm(specs.Array((1, 2), np.uint8), specs.Array((), bool)),
            ],
        }

    def action_spec(self) -> Any:
        return (specs.DiscreteArray(5), {"push": specs.Array((2,), np.float32)})

    def reward_spec(self) -> Any:
        return {"speed": specs.Array((), np.float32), "style": specs.Array((2,), float)}

    def observe(self) -> Any:
        held = ["hammer", "saw", ""][self.rng.integers(3)]
        return {
            "clock": self.clock.copy(),
            "arms": [
                Arm(self.rng.uniform(-1, 1, 3), held),
                Arm(self.rng.integers(0, 256, (1, 2)).astype(np.uint8), bool(self.clock[1] % 2)),
            ],
        }

    def reset(self) -> Any:
        self.clock[:] = self.clock[0] + 1, 0
        self.over = False
        return dm_env.restart(self.observe())

    def step(self, action: Any) -> Any:
        if self.over:
            return self.reset()
        self.clock[1] += 1
        seen = self.observe()
        reward = {"speed": np.float32(action[0]), "style": action[1]["push"] * 2.0}
        chance = self.rng.random()
        self.over = bool(chance < 0.35)
        if chance < 0.15:
            return dm_env.termination(reward, seen)
        if chance < 0.25:
            return dm_env.truncation(reward, seen)
        if chance < 0.35:
            return dm_env.truncation(reward, seen, self.rng.uniform(0.1, 1))
        # A discount of 0 in the middle is no end.
        return dm_env.transition(reward, seen, self.rng.choice([0.0, 0.5, 1.0]))


class ReusingTrail(Trail):
    """Observations are always the same arrays, overwritten by each step."""

    def observe(self) -> Any:
        seen = super().observe()
        if not hasattr(self, "shown"):
            self.shown = seen
        self.shown["clock"][:] = seen["clock"]
        for shown, one in zip(self.shown["arms"], seen["arms"], strict=True):
            shown.angles[...] = one.angles
        self.shown["arms"] = [
            Arm(shown.angles, one.held)
            for shown, one in zip(self.shown["arms"], seen["arms"], strict=True)
        ]
        return self.shown


class Stacked:
    """Environments side by side as TF-Agents batches them: a leading axis on every array.

    What is not there, the reward and discount of a FIRST, is None.
    """

    batched = True

    def __init__(self, envs: list[Any]) -> None:
        self.envs = envs
        self.batch_size = len(envs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.envs[0], name)

    def reset(self) -> Any:
        return stacked_steps([env.reset() for env in self.envs])

    def step(self, actions: list[Any]) -> Any:
        steps = [env.step(action) for env, action in zip(self.envs, actions, strict=True)]
        return stacked_steps(copy.deepcopy(steps))


def stacked(values: list[Any]) -> Any:
    """Nests side by side: one of arrays with a leading axis. None is a nest of None."""
    (kind, *_) = [value for value in values if value is not None] or [None]
    if isinstance(kind, dict):
        return {
            key: stacked([None if value is None else value[key] for value in values])
            for key in kind
        }
    if isinstance(kind, (list, tuple)):
        parts = [
            stacked([None if value is None else value[place] for value in values])
            for place in range(len(kind))
        ]
        return type(kind)(*parts) if hasattr(kind, "_fields") else type(kind)(parts)
    if any(value is None for value in values):
        column = np.empty((len(values), *np.shape(kind)), object)
        for row, value in enumerate(values):
            column[row] = value
        return column
    return np.array(values, object if isinstance(kind, str) else None)


def stacked_steps(steps: list[Any]) -> Any:
    """One time step of several environments."""
    return dm_env.TimeStep(*(stacked([step[part] for step in steps]) for part in range(4)))


def drawn_actions(n_steps: int, seed: int) -> list[Any]:
    """Actions for a ``Trail``."""
    rng = np.random.default_rng(seed)
    return [
        (int(rng.integers(5)), {"push": rng.integers(-4, 5, 2).astype(np.float32)})
        for _ in range(n_steps)
    ]


def plain_rows(env: Any, actions: list[Any]) -> list[Row]:
    """Step an environment that resets itself by hand."""
    rows: list[Row] = []
    before = copy.deepcopy(env.reset())
    for action in actions:
        step = copy.deepcopy(env.step(action))
        if not step.first():
            rows.append(
                {
                    "obs": before.observation,
                    "act": action,
                    "rew": step.reward,
                    "discount": step.discount,
                    "next_obs": step.observation,
                    "terminated": step.last() and step.discount == 0,
                    "truncated": step.last() and step.discount != 0,
                }
            )
        before = step
    return rows


def take(nested: Any, row: int) -> Any:
    """Row of a nested batch."""
    if isinstance(nested, dict):
        return {key: take(value, row) for key, value in nested.items()}
    if isinstance(nested, (list, tuple)):
        parts = [take(value, row) for value in nested]
        return type(nested)(*parts) if hasattr(nested, "_fields") else type(nested)(parts)
    return nested[row]


def stored_rows(recorder: DmEnvRecorder, rb: ReplayBuffer) -> list[Row]:
    """All rows of a buffer, nested."""
    batch = recorder.restore(rb.get_all_transitions())
    return [take(batch, row) for row in range(len(rb))]


def assert_same_rows(found: list[Row], expected: list[Row]) -> None:
    """Check each value of each expected row, and its nesting."""
    assert len(found) == len(expected)
    for row, (one, other) in enumerate(zip(found, expected, strict=True)):
        for name, value in other.items():
            np.testing.assert_equal(one[name], value, err_msg=f"row {row}, {name}")
            assert outline(one[name]) == outline(value)


def outline(nested: Any) -> Any:
    """The types of the dicts, lists and tuples of a nest."""
    if isinstance(nested, dict):
        return {key: outline(value) for key, value in nested.items()}
    if isinstance(nested, (list, tuple)):
        return type(nested), [outline(value) for value in nested]
    return None


def env_of(
    observation: Any = None,
    action: Any = None,
    reward: Any = None,
    discount: Any = None,
    **more: Any,
) -> Any:
    """What the recorder reads of an environment: a vector of 2, 3 actions, scalars."""
    found = {
        "observation_spec": specs.Array((2,), np.float32) if observation is None else observation,
        "action_spec": specs.DiscreteArray(3) if action is None else action,
        "reward_spec": specs.Array((), np.float32) if reward is None else reward,
        "discount_spec": specs.Array((), np.float32) if discount is None else discount,
    }
    made = {name: (lambda spec=spec: spec) for name, spec in found.items()}
    return SimpleNamespace(**made, **more)


def attached(env: Any, size: int = 1000, **options: Any) -> tuple[DmEnvRecorder, ReplayBuffer]:
    """A recorder and its buffer."""
    recorder = DmEnvRecorder(env, **options)
    fields = recorder.env_dict
    rb = ReplayBuffer(size, fields, n_envs=recorder.n_envs, room=rooms(fields))
    return recorder, recorder.attach(rb)


@dataclass
class SlowRecorder:
    """The twin of recorder and buffer: a Python list of rows, None where there is no step."""

    capacity: int
    n_envs: int
    rows: list[Row | None] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    episode: list[int] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)

    def reset(self, observations: list[int]) -> None:
        self.episode = [next(self.numbers) for _ in range(self.n_envs)]
        self.before = observations

    def add(self, actions: list[int], steps: list[tuple[int, float, float, int]]) -> None:
        """``steps``: type, reward, discount and number of the observation of each environment."""
        all_begin = all(step_type == FIRST for step_type, *_ in steps)
        for env, (step_type, reward, discount, seen) in enumerate(steps):
            row: Row | None = None
            if step_type == FIRST:
                self.episode[env] = next(self.numbers)
            else:
                row = {
                    "obs": self.before[env],
                    "act": actions[env],
                    "rew": reward,
                    "discount": discount,
                    "next_obs": seen,
                    "terminated": step_type == LAST and discount == 0,
                    "truncated": step_type == LAST and discount != 0,
                    "env": env,
                    "episode": self.episode[env],
                }
            if not all_begin:
                self.rows.append(row)
            self.before[env] = seen

    def clear(self) -> None:
        self.rows = []

    def living(self, n: int = 1) -> dict[int, Row]:
        """The rows of ``n`` steps that are complete and still there, by slot."""
        rows = {number: row for number, row in enumerate(self.rows) if row is not None}
        waiting = [number for number, row in rows.items() if self.window(row, n) is None]
        incomplete: list[int] = []
        while len(incomplete) != len(waiting):  # some that are too old may have been left out
            incomplete, first = waiting, len(self.rows) - self.capacity - len(waiting)
            waiting = [number for number in incomplete if number >= first]
        first = len(self.rows) - self.capacity - len(waiting)
        span = self.capacity + (n - 1) * self.n_envs * (self.n_envs > 1)
        return {
            number % span: row
            for number, row in rows.items()
            if number >= first and self.window(row, n) is not None
        }

    def episode_len(self, env: int) -> int:
        """Steps of the open episode."""
        steps = [row for row in self.rows if row is not None and row["env"] == env]
        steps = [row for row in steps if row["episode"] == self.episode[env]]
        return 0 if steps and self.ended(steps[-1]) else len(steps)

    def ended(self, row: Row) -> bool:
        """Whether nothing of its episode follows."""
        open_episode = self.episode[row["env"]] == row["episode"]
        return row["terminated"] or row["truncated"] or not open_episode

    def window(self, row: Row, n: int) -> list[Row] | None:
        """The row and those that follow it in its episode, ``n`` or to the end; None: it waits."""
        same = [
            other
            for other in self.rows
            if other is not None
            and (other["env"], other["episode"]) == (row["env"], row["episode"])
        ]
        (place,) = [place for place, other in enumerate(same) if other is row]
        window = same[place : place + n]
        return window if len(window) == n or self.ended(window[-1]) else None
