"""Sound runs of many environments, and faults planted in them, for reports.

``sound_runs`` names as many runs as are asked for: environments of Gymnasium and, where they are
installed, of Atari, MuJoCo, Box2D, Minigrid and Gymnasium-Robotics; policies that are random, that
persist, that learn half-way, and that follow a rule; one environment and several; each with a seed
of its own. ``PLANTED`` are faults in the rows of such a run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from cpprb_like import ReplayBuffer
from cpprb_like.integrations.gymnasium import GymnasiumRecorder

Array = Any


class OneHot(gym.ObservationWrapper[Any, Any, Any]):
    """Numbers of states as vectors, most columns of which are rarely 1."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.n = int(env.observation_space.n)
        self.observation_space = gym.spaces.Box(0, 1, (self.n,), np.float32)

    def observation(self, observation: Any) -> Any:
        return np.eye(self.n, dtype=np.float32)[observation]


class Goal(gym.Wrapper[Any, Any, Any, Any]):
    """A target for each episode, a constant, and how far the episode is, behind the observation."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        (n,) = env.observation_space.shape
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (n + 4,), np.float32)

    def _with_goal(self, obs: Any) -> Any:
        extra = [*self.goal, 1.0, self.steps / 100]
        return np.concatenate([obs, extra]).astype(np.float32)

    def reset(self, **options: Any) -> Any:
        obs, info = self.env.reset(**options)
        self.goal, self.steps = self.np_random.integers(0, 3, 2) / 2, 0
        return self._with_goal(obs), info

    def step(self, action: Any) -> Any:
        obs, *others = self.env.step(action)
        self.steps += 1
        return self._with_goal(obs), *others


class Mask(gym.Wrapper[Any, Any, Any, Any]):
    """Observations of a dict, with a mask of actions, as of Taxi."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        mask = gym.spaces.MultiBinary(int(env.action_space.n))
        self.observation_space = gym.spaces.Dict({"state": env.observation_space, "mask": mask})

    def reset(self, **options: Any) -> Any:
        obs, info = self.env.reset(**options)
        return {"state": obs, "mask": info["action_mask"]}, info

    def step(self, action: Any) -> Any:
        obs, *others, info = self.env.step(action)
        return {"state": obs, "mask": info["action_mask"]}, *others, info


def _atari(name: str, **options: Any) -> Any:
    gym.register_envs(import_module("ale_py"))
    if options:
        return gym.make(f"ALE/{name}-v5", **options)
    env = gym.make(f"ALE/{name}-v5", frameskip=1)
    return gym.wrappers.AtariPreprocessing(env, frame_skip=4, screen_size=42, noop_max=10)


def _minigrid(name: str, *, flat: bool = False) -> Any:
    minigrid: Any = import_module("minigrid.wrappers")
    gym.register_envs(minigrid)
    env = minigrid.ImgObsWrapper(gym.make(name))
    return gym.wrappers.FlattenObservation(env) if flat else env


def _robotics(name: str, **options: Any) -> Any:
    gym.register_envs(import_module("gymnasium_robotics"))
    return gym.make(name, **options)


def _made(name: str, *wrappers: Any, **options: Any) -> Callable[[], Any]:
    def make() -> Any:
        env = gym.make(name, **options)
        for wrapper in wrappers:
            env = wrapper(env)
        return env

    return make


