"""Stable-Baselines3: its buffers on the CPU."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from contender import Peer
from data import GAME, GAMMA, KINDS, Batch, filling, random_steps, trajectory
from gymnasium import spaces
from loop import Add, Sample, loop_cases
from measure import Work, statement
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.save_util import load_from_pkl, save_to_pkl

from .common import STEPS, file_cases, importing, memory_cases, storing

ADD = "rb.add(obs, next_obs, act, rew, done, infos)"
BATCH = 256

theirs = Peer(
    "stable-baselines3",
    "Its buffers on the CPU, without time limits, as no step here has one. What is added has an "
    "axis of environments, as in its algorithms; batches are tensors, as they get them.",
)
theirs.cannot(
    "prioritized_add prioritized_draw prioritized_update prioritized_cycle",
    "it has no priorities",
)
theirs.cannot("tree_find tree_set tree_set_both", "it has no trees")
theirs.cannot("sequences frame_sequences", "its replay buffers draw single steps")
theirs.cannot(
    "stacked_add stacked_sample stacked_sample_contiguous stacked_nbytes",
    "it stores each stack with all frames",
)


def empty(rows: int, kind: str, make: Any = ReplayBuffer, **options: Any) -> Any:
    """A buffer for such steps."""
    fields = KINDS[kind]
    high = 255 if fields.obs_dtype == "uint8" else 1
    discrete = fields.act_dtype == "int64"
    return make(
        rows,
        spaces.Box(0, high, fields.obs_shape, np.dtype(fields.obs_dtype).type),
        spaces.Discrete(4) if discrete else spaces.Box(0, 1, fields.act_shape, np.float32),
        device="cpu",
        handle_timeout_termination=False,
        **options,
    )


def fill(rb: Any, chunk: Batch) -> Any:
    """Write these steps into its arrays until they are full: one by one they take minutes."""
    names = {
        "observations": "obs",
        "next_observations": "next_obs",
        "actions": "act",
        "rewards": "rew",
        "dones": "done",
    }
    for name, field in names.items():
        if hasattr(rb, name):  # buffers of little memory have no next observations
            column = chunk[field]
            for start in range(0, rb.buffer_size, len(column)):
                part = getattr(rb, name)[start : start + len(column)]
                part[:] = np.resize(column, part.shape)
    rb.full = True
    return rb


def filled(rows: int, kind: str = "small", envs: int = 1) -> Any:
    """A full buffer."""
    return fill(empty(rows, kind, n_envs=envs), filling(rows, kind))


def summing(rows: int) -> Any:
    """A full buffer that sums three steps of those that it draws."""
    rb = empty(rows, "small", NStepReplayBuffer, n_steps=3, gamma=GAMMA)
    return fill(rb, filling(rows, "small"))


def compact(rows: int, kind: str) -> Any:
    """A full buffer that takes next observations from the next row."""
    rb = empty(rows, kind, optimize_memory_usage=True)
    return fill(rb, trajectory(min(GAME, rows), kind))


def adding(rb: Any, kind: str = "small") -> Work:
    """``add`` of a step of each environment."""
    steps = random_steps(rb.n_envs, kind)
    return statement(ADD, rb=rb, infos=[{}] * rb.n_envs, **steps)


def adding_many(rb: Any, n: int, kind: str) -> Work:
    """``extend``, a loop in Python of its own."""
    steps = {name: column[:, None] for name, column in random_steps(n, kind).items()}
    return statement(ADD.replace("add", "extend"), rb=rb, infos=[[{}]] * n, **steps)


def drawing(rb: Any, n: int = BATCH) -> Work:
    """``sample``."""
    return statement(f"batch = rb.sample({n})", rb=rb)


def algorithm(rows: int, envs: int) -> tuple[Any, list[tuple[Any, ...]]]:
    """A DQN with a full buffer, and the arguments of ``_store_transition`` for its next steps.

    Its environments reset in the step that ends an episode, whatever the mode of others.
    """
    env = make_vec_env("CartPole-v1", n_envs=max(1, envs), seed=0)
    model = DQN("MlpPolicy", env, buffer_size=rows, device="cpu", seed=0)
    rb = model.replay_buffer
    for column in (rb.observations, rb.next_observations, rb.actions, rb.rewards, rb.dones):
        column.fill(0)
    rb.full = True
    env.action_space.seed(0)
    model._last_obs = env.reset()
    steps = []
    for _ in range(STEPS):
        action = np.array([env.action_space.sample() for _ in range(env.num_envs)])
        steps.append((rb, action, *env.step(action)))
    return model, steps


theirs.works_on(filled, add_one=adding, add_many=adding_many, add_envs=adding)
theirs.works_on(filled, sample=drawing, sample_tensors=drawing)
theirs.works_on(summing, nstep_add=adding, nstep_sample=drawing)
theirs.works_on(algorithm, record=lambda held: storing(held[0]._store_transition, held[1]))
# These functions do the work of ``save_replay_buffer`` and ``load_replay_buffer``.
file_cases(
    theirs,
    filled,
    save=lambda rb, file: save_to_pkl(file, rb),
    load=lambda _, file: load_from_pkl(file),
)
theirs.does("import_time")(partial(importing, "stable_baselines3.common.buffers"))  # with PyTorch
memory_cases(theirs, memory=filled, memory_compact=compact)


def replay(capacity: int) -> tuple[Add, Sample]:
    """``add`` of one environment, as its algorithms call it; batches are arrays on its tensors."""
    space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    options = {"device": "cpu", "handle_timeout_termination": False}
    rb = ReplayBuffer(capacity, space, spaces.Discrete(2), **options)

    def add(step: dict[str, Any], _: bool) -> None:  # a step that ran out of time is not done
        obs, following = step["obs"][None], step["next_obs"][None]
        act, rew, done = (np.array([step[name]]) for name in ("act", "rew", "done"))
        rb.add(obs, following, act, rew, done, [{}])

    def sample(n: int) -> Batch:
        batch = rb.sample(n)
        return {
            "obs": batch.observations.numpy(),
            "act": batch.actions.numpy()[:, 0],
            "rew": batch.rewards.numpy()[:, 0],
            "next_obs": batch.next_observations.numpy(),
            "done": batch.dones.numpy()[:, 0],
        }

    return add, sample


loop_cases(theirs, replay)
