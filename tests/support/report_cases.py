"""Sound and faulty data for reports: runs of Gymnasium's environments, and planted faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like.integrations.gymnasium import GymnasiumRecorder
from cpprb_like.samplers import Prioritized
from cpprb_like.views import Among

CAPACITY = 30_000
Policy = Callable[[Any], Any]


def record(env: Any, steps: int, policy: Policy | None = None, **options: Any) -> Any:
    """A buffer of so many time steps of an environment, with random actions by default."""
    env = GymnasiumRecorder(env)
    rb: ReplayBuffer = env.attach(ReplayBuffer(CAPACITY, env.env_dict, seed=0, **options))
    obs, _ = env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(steps):
        action = env.action_space.sample() if policy is None else policy(obs)
        obs, *_ = env.step(action)
    return rb


def swinging(obs: Any) -> int:
    """A policy that reaches the goal of MountainCar in most episodes."""
    return 2 if obs[1] > 0 else 0


class Starts(gym.Wrapper[Any, Any, Any, Any]):
    """FrozenLake, with episodes that begin at one of three tiles."""

    def reset(self, **options: Any) -> Any:
        _, info = self.env.reset(**options)
        lake: Any = self.env.unwrapped
        lake.s = int(lake.np_random.integers(3))
        return lake.s, info


class Images(gym.ObservationWrapper[Any, Any, Any]):
    """The states of FrozenLake as images: a bright tile for the agent."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = gym.spaces.Box(0, 255, (16, 16), np.uint8)

    def observation(self, observation: Any) -> Any:
        image = np.zeros((8, 2, 8, 2), np.uint8)
        image[observation // 8, :, observation % 8] = 255
        return image.reshape(16, 16)


SOUND: dict[str, Callable[[], ReplayBuffer]] = {
    "CartPole": lambda: record(gym.make("CartPole-v1"), 3000),
    "CartPole, next_of": lambda: record(gym.make("CartPole-v1"), 3000, next_of="obs"),
    "Pendulum": lambda: record(gym.make("Pendulum-v1"), 3000),
    "MountainCar": lambda: record(gym.make("MountainCar-v0"), 3000, swinging),
    "MountainCar, short": lambda: record(gym.make("MountainCar-v0", max_episode_steps=40), 3000),
    "Acrobot, short": lambda: record(gym.make("Acrobot-v1", max_episode_steps=20), 3000),
    "CartPole, short": lambda: record(gym.make("CartPole-v1", max_episode_steps=5), 3000),
    "Pendulum, short": lambda: record(gym.make("Pendulum-v1", max_episode_steps=20), 3000),
    "MountainCar, at random": lambda: record(gym.make("MountainCar-v0"), 3000),
    "MountainCarContinuous": lambda: record(
        gym.make("MountainCarContinuous-v0"), 5000, lambda obs: np.sign(obs[1:]).astype("f4")
    ),
    "Acrobot": lambda: record(gym.make("Acrobot-v1"), 3000),
    "FrozenLake": lambda: record(gym.make("FrozenLake-v1"), 3000),
    "FrozenLake, starts": lambda: record(Starts(gym.make("FrozenLake8x8-v1")), 3000),
    "FrozenLake, images": lambda: record(Images(Starts(gym.make("FrozenLake8x8-v1"))), 3000),
    "FrozenLake, short": lambda: record(gym.make("FrozenLake-v1", max_episode_steps=12), 3000),
    "Taxi": lambda: record(gym.make("Taxi-v4"), 3000),
    "Blackjack": lambda: record(gym.make("Blackjack-v1"), 3000),
    "CliffWalking": lambda: record(gym.make("CliffWalking-v1"), 5000),
    "four CartPoles": lambda: record(gym.make_vec("CartPole-v1", num_envs=4), 1000),
    "four CartPoles, same step": lambda: record(
        gym.vector.SyncVectorEnv(
            [lambda: gym.make("CartPole-v1")] * 4,
            autoreset_mode=gym.vector.AutoresetMode.SAME_STEP,
        ),
        1000,
    ),
}

# ---------------------------------------------------------------------- planted faults

CARTPOLE: dict[str, Any] = {
    "obs": {"shape": 4},
    "act": {"shape": (), "dtype": np.int64},
    "rew": {"shape": ()},
    "next_obs": {"shape": 4},
    "terminated": {"shape": (), "dtype": bool},
    "truncated": {"shape": (), "dtype": bool},
}


def rows_of(name: str, steps: int = 3000, **options: Any) -> dict[str, Any]:
    """All rows of a sound run: fields that a fault is then planted in."""
    return dict(record(gym.make(name, **options), steps).get_all_transitions())


def filled(rows: dict[str, Any], cls: Any = ReplayBuffer, **options: Any) -> Any:
    """A buffer of these rows."""
    fields = {
        name: {"shape": values.shape[1:], "dtype": values.dtype} for name, values in rows.items()
    }
    rb = cls(len(next(iter(rows.values()))), fields, seed=0, **options)
    rb.add(**rows)
    return rb


def swapped_axes() -> Any:
    """Time steps of four environments, added as steps of one."""
    rb = record(gym.make_vec("CartPole-v1", num_envs=4), 500)
    return filled(rb.get_all_transitions())


def reshaped_images() -> Any:
    """Images with the channels last, reshaped to have them first."""
    rng = np.random.default_rng(0)
    images = np.zeros((300, 48, 64, 3), np.uint8)
    for image, (x, y), color in zip(
        images, rng.integers(4, 24, (300, 2)), rng.integers(50, 200, (300, 3)), strict=True
    ):
        image[:] = 20
        image[x : x + 20, y : y + 30] = color
    rows = {"obs": images.reshape(300, 3, 48, 64), "rew": rng.normal(size=300)}
    return filled(rows)


def scaled_rewards() -> Any:
    """The rewards of the second half are a thousand times as large."""
    rows = rows_of("Pendulum-v1")
    rows["rew"][1500:] *= 1000
    return filled(rows)


def no_ends() -> Any:
    """The end flag is never set."""
    rows = rows_of("CartPole-v1")
    rows["terminated"][:] = False
    return filled(rows)


def unmarked_time_limits() -> Any:
    """Terminations are stored, and truncations are not."""
    rows = rows_of("CartPole-v1", max_episode_steps=20)
    rows["truncated"][:] = False
    return filled(rows)


def frozen() -> Any:
    """The observation stays the same from some step on."""
    rows = rows_of("CartPole-v1")
    rows["obs"][2000:] = rows["next_obs"][2000:] = rows["obs"][2000]
    return filled(rows)


def aliased() -> Any:
    """The environment returns the same array each time, so both are the newer observation."""
    rows = rows_of("CartPole-v1")
    rows["obs"] = rows["next_obs"].copy()
    return filled(rows)


def clipped() -> Any:
    """Actions are clipped to their bounds."""
    rows = rows_of("Pendulum-v1")
    rows["act"] = np.clip(4 * rows["act"], -2, 2)
    return filled(rows)


def leaking_reset() -> Any:
    """After an end comes the first observation of the next episode, as of a vector environment."""
    rows = rows_of("CartPole-v1")
    ends = np.flatnonzero(rows["terminated"].reshape(-1))
    ends = ends[ends + 1 < len(rows["obs"])]
    rows["next_obs"][ends] = rows["obs"][ends + 1]
    return filled(rows)


class ResetsInStep(gym.Wrapper[Any, Any, Any, Any]):
    """Resets in the step that ends an episode; ``key`` is the entry of the final observation."""

    def __init__(self, env: Any, key: str = "") -> None:
        super().__init__(env)
        self.key = key

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            final, (obs, _) = obs, self.env.reset()
            info = {**info, self.key: final} if self.key else info
        return obs, reward, terminated, truncated, info


def reset_in_step() -> Any:
    """A single environment returns the first observation of the next episode at an end."""
    return record(ResetsInStep(gym.make("CartPole-v1")), 3000)


def reset_in_step_of_numbers() -> Any:
    """As ``reset_in_step``; observations are numbers of states."""
    return record(ResetsInStep(Starts(gym.make("FrozenLake8x8-v1"))), 3000)


def reset_in_step_of_images() -> Any:
    """As ``reset_in_step``; observations are images."""
    return record(ResetsInStep(Images(Starts(gym.make("FrozenLake8x8-v1")))), 3000)


def zero_priorities() -> Any:
    """Some rows have the priority 0."""
    rb = filled(rows_of("CartPole-v1"), PrioritizedReplayBuffer, sampler=Prioritized(eps=0.0))
    rb.update_priorities(np.arange(500), np.zeros(500))
    return rb


def collapsed_priorities() -> Any:
    """One row has nearly all of the weight."""
    rb = filled(rows_of("CartPole-v1"), PrioritizedReplayBuffer)
    rb.update_priorities(np.arange(3000), np.full(3000, 1e-3))
    rb.update_priorities([7], [1e6])
    return rb


def weights_of_another_shape() -> Any:
    """The reward is a column, as of a field without a shape, and weights are none."""
    rows = rows_of("CartPole-v1")
    rows["rew"] = rows["rew"].reshape(-1, 1)
    return filled(rows, PrioritizedReplayBuffer)


def duplicated() -> Any:
    """Some episodes were added twice."""
    rows = rows_of("CartPole-v1", 1000)
    ends = np.flatnonzero(rows["terminated"].reshape(-1))
    part = slice(ends[2] + 1, ends[6] + 1)
    rows = {
        name: np.concatenate([values[: ends[-1] + 1], values[part]])
        for name, values in rows.items()
    }
    return filled(rows)


def not_a_number() -> Any:
    """One value is NaN."""
    rows = rows_of("Pendulum-v1", 500)
    rows["obs"][123, 1] = np.nan
    return filled(rows)


def time_limit_as_end() -> Any:
    """All episodes terminate at the time limit."""
    rows = rows_of("Pendulum-v1")
    rows["terminated"], rows["truncated"] = rows["truncated"], rows["terminated"]
    return filled(rows)


def still_stacks() -> Any:
    """Stacks whose oldest frame is last."""
    frames = np.random.default_rng(0).integers(0, 256, (103, 16, 16), dtype=np.uint8)
    stacks = np.stack([frames[3 - k : 103 - k] for k in range(4)], axis=-1)
    return filled({"obs": stacks, "rew": np.arange(100.0)}, stack_compress="obs")


def no_rewards() -> Any:
    """Rewards are not passed on."""
    rows = rows_of("CartPole-v1", 15_000)
    rows["rew"][:] = 0
    return filled(rows)


def shuffled() -> Any:
    """Rows are in random order."""
    rows = rows_of("CartPole-v1")
    order = np.random.default_rng(0).permutation(3000)
    return filled({name: values[order] for name, values in rows.items()})


def _tokens(lengths: Any, room: int = 10_000) -> ReplayBuffer:
    """Rows of so many tokens."""
    fields: dict[str, Any] = {"ids": {"shape": ("T",), "dtype": "i4"}, "rew": {"shape": ()}}
    rb = ReplayBuffer(200, fields, room={"T": room})
    for number, length in enumerate(lengths):
        rb.add(ids=np.arange(length), rew=number % 7)
    return rb


def rows_without_tokens() -> ReplayBuffer:
    """One row in ten."""
    return _tokens(number % 10 for number in range(150))


def padded_tokens() -> ReplayBuffer:
    """All rows have one length."""
    return _tokens([8] * 150)


def a_full_room() -> ReplayBuffer:
    """Room for a third of the rows."""
    return _tokens((1 + number % 10 for number in range(150)), room=300)


def few_rows_by_a_rule() -> Any:
    """A view of a few rows of a sound run."""
    rb = filled(rows_of("CartPole-v1"))
    greatest = np.sort(rb.get_all_transitions()["obs"][:, 1])[-20]
    return rb.view(Among(lambda rows: rows["obs"][:, 1] >= greatest, "obs"))


FAULTY: dict[str, tuple[Callable[[], Any], dict[str, str]]] = {
    "swapped axes": (swapped_axes, {"order-of-rows": "next_obs"}),
    "axes of images": (reshaped_images, {"swapped-axes": "obs"}),
    "rewards scaled by 1000": (scaled_rewards, {"reward-scale": "rew"}),
    "done never set": (no_ends, {"no-end": ""}),
    "time limits not stored": (unmarked_time_limits, {"unmarked-end": "next_obs"}),
    "a frozen observation": (frozen, {"frozen": "obs"}),
    "one array for all observations": (aliased, {"frozen": "obs"}),
    "actions clipped": (clipped, {"clipped-actions": "act"}),
    "a reset that leaks": (leaking_reset, {"lost-final-observation": "next_obs"}),
    "a reset within step": (reset_in_step, {"lost-final-observation": "next_obs"}),
    "a reset within step, of numbers": (
        reset_in_step_of_numbers,
        {"lost-final-observation": "next_obs"},
    ),
    "a reset within step, of images": (
        reset_in_step_of_images,
        {"lost-final-observation": "next_obs"},
    ),
    "priorities of zero": (zero_priorities, {"priority-zero": ""}),
    "priorities that collapsed": (collapsed_priorities, {"collapsed-priorities": ""}),
    "weights that become a matrix": (weights_of_another_shape, {"weights-shape": "rew"}),
    "duplicated episodes": (duplicated, {"duplicate-episodes": ""}),
    "NaN in one field": (not_a_number, {"not-finite": "obs"}),
    "time limits taken for ends": (time_limit_as_end, {"time-limit-as-end": "terminated"}),
    "stacks the wrong way round": (still_stacks, {"stack-does-not-shift": "obs"}),
    "no rewards": (no_rewards, {"no-reward-signal": "rew"}),
    "rows in no order": (shuffled, {"order-of-rows": "next_obs"}),
    "rows without tokens": (rows_without_tokens, {"empty-rows": "length of T"}),
    "padded tokens": (padded_tokens, {"same-length": "length of T"}),
    "a room that is too small": (a_full_room, {"rows-leave-early": "length of T"}),
    "few rows by a rule": (few_rows_by_a_rule, {"few-rows-by-rule": ""}),
}