# Environments of each package, with their maker and steps of time.
ENVIRONMENTS: dict[str, dict[str, tuple[Callable[[], Any], int]]] = {
    "gymnasium": {
        "CartPole": (_made("CartPole-v1"), 3000),
        "Pendulum": (_made("Pendulum-v1", max_episode_steps=50), 4000),
        "MountainCar": (_made("MountainCar-v0"), 4000),
        "FrozenLake, one-hot": (_made("FrozenLake-v1", OneHot), 3000),
        "Taxi, mask": (_made("Taxi-v4", Mask), 3000),
        "CartPole, goal": (_made("CartPole-v1", Goal), 3000),
        "Acrobot": (_made("Acrobot-v1", max_episode_steps=100), 4000),
        "MountainCarContinuous": (_made("MountainCarContinuous-v0", max_episode_steps=200), 4000),
        "CliffWalking": (_made("CliffWalking-v1", max_episode_steps=100), 4000),
        "CliffWalking, one-hot": (_made("CliffWalking-v1", OneHot, max_episode_steps=60), 4000),
        "FrozenLake 8x8": (_made("FrozenLake8x8-v1"), 3000),
        "Taxi": (_made("Taxi-v4"), 3000),
        "Taxi, one-hot": (_made("Taxi-v4", OneHot, max_episode_steps=50), 2000),
        "Blackjack": (_made("Blackjack-v1"), 2000),
        "CartPole, short": (_made("CartPole-v1", max_episode_steps=10), 3000),
        "Pendulum, goal": (_made("Pendulum-v1", Goal, max_episode_steps=100), 5000),
    },
    "Box2D": {
        "LunarLander": (_made("LunarLander-v3"), 4000),
        "LunarLander, continuous": (_made("LunarLander-v3", continuous=True), 4000),
        "BipedalWalker": (_made("BipedalWalker-v3", max_episode_steps=200), 4000),
    },
    "mujoco": {
        name: (_made(f"{name}-v5", max_episode_steps=steps), n)
        for name, steps, n in (
            ("Ant", 100, 3000),
            ("HalfCheetah", 100, 4000),
            ("Hopper", 100, 4000),
            ("Humanoid", 100, 2000),
            ("HumanoidStandup", 50, 2000),
            ("Walker2d", 100, 4000),
            ("Swimmer", 100, 4000),
            ("Reacher", 50, 4000),
            ("Pusher", 100, 4000),
            ("InvertedPendulum", 100, 3000),
            ("InvertedDoublePendulum", 100, 3000),
        )
    },
    "ale_py": {
        f"{name}{', RAM' * bool(options)}": (
            partial(_atari, name, **options),
            3000 if options else 1200,
        )
        for name in ("Pong", "Breakout", "MsPacman", "Freeway", "MontezumaRevenge")
        for options in ({}, {"obs_type": "ram"})
    },
    "minigrid": {
        f"{name}{', flat' * flat}": (partial(_minigrid, name, flat=flat), 3000)
        for name in (
            "MiniGrid-Empty-8x8-v0",
            "MiniGrid-DoorKey-6x6-v0",
            "MiniGrid-Dynamic-Obstacles-6x6-v0",
        )
        for flat in (False, True)
    },
    "gymnasium_robotics": {
        name: (partial(_robotics, name, max_episode_steps=50), 3000)
        for name in (
            "FetchReach-v4",
            "FetchPush-v4",
            "PointMaze_UMaze-v3",
            "AntMaze_UMaze-v5",
            "AdroitHandDoor-v1",
            "HandReach-v3",
        )
    },
}


class Run(NamedTuple):
    """One run: ``make`` gives its buffer."""

    name: str
    make: Callable[[], ReplayBuffer]


def _policies(env: Any, seed: int) -> dict[str, Callable[[Any, float], Any]]:
    """Policies by name: of an observation and the part of the run that is over."""
    rng = np.random.default_rng(seed)
    last = env.action_space.sample()

    def persists(_obs: Any, _over: float) -> Any:
        nonlocal last
        if rng.random() < 0.2:
            last = env.action_space.sample()
        return last

    def rule(obs: Any) -> Any:
        """A fixed function of the observation; of the sign of its elements."""
        space = env.action_space
        flat = (
            np.concatenate([np.ravel(part) for part in obs.values()])
            if isinstance(obs, dict)
            else np.asarray(obs[0] if isinstance(obs, tuple) else obs)
        )
        if isinstance(space, gym.spaces.Box):
            n = int(np.prod(space.shape))
            values = np.resize(np.nan_to_num(flat.reshape(-1).astype(float)), n)
            return (np.tanh(values.reshape(space.shape)) * np.minimum(space.high, 1)).astype(
                space.dtype
            )
        if isinstance(space, gym.spaces.Discrete):
            return int(space.start + abs(int(np.sum(flat * 10) + flat.size)) % space.n)
        return space.sample()

    return {
        "random": lambda _obs, _over: env.action_space.sample(),
        "persistent": persists,
        "learning": lambda obs, over: (
            rule(obs) if rng.random() < 2 * over - 0.5 else persists(0, 0)
        ),
        "from half-way on": lambda obs, over: (
            env.action_space.sample() if over < 0.5 or rng.random() < 0.1 else rule(obs)
        ),
    }


