"""Tianshou: priorities and the tree of them, which Numba compiles; n-step, sequences, stacks."""

from __future__ import annotations

from typing import Any

import data
import numpy as np
from contender import Cannot
from measure import Work, statement
from tianshou import data as ts
from tianshou.algorithm import Algorithm
from torch import zeros

from .common import nbytes_of_row
from .tianshou_uniform import (
    ADD,
    STORED,
    adding,
    drawing,
    filled,
    first_step,
    named,
    repeated,
    shelf,
    theirs,
)

__all__ = ["theirs"]

BATCH = 256


def prioritized(rows: int) -> tuple[Any, data.CycleInputs]:
    """A full buffer of small steps with priorities, and those to come."""
    inputs = data.CycleInputs(rows, BATCH)
    rb = ts.PrioritizedReplayBuffer(rows, alpha=data.ALPHA, beta=data.BETA)
    rb.update(filled("small", rows))
    rb.update_weight(np.arange(rows), inputs.first)
    return rb, inputs


@theirs.does("prioritized_add")
def prioritized_add(rows: int) -> Work:
    """New steps get the greatest priority."""
    return adding(shelf.get(prioritized, rows)[0], first_step("small"))


@theirs.does("prioritized_draw")
def prioritized_draw(rows: int) -> Work:
    """``sample`` with importance weights."""
    return drawing(shelf.get(prioritized, rows)[0], BATCH)


@theirs.does("prioritized_update")
def prioritized_update(rows: int) -> Work:
    """``update_weight`` of the steps of many batches in turn."""
    rb, inputs = shelf.get(prioritized, rows)
    drawn = np.array([rb.sample_indices(BATCH) for _ in inputs.fresh])
    return statement(
        "rb.update_weight(*fresh())", rb=rb, fresh=data.taking_turns(drawn, inputs.fresh)
    )


@theirs.does("prioritized_cycle")
def prioritized_cycle(rows: int) -> Work:
    """A batch, and new priorities for its steps."""
    rb, inputs = shelf.get(prioritized, rows)
    fresh = data.taking_turns(inputs.fresh)
    return drawing(rb, BATCH, "rb.update_weight(indices, fresh())", fresh=fresh)


def tree_of(leaves: int, n: int) -> tuple[Any, data.TreeInputs]:
    """A tree of sums, and what is done to it."""
    inputs = data.TreeInputs(leaves, n)
    tree = ts.SegmentTree(leaves)
    tree[np.arange(leaves)] = inputs.weights
    return tree, inputs


@theirs.does("tree_find")
def tree_find(leaves: int, n: int) -> Work:
    """``get_prefix_sum_idx``; it overwrites its targets, so it gets a copy."""
    tree, inputs = shelf.get(tree_of, leaves, n)
    fresh = data.taking_turns(inputs.targets)
    return statement("tree.get_prefix_sum_idx(fresh().copy())", tree=tree, fresh=fresh)


@theirs.does("tree_set")
def tree_set(leaves: int, n: int) -> Work:
    """Assignment to its leaves."""
    tree, inputs = shelf.get(tree_of, leaves, n)
    fresh = data.taking_turns(inputs.slots, inputs.values)
    return statement("slots, values = fresh()\ntree[slots] = values", tree=tree, fresh=fresh)


@theirs.does("nstep_add")
def nstep_add(rows: int) -> Work:
    """``add``; rewards are summed when steps are drawn."""
    return adding(shelf.get(filled, "small", rows), first_step("small"))


@theirs.does("nstep_sample")
def nstep_sample(rows: int) -> Work:
    """As its DQN does: ``sample`` and ``compute_nstep_return``, here of values that are 0."""

    def values(rb: Any, indices: Any) -> Any:
        rb.get(indices, "obs_next")
        return zeros(len(indices))

    return drawing(
        shelf.get(filled, "small", rows),
        BATCH,
        f"nstep(batch, rb, indices, values, gamma={data.GAMMA}, n_step=3)",
        nstep=Algorithm.compute_nstep_return,
        values=values,
    )


