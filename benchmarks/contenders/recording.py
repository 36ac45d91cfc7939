"""From what ``env.step`` returned to a stored step: this package's recorder, and an empty call."""

from __future__ import annotations

from typing import Any

import gymnasium
from measure import Work, statement

from cpprb_like import GymnasiumRecorder, ReplayBuffer

from .uniform import floor, ours, shelf

__all__ = ["floor", "ours"]

RECORD = "target.add(action, obs, reward, terminated, truncated, info)"


class Empty:
    """A method that takes a step and does nothing."""

    def add(
        self,
        action: object,
        obs: object,
        reward: object,
        terminated: object,
        truncated: object,
        info: object,
    ) -> None:
        """Nothing."""


def environment(envs: int) -> Any:
    """CartPole: one, or so many that step together."""
    if envs:
        return gymnasium.make_vec("CartPole-v1", num_envs=envs, vectorization_mode="sync")
    return gymnasium.make("CartPole-v1")


def step_of(env: Any) -> dict[str, Any]:
    """A step in the middle of an episode."""
    env.action_space.seed(0)
    action = env.action_space.sample()
    names = ("obs", "reward", "terminated", "truncated", "info")
    return {"action": action, **dict(zip(names, env.step(action), strict=True))}


def recorder(rows: int, envs: int) -> tuple[GymnasiumRecorder, dict[str, Any]]:
    """One in the middle of an episode, and the step that follows."""
    env = environment(envs)
    made = GymnasiumRecorder(env)
    made.attach(ReplayBuffer(rows, made.env_dict, n_envs=made.n_envs, seed=0))
    made.reset(seed=0)
    return made, step_of(env)


@ours.does("record")
def record(rows: int, envs: int) -> Work:
    """``add`` of the recorder, which keeps a copy of the observation for the next step."""
    target, step = shelf.get(recorder, rows, envs)
    return statement(RECORD, target=target, **step)


@floor.does("record")
def record_floor(rows: int, envs: int) -> Work:
    """A Python method without a body."""
    del rows
    env = environment(envs)
    env.reset(seed=0)
    return statement(RECORD, target=Empty(), **step_of(env))