def run(make: Callable[[], Any], steps: int, policy: str, kind: str, seed: int) -> ReplayBuffer:
    """The buffer of a run: of one environment, or of four in an autoreset mode."""
    if kind in ("one", "next_of"):
        env = GymnasiumRecorder(make())
    else:
        env = GymnasiumRecorder(gym.vector.SyncVectorEnv([make] * 4, autoreset_mode=kind))
        steps = steps // 2
    n = steps * (1 if kind in ("one", "next_of") else 4)
    names = [name for name in env.env_dict if f"next_{name}" in env.env_dict]
    options: dict[str, Any] = {"next_of": names} if kind == "next_of" else {}
    fields = {
        name: spec for name, spec in env.env_dict.items() if spec.get("dtype") not in (str, object)
    }
    rb: ReplayBuffer = env.attach(ReplayBuffer(n, fields, seed=0, **options))
    obs, _ = env.reset(seed=seed)
    env.action_space.seed(seed)
    act = _policies(env, seed)[policy]
    for step in range(steps):
        obs, *_ = env.step(act(obs, step / steps))
    env.close()
    return rb


def sound_runs(n: int) -> Iterator[Run]:
    """The first ``n`` runs of the packages that are installed, each of another kind or seed."""
    makers = [
        (name, *one)
        for package, found in ENVIRONMENTS.items()
        if find_spec(package)
        for name, one in found.items()
    ]
    policies = itertools.cycle(["random", "from half-way on", "persistent", "learning"])
    kinds = itertools.cycle(["one", "NextStep", "next_of", "one", "SameStep"])
    for number, (name, make, steps) in enumerate(itertools.islice(itertools.cycle(makers), n)):
        policy, kind = next(policies), next(kinds)
        is_vector = kind.endswith("Step") and policy in ("random", "persistent")
        kind = kind if is_vector or not kind.endswith("Step") else "one"
        yield Run(
            f"{name}, {policy}, {kind}, {number}",
            partial(run, make, steps, policy, kind, number),
        )


# ---------------------------------------------------------------------- planted faults

Rows = dict[str, Any]  # values of shape (steps, environments, ...)


def _moving(rows: Rows, rng: np.random.Generator, name: str = "obs") -> int:
    """A column that has another value in nearly every step."""
    changes = (np.diff(rows[name], axis=0) != 0).mean(axis=(0, 1))
    return int(rng.choice(np.flatnonzero(changes > 0.1)))


def dead_joint(rows: Rows, rng: np.random.Generator) -> None:
    """One column of the observation has one value."""
    column = _moving(rows, rng)
    rows["obs"][..., column] = rows["next_obs"][..., column] = rng.choice([0.0, 0.37])


def dead_action(rows: Rows, rng: np.random.Generator) -> None:
    """One column of the action has one value."""
    rows["act"][..., _moving(rows, rng, "act")] = 0.0


def stuck_column(rows: Rows, rng: np.random.Generator) -> None:
    """One column of the observation stays as it is from the half of the run on."""
    column, half = _moving(rows, rng), len(rows["obs"]) // 2
    rows["next_obs"][half:, :, column] = rows["obs"][half:, :, column] = rows["obs"][
        half, :, column
    ]


