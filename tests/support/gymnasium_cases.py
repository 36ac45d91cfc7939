"""Gymnasium environments to record from, and what a plain loop over them gives."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array
from helpers import rooms

from cpprb_like import ReplayBuffer
from cpprb_like.integrations.gymnasium import GymnasiumRecorder
from cpprb_like.typing import FieldSpec

Array = npt.NDArray[Any]
Row = dict[str, Any]
Maker = Callable[[], Any]

MODES = list(AutoresetMode)


class Trail(gym.Env[Any, Any]):
    """Episodes of random length that terminate, are truncated, or both; nested spaces.

    ``clock`` counts episodes and steps.
    """

    observation_space = spaces.Dict(
        {
            "clock": spaces.Box(0, 10**6, (2,), np.int32),
            "camera": spaces.Box(0, 255, (2, 3, 1), np.uint8),
            "goal": spaces.Tuple([spaces.Discrete(9), spaces.MultiBinary(4)]),
        }
    )
    action_space = spaces.Tuple(
        [spaces.Discrete(3), spaces.Dict({"push": spaces.Box(-1, 1, (2,), np.float64)})]
    )

    def __init__(self) -> None:
        self.clock = np.zeros(2, np.int32)
        self.camera = np.zeros((2, 3, 1), np.uint8)
        self.bits = np.zeros(4, np.int8)
        self.number = 0

    def observe(self) -> dict[str, Any]:
        self.camera[...] = self.np_random.integers(0, 256, (2, 3, 1))
        self.bits[...] = self.np_random.integers(0, 2, 4)
        self.number = int(self.np_random.integers(9))
        obs = {"clock": self.clock, "camera": self.camera, "goal": (self.number, self.bits)}
        return self.shown(obs)

    def shown(self, obs: dict[str, Any]) -> dict[str, Any]:
        return copy.deepcopy(obs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.clock[:] = self.clock[0] + 1, 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.clock[1] += 1
        terminated = bool(self.np_random.random() < 0.2)
        truncated = bool(self.clock[1] >= 5)
        reward = float(action[0]) + float(action[1]["push"].sum())
        return self.observe(), reward, terminated, truncated, {"speed": 1.0}


class ReusingTrail(Trail):
    """Observations are always the same arrays, overwritten by each step."""

    def shown(self, obs: dict[str, Any]) -> dict[str, Any]:
        return obs


def cart_pole() -> Any:
    """CartPole with short episodes, most of which end by themselves."""
    return gym.make("CartPole-v1", max_episode_steps=15)


class Words(gym.Env[Any, Any]):
    """Values of any length: an instruction, points that come and go, and graphs that grow."""

    observation_space = spaces.Dict(
        {
            "word": spaces.Text(5, min_length=0, charset="aé\0"),
            "points": spaces.Sequence(spaces.Box(0, 1, (2,))),
            "stack": spaces.Sequence(spaces.Box(0, 1, (2,)), stack=True),
            "either": spaces.OneOf([spaces.Discrete(3), spaces.Box(0, 1, (2,))]),
            "trees": spaces.Sequence(spaces.Graph(spaces.Discrete(3), None)),
            "graphs": spaces.Tuple(
                [
                    spaces.Graph(spaces.Box(0, 1, (2,)), None),
                    spaces.Graph(spaces.Discrete(9), spaces.Box(0, 1, (3,), np.float64)),
                ]
            ),
            "age": spaces.Discrete(9),
        }
    )
    action_space = spaces.Dict(
        {"say": spaces.Text(3), "press": spaces.Sequence(spaces.MultiBinary(2))}
    )

    def observe(self) -> dict[str, Any]:
        rng = self.np_random
        lengths = rng.integers(4, size=3)
        tree = spaces.GraphInstance(rng.integers(3, size=2), None, None)
        edges = links = None
        if self.age:
            edges = rng.random((self.age, 3))
            links = np.stack([np.arange(self.age), np.arange(1, self.age + 1)], axis=1)
        return {
            "word": "".join(rng.choice(["a", "é", "\0"], lengths[0])),
            "points": tuple(rng.random((lengths[1], 2), np.float32)),
            "stack": rng.random((lengths[2], 2), np.float32),
            "either": (0, int(rng.integers(3))),
            "trees": (tree,) * (self.age % 2),
            "graphs": (
                spaces.GraphInstance(rng.random((3, 2), np.float32), None, None),
                spaces.GraphInstance(rng.integers(9, size=self.age + 1), edges, links),
            ),
            "age": self.age,
        }

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.age = 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.age += 1
        reward = float(len(action["say"]) + len(action["press"]))
        terminated, truncated = self.np_random.random() < 0.2, self.age == 5
        return self.observe(), reward, bool(terminated), truncated, {}


MAKERS: dict[str, Maker] = {
    "trail": Trail,
    "reusing trail": ReusingTrail,
    "cart pole": cart_pole,
    "words": Words,
}


def plain_rows(env: Any, seed: int, actions: list[Any], *, reset_takes_a_step: bool) -> list[Row]:
    """Step one environment by hand; after an end, an action may be spent on the reset."""
    rows: list[Row] = []
    obs = copy.deepcopy(env.reset(seed=seed)[0])
    waiting = False
    for action in actions:
        if waiting and reset_takes_a_step:
            obs, waiting = copy.deepcopy(env.reset()[0]), False
            continue
        next_obs, rew, terminated, truncated, _ = copy.deepcopy(env.step(action))
        rows.append(
            {
                "obs": obs,
                "act": action,
                "rew": np.float32(rew),
                "next_obs": next_obs,
                "terminated": terminated,
                "truncated": truncated,
            }
        )
        obs, waiting = next_obs, terminated or truncated
        if waiting and not reset_takes_a_step:
            obs = copy.deepcopy(env.reset()[0])
    return rows


def take(nested: Any, row: int) -> Any:
    """Row of a nested batch."""
    if isinstance(nested, dict):
        return {key: take(value, row) for key, value in nested.items()}
    if isinstance(nested, tuple):
        parts = [take(value, row) for value in nested]
        return type(nested)(*parts) if hasattr(nested, "_fields") else tuple(parts)
    return None if nested is None else nested[row]


def as_given(space: Any, value: Any) -> Any:
    """A stored value as a sample of its space."""
    if isinstance(space, spaces.Dict):
        return {key: as_given(part, value[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(as_given, space.spaces, value))
    if isinstance(space, spaces.Sequence) and not space.stack:
        return tuple(value)
    if isinstance(space, spaces.Graph) and value.edges is not None and not len(value.edges):
        return value._replace(edges=None, edge_links=None)
    return value


def stored_rows(recorder: GymnasiumRecorder, rb: ReplayBuffer) -> list[Row]:
    """All rows of a buffer, nested, without padding."""
    batch: dict[str, Any] = dict(rb.get_all_transitions())
    for field in rb.schema.declared:
        if field.is_ragged and not field.is_text:
            masks = batch[f"{field.axis}_mask"]
            batch[field.name] = [
                row[mask] for row, mask in zip(batch[field.name], masks, strict=True)
            ]
    nested = recorder.restore(batch)
    seen, acted = recorder.single_observation_space, recorder.single_action_space
    kinds = {"obs": seen, "act": acted, "next_obs": seen}
    rows = [take(nested, row) for row in range(len(rb))]
    return [
        row | {name: as_given(space, row[name]) for name, space in kinds.items()} for row in rows
    ]


def assert_same_rows(found: list[Row], expected: list[Row]) -> None:
    """Check each value of each expected row."""
    assert len(found) == len(expected)
    for row, (one, other) in enumerate(zip(found, expected, strict=True)):
        for name, value in other.items():
            np.testing.assert_equal(one[name], value, err_msg=f"row {row}, {name}")


def drawn_actions(env: Any, n_steps: int, n_envs: int, seed: int) -> list[list[Any]]:
    """Actions of each environment at each step."""
    space = copy.deepcopy(getattr(env, "single_action_space", env.action_space))
    space.seed(seed)
    return [[space.sample() for _ in range(n_envs)] for _ in range(n_steps)]


def stacked(env: Any, actions: list[Any]) -> Any:
    """One action of each environment, as a vector environment takes them."""
    space = env.single_action_space
    out: Any = create_empty_array(space, len(actions))
    return concatenate(space, actions, out)


def attached(env: Any, size: int = 1000, **options: Any) -> tuple[GymnasiumRecorder, ReplayBuffer]:
    """A recorder and its buffer."""
    recorder = GymnasiumRecorder(env, **{"float_type": "space", **options})
    fields = recorder.env_dict
    rb = ReplayBuffer(size, fields, n_envs=recorder.n_envs, room=rooms(fields))
    return recorder, recorder.attach(rb)


def spaces_of(observation: Any, action: Any = None, **attributes: Any) -> Any:
    """What the recorder reads of an environment."""
    action = spaces.Discrete(2) if action is None else action
    return SimpleNamespace(observation_space=observation, action_space=action, **attributes)


def vector_spaces(mode: object = None) -> Any:
    """What the recorder reads of two environments, which take and give the values below."""
    box = spaces.Box(-9, 9, (2,))
    return spaces_of(box, num_envs=2, metadata={"autoreset_mode": mode})


STILL, ENDED = np.array([False, False]), np.array([False, True])
OBS = np.zeros((2, 2), np.float32)
FINAL = np.array([None, np.ones(2, np.float32)], object)


def vector(name: str, mode: AutoresetMode, n_envs: int = 3, kind: str = "sync") -> Any:
    """A vector environment of Gymnasium; "reused" ones always return the same arrays."""
    options: dict[str, Any] = {"autoreset_mode": mode}
    if kind.endswith("reused"):
        options["copy"] = False
    makers = [MAKERS[name]] * n_envs
    if kind.startswith("sync"):
        return SyncVectorEnv(makers, **options)
    return AsyncVectorEnv(makers, shared_memory=name != "words", **options)


def run_vector(
    env: Any, recorder: GymnasiumRecorder, actions: list[list[Any]], seed: int
) -> Iterator[Array]:
    """Step and record; yields which environments ended at each step."""
    recorder.reset(env.reset(seed=seed)[0])
    for each in actions:
        action = stacked(env, each)
        step = env.step(action)
        recorder.add(action, *step, env=np.arange(recorder.n_envs))
        ended = step[2] | step[3]
        yield ended
        if recorder.autoreset_mode is AutoresetMode.DISABLED and ended.any():
            recorder.reset(env.reset(options={"reset_mask": ended.copy()})[0], ended)


def with_env_number(env: Any, size: int = 1000) -> tuple[GymnasiumRecorder, ReplayBuffer]:
    """Like ``attached``, with the number of the environment as a further field."""
    recorder = GymnasiumRecorder(env, float_type="space")
    fields: dict[str, FieldSpec] = {**recorder.env_dict, "env": {"shape": (), "dtype": int}}
    rb = ReplayBuffer(size, fields, n_envs=recorder.n_envs, room=rooms(fields))
    return recorder, recorder.attach(rb)
