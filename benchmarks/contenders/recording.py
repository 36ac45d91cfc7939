"""This package's recorder, from the results of ``env.step`` to a stored step; and an empty call.

All contenders get real steps of CartPole with random actions and ends of episodes. The steps and
resets of environments are not timed.
"""

from __future__ import annotations

from itertools import cycle, islice
from time import perf_counter
from typing import Any

import gymnasium
import numpy as np
from measure import Work, statement

from cpprb_like import GymnasiumRecorder, ReplayBuffer

from .common import STEPS
from .uniform import floor, ours


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


def environment(envs: int, mode: str) -> Any:
    """CartPole: one, or so many that step together."""
    if envs:
        options = {"autoreset_mode": gymnasium.vector.AutoresetMode[mode]}
        return gymnasium.make_vec(
            "CartPole-v1", num_envs=envs, vectorization_mode="sync", vector_kwargs=options
        )
    return gymnasium.make("CartPole-v1")


def steps_of(env: Any, mode: str) -> tuple[Any, list[tuple[Any, ...]]]:
    """The first observation, and steps: the arguments of ``add``, and of the reset that follows."""
    env.action_space.seed(0)
    first, _ = env.reset(seed=0)
    steps = []
    for _ in range(STEPS):
        action = env.action_space.sample()
        result = env.step(action)
        ended = np.logical_or(result[2], result[3])
        reset: tuple[Any, ...] | None = None
        if mode == "DISABLED" and ended.any():
            reset = (env.reset()[0],)
            if ended.ndim:
                reset = env.reset(options={"reset_mask": ended.copy()})[0], ended
        steps.append((action, *result, reset))
    return first, steps


def recorder(rows: int, envs: int, mode: str) -> tuple[GymnasiumRecorder, list[tuple[Any, ...]]]:
    """One at the begin of an episode, whose buffer is full, and the steps to come."""
    env = environment(envs, mode)
    made = GymnasiumRecorder(env)
    rb = made.attach(ReplayBuffer(rows, made.env_dict, n_envs=made.n_envs, seed=0))
    axes = (rows // made.n_envs, made.n_envs) if made.n_envs > 1 else (rows,)
    rb.add(**{field.name: np.zeros((*axes, *field.shape)) for field in rb.schema.fields})
    first, steps = steps_of(env, mode)
    made.reset(first)
    return made, steps


def recording(held: tuple[GymnasiumRecorder, list[tuple[Any, ...]]]) -> Work:
    """``add`` of the recorder, which copies the observation for the next step, and ``reset``."""
    target, steps = held
    turns = cycle(steps)

    def work(calls: int) -> float:
        add, reset = target.add, target.reset
        start = perf_counter()
        for action, obs, reward, terminated, truncated, info, first in islice(turns, calls):
            add(action, obs, reward, terminated, truncated, info)
            if first is not None:
                reset(*first)
        return perf_counter() - start

    return work


ours.works_on(recorder, record=recording)


@floor.does("record")
def record_floor(rows: int, envs: int, mode: str) -> Work:
    """A Python method without a body."""
    del rows
    _, steps = steps_of(environment(envs, mode), mode)
    names = ("action", "obs", "reward", "terminated", "truncated", "info")
    return statement(
        f"target.add({', '.join(names)})",
        target=Empty(),
        **dict(zip(names, steps[0][:-1], strict=True)),
    )