def before(rb: Any, indices: Any, length: int) -> Any:
    """The steps that lead to these; what an episode lacks of a sequence is its first step."""
    steps = [indices]
    while len(steps) < length:
        steps.append(rb.prev(steps[-1]))
    return np.stack(steps[::-1], axis=1)


def drawing_sequences(rb: Any, n: int, length: int, fields: tuple[str, ...]) -> Work:
    """``prev`` once for all fields; ``get`` with ``stack_num`` would walk back for each."""
    return statement(
        f"steps = before(rb, rb.sample_indices({n}), {length})\n"
        "batch = {name: column[steps] for name, column in columns.items()}",
        rb=rb,
        before=before,
        columns={name: getattr(rb, name) for name in fields},
    )


def long_episodes(rows: int) -> Any:
    """A full buffer of small steps in episodes that are much longer than the sequences."""
    return repeated(data.trajectory(data.GAME, "small"), rows)


@theirs.does("sequences")
def sequences(rows: int, n: int, length: int) -> Work:
    """Of the five fields."""
    fields = ("obs", "act", "rew", "obs_next", "done")
    return drawing_sequences(shelf.get(long_episodes, rows), n, length, fields)


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


def single_frames(rows: int) -> Any:
    """A full buffer of frames; it does not go without actions and rewards."""
    steps = data.random_steps(data.GAME)
    frames = np.random.default_rng(0).integers(0, 256, (data.GAME, *data.FRAME), np.uint8)
    steps |= {"obs": frames, "next_obs": frames, "done": np.arange(data.GAME) == data.GAME - 1}
    return moved(steps, rows, ignore_obs_next=True)


@theirs.does("frame_sequences")
def frame_sequences(rows: int, n: int, length: int) -> Work:
    """Of frames and the ends of episodes."""
    return drawing_sequences(shelf.get(single_frames, rows), n, length, ("obs", "done"))


def stacked(rows: int) -> Any:
    """A full buffer of stacks of which only frames are stored."""
    steps = data.game(np.random.default_rng(0), min(data.GAME, rows), frames_first=True)
    return moved(steps, rows, stack_num=data.DEPTH, ignore_obs_next=True, save_only_last_obs=True)


def stacks(rows: int, frames_first: bool) -> Any:
    """The full buffer of stacks. Raises Cannot if frames are to be the last axis."""
    if not frames_first:
        raise Cannot("frames are the first axis of its stacks")
    return shelf.get(stacked, rows)


@theirs.does("stacked_add")
def stacked_add(rows: int, frames_first: bool) -> Work:
    """Stacks that slide, an episode again and again."""
    rb = stacks(rows, frames_first)
    steps = named(data.game(np.random.default_rng(1), frames_first=True))
    add = f"{', '.join(steps)} = fresh()\n{ADD}"
    return statement(add, rb=rb, Batch=ts.Batch, fresh=data.taking_turns(*steps.values()))


@theirs.does("stacked_sample")
def stacked_sample(rows: int, frames_first: bool, n: int) -> Work:
    """``sample``."""
    return drawing(stacks(rows, frames_first), n)


@theirs.does("stacked_nbytes")
def stacked_nbytes(rows: int, frames_first: bool) -> float:
    """Its arrays."""
    rb = stacks(rows, frames_first)
    return float(sum(getattr(rb, name).nbytes for name in (*STORED, "done")) / rows)


@theirs.does("memory_compact")
def memory_compact(kind: str, rows: int) -> float:
    """``ignore_obs_next``, and of stacks the newest frames."""
    shelf.clear()
    if kind == "images":
        return nbytes_of_row(lambda: stacked(rows), rows)
    steps = data.trajectory(data.GAME, kind)
    return nbytes_of_row(lambda: moved(steps, rows, ignore_obs_next=True), rows)
