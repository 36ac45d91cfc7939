"""Tianshou: adding, uniform sampling, memory, files, import."""

from __future__ import annotations

import pickle
from copy import copy
from typing import Any

import data
import gymnasium
import numpy as np
from contender import IMPORTS_MORE, MEASURED_SMALL, Contender, Shelf
from loop import loop_cases
from measure import Work, statement
from tianshou import data as ts
from tianshou.env import DummyVectorEnv

from .common import STEPS, importing, nbytes_of_row, saving_and_loading, storing

__all__ = [
    "ADD",
    "STORED",
    "adding",
    "drawing",
    "filled",
    "first_step",
    "named",
    "repeated",
    "shelf",
    "theirs",
]

STORED = ("obs", "act", "rew", "terminated", "truncated")
FIELDS = (*STORED, "obs_next")
ADD = f"rb.add(Batch({', '.join(f'{name}={name}' for name in FIELDS)}))"

theirs = Contender(
    "tianshou",
    "Its buffers with the same fields and dtypes; a Batch of a step is made when it is added, as "
    "its documentation does. Batches hold NumPy arrays, as its algorithms get them.",
)
theirs.cannot("save_large load_large save_again", MEASURED_SMALL)
theirs.cannot("tree_set_both", "its tree holds sums alone")
theirs.cannot("stacked_sample_contiguous", "frames are the first axis of its stacks")
theirs.cannot("sample_tensors", "its batches are NumPy arrays")
shelf = Shelf()


def named(steps: data.Batch) -> data.Batch:
    """The fields by its names; no step is cut off by a time limit."""
    done = steps["done"]
    columns = steps["obs"], steps["act"], steps["rew"], done, np.zeros_like(done), steps["next_obs"]
    return dict(zip(FIELDS, columns, strict=True))


def first_step(kind: str) -> dict[str, Any]:
    """One step; its numbers are Python's."""
    step = data.one_step(kind)
    done, after = step.pop("done"), step.pop("next_obs")
    return step | {"terminated": done, "truncated": False, "obs_next": after}


def repeated(steps: data.Batch, rows: int) -> Any:
    """A full buffer that holds these steps again and again, made of arrays."""
    columns = {
        name: np.resize(column, (rows, *column.shape[1:])) for name, column in named(steps).items()
    }
    return ts.ReplayBuffer.from_data(**columns, done=columns["terminated"].copy())


def filled(kind: str, rows: int) -> Any:
    """A full buffer."""
    return repeated(data.filling(rows, kind), rows)


def adding(rb: Any, step: dict[str, Any]) -> Work:
    """``add`` of a step, or of one of each environment."""
    return statement(ADD, rb=rb, Batch=ts.Batch, **step)


def drawing(rb: Any, n: int, then: str = "pass", **names: Any) -> Work:
    """``sample``, and what follows."""
    return statement(f"batch, indices = rb.sample({n})\n{then}", rb=rb, **names)


@theirs.does("add_one")
def add_one(kind: str, rows: int) -> Work:
    """``add``."""
    return adding(shelf.get(filled, kind, rows), first_step(kind))


@theirs.does("add_many")
def add_many(kind: str, rows: int, n: int) -> Work:
    """``update``, which moves the steps of a small buffer that arrays were given to."""
    columns = named(data.random_steps(n, kind))
    columns["done"] = columns["terminated"]
    return statement(
        "small.set_batch(Batch(columns))\nrb.update(small)",
        rb=shelf.get(filled, kind, rows),
        small=ts.ReplayBuffer.from_data(**columns),
        Batch=ts.Batch,
        columns=columns,
    )


@theirs.does("add_envs")
def add_envs(kind: str, rows: int, envs: int) -> Work:
    """``add`` to its ``VectorReplayBuffer``."""
    rb = shelf.get(ts.VectorReplayBuffer, rows, envs)
    return adding(rb, named(data.random_steps(envs, kind)))


def collected(rows: int, envs: int) -> tuple[Any, list[tuple[Any, ...]]]:
    """An empty buffer, and steps of its environments with the first observations after them."""
    many = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1")] * max(1, envs))
    space = gymnasium.spaces.MultiDiscrete([2] * len(many), seed=0)
    before, _ = many.reset(seed=0)
    steps = []
    for _ in range(STEPS):
        act = space.sample()
        after, rew, terminated, truncated, info = many.step(act)
        done = np.logical_or(terminated, truncated)
        first = many.reset(env_id=np.flatnonzero(done))[0] if done.any() else None
        steps.append((before, act, after, rew, terminated, truncated, info, first))
        before = after.copy()
        if first is not None:
            before[done] = first
    return ts.VectorReplayBuffer(rows, len(many)), steps


@theirs.does("record")
def record(rows: int, envs: int, mode: str) -> Work:
    """What its ``Collector`` does in steps 3, 6 and 12 of its loop, without hooks and statistics.

    It resets the environments itself, whatever the mode of others.
    """
    del mode
    rb, steps = shelf.get(collected, rows, envs)
    ids = np.arange(rb.buffer_num)

    def store(
        before: Any,
        act: Any,
        after: Any,
        rew: Any,
        terminated: Any,
        truncated: Any,
        info: Any,
        first: Any,
    ) -> Any:
        done = np.logical_or(terminated, truncated)
        step = ts.Batch(
            obs=before,
            act=act,
            policy=ts.Batch(),
            obs_next=after,
            rew=rew,
            terminated=terminated,
            truncated=truncated,
            done=done,
            info=info,
        )
        rb.add(copy(step), buffer_ids=ids)
        last, _ = copy(after), copy(info)
        if np.sum(done) > 0:
            last[np.where(done)[0]] = first
        return last

    store(*steps[0])  # it takes its memory with the first step
    for name in FIELDS:
        getattr(rb, name).fill(0)
    return storing(store, steps)


@theirs.does("sample")
def sample(kind: str, rows: int, n: int) -> Work:
    """``sample``."""
    return drawing(shelf.get(filled, kind, rows), n)


@theirs.does_all("save", "save_synchronised", "load")
def files(rows: int) -> tuple[Work, Work, Work]:
    """``pickle`` of the buffer, which is faster than its HDF5."""
    rb = shelf.get(filled, "small", rows)
    return saving_and_loading(lambda file: pickle.dump(rb, file, protocol=5), pickle.load)


theirs.cannot("first_batch_time", IMPORTS_MORE)


@theirs.does("import_time")
def import_time() -> Work:
    """The module of its buffers, and PyTorch and Numba with it."""
    return importing("tianshou.data")


@theirs.does("memory")
def memory(kind: str, rows: int) -> float:
    """Both observations stored."""
    shelf.clear()
    return nbytes_of_row(lambda: filled(kind, rows), rows)


class Replay:
    """Its buffer as the training loop wants it."""

    def __init__(self, capacity: int) -> None:
        self.rb = ts.ReplayBuffer(capacity)

    def add(
        self, obs: Any, act: int, rew: float, next_obs: Any, done: bool, truncated: bool
    ) -> None:
        """``add`` of a Batch."""
        self.rb.add(
            ts.Batch(
                obs=obs,
                act=act,
                rew=np.float32(rew),
                terminated=done,
                truncated=truncated,
                obs_next=next_obs,
            )
        )

    def sample(self, n: int) -> data.Batch:
        """The arrays of its Batch."""
        batch, _ = self.rb.sample(n)
        return {
            "obs": batch.obs,
            "act": batch.act,
            "rew": batch.rew,
            "next_obs": batch.obs_next,
            "done": batch.terminated,
        }


loop_cases(theirs, Replay)
