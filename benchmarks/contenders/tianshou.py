"""Tianshou: its buffers, and its tree, which Numba compiles."""

from __future__ import annotations

import pickle
from copy import copy
from functools import partial
from typing import Any

import data
import gymnasium
import numpy as np
from contender import Cannot, Peer
from loop import Add, Sample, loop_cases
from measure import Work, statement
from tianshou import data as ts
from tianshou.algorithm import Algorithm
from tianshou.env import DummyVectorEnv
from torch import zeros

from .common import (
    STEPS,
    file_cases,
    importing,
    memory_cases,
    priority_cases,
    storing,
    tree_cases,
)

BATCH = 256
DRAW = f"batch, indices = rb.sample({BATCH})"
STORED = ("obs", "act", "rew", "terminated", "truncated")
FIELDS = (*STORED, "obs_next")
ADD = f"rb.add(Batch({', '.join(f'{name}={name}' for name in FIELDS)}))"

theirs = Peer(
    "tianshou",
    "Its buffers with the same fields and dtypes; a Batch of a step is made when it is added, as "
    "its documentation does. Batches hold NumPy arrays, as its algorithms get them.",
)
theirs.cannot("tree_set_both", "its tree holds sums alone")
theirs.cannot("stacked_sample_contiguous", "frames are the first axis of its stacks")
theirs.cannot("sample_tensors", "its batches are NumPy arrays")


def named(steps: data.Batch) -> data.Batch:
    """The fields by its names; no step is cut off by a time limit."""
    done = steps["done"]
    columns = steps["obs"], steps["act"], steps["rew"], done, np.zeros_like(done), steps["next_obs"]
    return dict(zip(FIELDS, columns, strict=True))


def repeated(steps: data.Batch, rows: int) -> Any:
    """A full buffer that repeats these steps, made of arrays."""
    columns = {
        name: np.resize(column, (rows, *column.shape[1:])) for name, column in named(steps).items()
    }
    return ts.ReplayBuffer.from_data(**columns, done=columns["terminated"].copy())


def filled(rows: int, kind: str = "small") -> Any:
    """A full buffer."""
    return repeated(data.filling(rows, kind), rows)


def for_envs(rows: int, envs: int) -> Any:
    """An empty buffer for the steps of several environments."""
    return ts.VectorReplayBuffer(rows, envs)


def adding(rb: Any, kind: str = "small") -> Work:
    """``add`` of a step; its numbers are Python's."""
    step = data.one_step(kind)
    done, after = step.pop("done"), step.pop("next_obs")
    step |= {"terminated": done, "truncated": False, "obs_next": after}
    return statement(ADD, rb=rb, Batch=ts.Batch, **step)


def adding_envs(rb: Any, envs: int, kind: str) -> Work:
    """``add`` to its ``VectorReplayBuffer``."""
    return statement(ADD, rb=rb, Batch=ts.Batch, **named(data.random_steps(envs, kind)))


def adding_many(rb: Any, n: int, kind: str) -> Work:
    """``update``, which moves the steps of a small buffer that arrays were given to."""
    columns = named(data.random_steps(n, kind))
    columns["done"] = columns["terminated"]
    return statement(
        "small.set_batch(Batch(columns))\nrb.update(small)",
        rb=rb,
        small=ts.ReplayBuffer.from_data(**columns),
        Batch=ts.Batch,
        columns=columns,
    )


def drawing(rb: Any, n: int = BATCH, then: str = "pass", **names: Any) -> Work:
    """``sample``, and a further statement."""
    return statement(f"batch, indices = rb.sample({n})\n{then}", rb=rb, **names)


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
        came = {"rew": rew, "terminated": terminated, "truncated": truncated, "info": info}
        steps.append(({"obs": before, "act": act, "obs_next": after, **came}, first))
        before = after.copy()
        if first is not None:
            before[done] = first
    return ts.VectorReplayBuffer(rows, len(many)), steps


def recording(held: tuple[Any, list[tuple[Any, ...]]]) -> Work:
    """Steps 3, 6 and 12 of the loop of its ``Collector``, without hooks and statistics.

    It resets the environments itself, whatever the mode of others.
    """
    rb, steps = held
    ids = np.arange(rb.buffer_num)

    def store(came: dict[str, Any], first: Any) -> Any:
        done = np.logical_or(came["terminated"], came["truncated"])
        step = ts.Batch(**came, policy=ts.Batch(), done=done)
        rb.add(copy(step), buffer_ids=ids)
        last, _ = copy(came["obs_next"]), copy(came["info"])
        if np.sum(done) > 0:
            last[np.where(done)[0]] = first
        return last

    store(*steps[0])  # it takes its memory with the first step
    for name in FIELDS:
        getattr(rb, name).fill(0)
    return storing(store, steps)


def prioritized(rows: int) -> tuple[Any, data.CycleInputs]:
    """A full buffer of small steps with priorities, and those to come."""
    inputs = data.CycleInputs(rows, BATCH)
    rb = ts.PrioritizedReplayBuffer(rows, alpha=data.ALPHA, beta=data.BETA)
    rb.update(filled(rows))
    rb.update_weight(np.arange(rows), inputs.first)
    return rb, inputs


def tree_of(leaves: int, n: int) -> tuple[dict[str, Any], data.TreeInputs]:
    """A tree of sums, and inputs of calls."""
    inputs = data.TreeInputs(leaves, n)
    tree = ts.SegmentTree(leaves)
    tree[np.arange(leaves)] = inputs.weights
    return {"tree": tree}, inputs


