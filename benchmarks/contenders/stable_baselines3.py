"""Stable-Baselines3: its buffers on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from contender import IMPORTS_MORE, MEASURED_SMALL, Contender, Shelf
from data import GAME, GAMMA, KINDS, Batch, filling, random_steps, trajectory
from gymnasium import spaces
from loop import loop_cases
from measure import Work, statement
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.save_util import load_from_pkl, save_to_pkl

from .common import STEPS, importing, nbytes_of_row, saving_and_loading, storing

__all__ = ["theirs"]

ADD = "rb.add(obs, next_obs, act, rew, done, infos)"
BATCH = 256

theirs = Contender(
    "stable-baselines3",
    "Its buffers on the CPU, without time limits, as no step here has one. What is added has an "
    "axis of environments, as in its algorithms; batches are tensors, as they get them.",
)
theirs.cannot("save_large load_large save_again", MEASURED_SMALL)
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
shelf = Shelf()


def empty(kind: str, rows: int, make: Any = ReplayBuffer, **options: Any) -> Any:
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
    """Write these steps again and again into its arrays: added one by one they take minutes."""
    names = {
        "observations": "obs",
        "next_observations": "next_obs",
        "actions": "act",
        "rewards": "rew",
        "dones": "done",
    }
    for name, field in names.items():
        if hasattr(rb, name):  # those that use little memory have no next observations
            column = chunk[field]
            for start in range(0, rb.buffer_size, len(column)):
                part = getattr(rb, name)[start : start + len(column)]
                part[:] = np.resize(column, part.shape)
    rb.full = True
    return rb


def filled(kind: str, rows: int, make: Any = ReplayBuffer, **options: Any) -> Any:
    """A full buffer."""
    chunk = filling(rows, kind)
    return fill(empty(kind, rows, make, **options), chunk)


def adding(rb: Any, kind: str) -> Work:
    """``add`` of a step of each environment."""
    steps = random_steps(rb.n_envs, kind)
    return statement(ADD, rb=rb, infos=[{}] * rb.n_envs, **steps)


@theirs.does("add_one")
def add_one(kind: str, rows: int) -> Work:
    """``add`` of one environment."""
    return adding(shelf.get(filled, kind, rows), kind)


@theirs.does("add_many")
def add_many(kind: str, rows: int, n: int) -> Work:
    """``extend``, a loop in Python of its own."""
    steps = {name: column[:, None] for name, column in random_steps(n, kind).items()}
    extend = ADD.replace("add", "extend")
    return statement(extend, rb=shelf.get(filled, kind, rows), infos=[[{}]] * n, **steps)


def algorithm(rows: int, envs: int) -> tuple[Any, list[tuple[Any, ...]]]:
    """A DQN at the begin of an episode, and what its environments return for its next steps.

    Its buffer is full.
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


@theirs.does("record")
def record(rows: int, envs: int, mode: str) -> Work:
    """``_store_transition``, which its algorithms call with what the environments returned.

    Its environments reset in the step that ends an episode, whatever the mode of others.
    """
    del mode
    model, steps = shelf.get(algorithm, rows, envs)
    return storing(model._store_transition, steps)


def for_envs(kind: str, rows: int, envs: int) -> Any:
    """A full buffer of several environments."""
    return filled(kind, rows, n_envs=envs)


@theirs.does("add_envs")
def add_envs(kind: str, rows: int, envs: int) -> Work:
    """``add`` to a buffer of as many environments."""
    return adding(shelf.get(for_envs, kind, rows, envs), kind)


@theirs.does("sample")
@theirs.does("sample_tensors")
def sample(kind: str, rows: int, n: int) -> Work:
    """``sample``."""
    return statement(f"batch = rb.sample({n})", rb=shelf.get(filled, kind, rows))


def summing(rows: int) -> Any:
    """A full buffer that sums three steps."""
    return filled("small", rows, NStepReplayBuffer, n_steps=3, gamma=GAMMA)


@theirs.does("nstep_add")
def nstep_add(rows: int) -> Work:
    """Steps are summed when they are drawn."""
    return adding(shelf.get(summing, rows), "small")


@theirs.does("nstep_sample")
def nstep_sample(rows: int) -> Work:
    """``sample`` of its ``NStepReplayBuffer``."""
    return statement(f"batch = rb.sample({BATCH})", rb=shelf.get(summing, rows))


@theirs.does_all("save", "save_synchronised", "load")
def files(rows: int) -> tuple[Work, Work, Work]:
    """What its algorithms do in ``save_replay_buffer`` and ``load_replay_buffer``."""
    rb = shelf.get(filled, "small", rows)
    return saving_and_loading(lambda file: save_to_pkl(file, rb), load_from_pkl)


theirs.cannot("first_batch_time", IMPORTS_MORE)


@theirs.does("import_time")
def import_time() -> Work:
    """The module of its buffers, and PyTorch with it."""
    return importing("stable_baselines3.common.buffers")


@theirs.does("memory")
def memory(kind: str, rows: int) -> float:
    """Both observations stored."""
    shelf.clear()
    return nbytes_of_row(lambda: filled(kind, rows), rows)


@theirs.does("memory_compact")
def memory_compact(kind: str, rows: int) -> float:
    """``optimize_memory_usage``: next observations are those of the next row."""
    shelf.clear()
    steps = trajectory(min(GAME, rows), kind)
    return nbytes_of_row(lambda: fill(empty(kind, rows, optimize_memory_usage=True), steps), rows)


class Replay:
    """Its buffer as the training loop wants it."""

    def __init__(self, capacity: int) -> None:
        space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.rb = ReplayBuffer(
            capacity, space, spaces.Discrete(2), device="cpu", handle_timeout_termination=False
        )

    def add(
        self, obs: Any, act: int, rew: float, next_obs: Any, done: bool, truncated: bool
    ) -> None:
        """``add`` of one environment, as its algorithms call it."""
        del truncated  # a step that merely ran out of time is not done
        self.rb.add(
            obs[None],
            next_obs[None],
            np.array([act]),
            np.array([rew]),
            np.array([done]),
            [{}],
        )

    def sample(self, n: int) -> Batch:
        """Its tensors, seen as arrays."""
        batch = self.rb.sample(n)
        return {
            "obs": batch.observations.numpy(),
            "act": batch.actions.numpy()[:, 0],
            "rew": batch.rewards.numpy()[:, 0],
            "next_obs": batch.next_observations.numpy(),
            "done": batch.dones.numpy()[:, 0],
        }


loop_cases(theirs, Replay)