def stuck_in_one(rows: Rows, rng: np.random.Generator) -> None:
    """One column of one environment has one value."""
    column = _moving(rows, rng)
    rows["obs"][:, 1, column] = rows["next_obs"][:, 1, column] = 0.37


def each_twice(rows: Rows, _rng: np.random.Generator) -> None:
    """Each row is added twice."""
    for name, values in rows.items():
        rows[name] = np.repeat(values, 2, axis=0)


def some_twice(rows: Rows, rng: np.random.Generator) -> None:
    """One in twenty rows is added twice."""
    times = 1 + (rng.random(len(rows["obs"])) < 0.05)
    for name, values in rows.items():
        rows[name] = np.repeat(values, times, axis=0)


def part_twice(rows: Rows, rng: np.random.Generator) -> None:
    """A part of the run that begins and ends within episodes is added again."""
    n, inner = len(rows["obs"]), ~(rows["terminated"] | rows["truncated"]).reshape(-1)
    start = int(rng.choice(np.flatnonzero(inner[: n // 2])))
    stop = int(rng.choice(start + 300 + np.flatnonzero(inner[start + 300 : n])))
    for name, values in rows.items():
        rows[name] = np.concatenate([values[:stop], values[start:]])


def _leak(rows: Rows, which: Array) -> None:
    step, env = np.nonzero(which[:-1])
    rows["next_obs"][step, env] = rows["obs"][step + 1, env]


def leak_at_truncations(rows: Rows, _rng: np.random.Generator) -> None:
    """At truncations the next observation is that of the reset."""
    _leak(rows, rows["truncated"] & ~rows["terminated"])


def leak_at_terminations(rows: Rows, _rng: np.random.Generator) -> None:
    """At terminations the next observation is that of the reset."""
    _leak(rows, rows["terminated"])


def leak_in_one(rows: Rows, _rng: np.random.Generator) -> None:
    """At the ends of one environment the next observation is that of the reset."""
    _leak(rows, (rows["terminated"] | rows["truncated"]) & (np.arange(4) == 2))


def leak_at_truncations_of_one(rows: Rows, _rng: np.random.Generator) -> None:
    """At truncations of one environment the next observation is that of the reset."""
    _leak(rows, rows["truncated"] & ~rows["terminated"] & (np.arange(4) == 2))


def reset_within_truncations(rows: Rows, rng: np.random.Generator) -> None:
    """At truncations the next observation is a first one, and not that of the row after."""
    ends = rows["terminated"] | rows["truncated"]
    first = rows["obs"][1:][ends[:-1]]
    which = np.nonzero(rows["truncated"] & ~rows["terminated"])
    noise = rng.uniform(0.9, 0.99, (len(which[0]), 1))
    mixed = noise * rng.choice(first, len(which[0])) + (1 - noise) * rng.choice(
        first, len(which[0])
    )
    rows["next_obs"][which] = mixed


def normalized(rows: Rows, _rng: np.random.Generator) -> None:
    """From the half of the run on observations have mean 0 and deviation 1."""
    values, half = rows["obs"].reshape(-1, rows["obs"].shape[-1]), len(rows["obs"]) // 2
    mean, deviation = values.mean(axis=0), values.std(axis=0) + 1e-6
    for name in ("obs", "next_obs"):
        rows[name][half:] = (rows[name][half:] - mean) / deviation


def other_unit(rows: Rows, _rng: np.random.Generator) -> None:
    """From the half of the run on observations are three times as large."""
    for name in ("obs", "next_obs"):
        rows[name][len(rows["obs"]) // 2 :] *= 3


class Planted(NamedTuple):
    """A fault: how it is planted, the finding that names it, its field, and environments."""

    plant: Callable[[Rows, np.random.Generator], None]
    finding: str
    field: str
    n_envs: int = 1
    ends: str = ""  # a field of ends that the run needs


PLANTED = (
    Planted(dead_joint, "constant-column", "obs"),
    Planted(dead_action, "constant-column", "act"),
    Planted(stuck_column, "frozen", "obs"),
    Planted(stuck_in_one, "frozen", "obs", 4),
    Planted(each_twice, "duplicate-rows", ""),
    Planted(some_twice, "duplicate-rows", ""),
    Planted(part_twice, "duplicate-rows", ""),
    Planted(leak_at_truncations, "lost-final-observation", "next_obs", ends="truncated"),
    Planted(leak_at_terminations, "lost-final-observation", "next_obs", ends="terminated"),
    Planted(leak_in_one, "lost-final-observation", "next_obs", 4),
    Planted(leak_at_truncations_of_one, "lost-final-observation", "next_obs", 4, "truncated"),
    Planted(reset_within_truncations, "lost-final-observation", "next_obs", ends="truncated"),
    Planted(normalized, "changed-normalization", "obs"),
    Planted(other_unit, "changed-normalization", "obs"),
)

# Environments whose observations are vectors of floats; some terminate, and all are truncated.
VECTORS: dict[str, dict[str, tuple[Callable[[], Any], int]]] = {
    "gymnasium": {
        "CartPole": (_made("CartPole-v1", max_episode_steps=12), 2400),
        "Pendulum": (_made("Pendulum-v1", max_episode_steps=50), 4000),
        "MountainCarContinuous": (_made("MountainCarContinuous-v0", max_episode_steps=60), 4000),
        "Acrobot": (_made("Acrobot-v1", max_episode_steps=80), 4000),
    },
    "Box2D": {
        "LunarLander": (_made("LunarLander-v3", continuous=True, max_episode_steps=90), 4000),
        "BipedalWalker": (_made("BipedalWalker-v3", max_episode_steps=80), 4000),
    },
    "mujoco": {
        name: (_made(f"{name}-v5", max_episode_steps=steps), 4000)
        for name, steps in (
            ("Ant", 80),
            ("HalfCheetah", 80),
            ("Hopper", 22),
            ("Humanoid", 22),
            ("Walker2d", 22),
            ("Swimmer", 80),
            ("Reacher", 50),
            ("Pusher", 80),
        )
    },
}


def faulty_runs(n: int | None = None, seed: int = 0) -> Iterator[tuple[str, Planted, ReplayBuffer]]:
    """Each fault in each of the first ``n`` installed environments that can have it."""
    installed = [found for package, found in VECTORS.items() if find_spec(package)]
    for name, (make, steps) in itertools.islice(
        ((name, one) for found in installed for name, one in found.items()), n
    ):
        sound: dict[int, Any] = {}
        for one in PLANTED:
            if one.n_envs not in sound:
                kind, times = ("one", 1) if one.n_envs == 1 else ("SameStep", 2)
                rb = run(make, steps * times, "persistent", kind, seed)
                sound[one.n_envs] = {
                    key: values.reshape(-1, one.n_envs, *values.shape[1:])
                    for key, values in rb.get_all_transitions().items()
                }
            rows = {key: values.copy() for key, values in sound[one.n_envs].items()}
            if one.ends and rows[one.ends].sum(axis=0).max() < 20:
                continue
            if one.field == "act" and (rows["act"].ndim < 3 or rows["act"].shape[-1] < 2):
                continue
            one.plant(rows, np.random.default_rng(seed))
            yield f"{name}, {one.plant.__name__}", one, filled_of(rows, one.n_envs)


def filled_of(rows: Rows, n_envs: int) -> ReplayBuffer:
    """A buffer of rows of shape (steps, environments, ...)."""
    fields: dict[str, Any] = {
        name: {"shape": v.shape[2:], "dtype": v.dtype} for name, v in rows.items()
    }
    rb = ReplayBuffer(rows["obs"].shape[0] * n_envs, fields, n_envs=n_envs, seed=0)
    rb.add(**(rows if n_envs > 1 else {name: values[:, 0] for name, values in rows.items()}))
    return rb