def drawing_sums(rb: Any) -> Work:
    """As its DQN does: ``sample`` and ``compute_nstep_return``, here of values that are 0."""

    def values(rb: Any, indices: Any) -> Any:
        rb.get(indices, "obs_next")
        return zeros(len(indices))

    return drawing(
        rb,
        BATCH,
        f"nstep(batch, rb, indices, values, gamma={data.GAMMA}, n_step=3)",
        nstep=Algorithm.compute_nstep_return,
        values=values,
    )


def before(rb: Any, indices: Any, length: int) -> Any:
    """The steps that lead to these; the first step of an episode stands for missing ones."""
    steps = [indices]
    while len(steps) < length:
        steps.append(rb.prev(steps[-1]))
    return np.stack(steps[::-1], axis=1)


def drawing_sequences(fields: tuple[str, ...], rb: Any, n: int, length: int) -> Work:
    """``prev`` once for all fields; ``get`` with ``stack_num`` would walk back for each."""
    return statement(
        f"steps = before(rb, rb.sample_indices({n}), {length})\n"
        "batch = {name: column[steps] for name, column in columns.items()}",
        rb=rb,
        before=before,
        columns={name: getattr(rb, name) for name in fields},
    )


def moved(steps: data.Batch, rows: int, **options: Any) -> Any:
    """A full buffer with options, into which an episode was moved again and again."""
    columns = ts.Batch(named(steps))
    episode = ts.ReplayBuffer(len(columns), **options)
    for index in range(len(columns)):
        episode.add(columns[index])
    rb = ts.ReplayBuffer(rows, **options)
    while len(rb) < rows:
        rb.update(episode)
    return rb


def long_episodes(rows: int) -> Any:
    """A full buffer of small steps in episodes that are much longer than the sequences."""
    return repeated(data.trajectory(data.GAME, "small"), rows)


def single_frames(rows: int) -> Any:
    """A full buffer of frames; it does not go without actions and rewards."""
    steps = data.long_episode() | data.frames_of_episode()
    return moved(steps | {"next_obs": steps["obs"]}, rows, ignore_obs_next=True)


def stacked(rows: int, frames_first: bool) -> Any:
    """A full buffer that stores frames of stacks. Raises Cannot if frames are the last axis."""
    if not frames_first:
        raise Cannot("frames are the first axis of its stacks")
    steps = data.game(np.random.default_rng(0), min(data.GAME, rows), frames_first=True)
    return moved(steps, rows, stack_num=data.DEPTH, ignore_obs_next=True, save_only_last_obs=True)


def adding_stacks(rb: Any) -> Work:
    """Stacks that slide, an episode in a cycle."""
    steps = named(data.game(np.random.default_rng(1), frames_first=True))
    add = f"{', '.join(steps)} = fresh()\n{ADD}"
    return statement(add, rb=rb, Batch=ts.Batch, fresh=data.taking_turns(*steps.values()))


def nbytes_of_step(rb: Any, rows: int) -> float:
    """Memory of its arrays for a step."""
    return float(sum(getattr(rb, name).nbytes for name in (*STORED, "done")) / rows)


def compact(rows: int, kind: str) -> Any:
    """``ignore_obs_next``, and of stacks the newest frames."""
    if kind == "images":
        return stacked(rows, True)
    return moved(data.trajectory(data.GAME, kind), rows, ignore_obs_next=True)


theirs.works_on(filled, add_one=adding, add_many=adding_many, sample=drawing)
theirs.works_on(for_envs, add_envs=adding_envs)
theirs.works_on(collected, record=recording)
priority_cases(theirs, prioritized, adding, DRAW, "indices", "rb.update_weight")
# A search overwrites its targets, so it gets a copy.
find = "tree.get_prefix_sum_idx(targets.copy())"
tree_cases(theirs, tree_of, tree_find=find, tree_set="tree[slots] = values")
theirs.works_on(filled, nstep_add=adding, nstep_sample=drawing_sums)  # draws make the sums
theirs.works_on(
    long_episodes,
    sequences=partial(drawing_sequences, ("obs", "act", "rew", "obs_next", "done")),
)
theirs.works_on(single_frames, frame_sequences=partial(drawing_sequences, ("obs", "done")))
theirs.works_on(
    stacked, stacked_add=adding_stacks, stacked_sample=drawing, stacked_nbytes=nbytes_of_step
)
# Its HDF5 is slower.
file_cases(
    theirs,
    filled,
    save=lambda rb, file: pickle.dump(rb, file, protocol=5),
    load=lambda _, file: pickle.load(file),
)
theirs.does("import_time")(partial(importing, "tianshou.data"))  # with PyTorch and Numba
memory_cases(theirs, memory=filled, memory_compact=compact)


def replay(capacity: int) -> tuple[Add, Sample]:
    """A Batch is made for each step."""
    rb = ts.ReplayBuffer(capacity)

    def add(step: dict[str, Any], truncated: bool) -> None:
        rb.add(
            ts.Batch(
                obs=step["obs"],
                act=step["act"],
                rew=np.float32(step["rew"]),
                terminated=step["done"],
                truncated=truncated,
                obs_next=step["next_obs"],
            )
        )

    def sample(n: int) -> data.Batch:
        batch, _ = rb.sample(n)
        ours = {"next_obs": "obs_next", "done": "terminated"}
        return {name: batch[ours.get(name, name)] for name in data.KINDS["small"].fields}

    return add, sample


loop_cases(theirs, replay)
