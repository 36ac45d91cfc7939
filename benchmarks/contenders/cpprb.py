"""cpprb: its buffers with the same fields and dtypes."""

from __future__ import annotations

from functools import partial
from typing import Any

import data
import numpy as np
from contender import Cannot, Peer
from cpprb import PrioritizedReplayBuffer, ReplayBuffer
from loop import Add, Sample, loop_cases
from measure import Work, statement

from .common import (
    file_cases,
    first_batch,
    importing,
    memory_cases,
    nbytes_of_row,
    priority_cases,
)
from .cpprb_calls import ADD, BATCH, DRAW, adding, adding_many, drawing

theirs = Peer(
    "cpprb",
    "Its buffers with the same fields and dtypes; many steps go into one call of add, as its "
    "documentation advises. Batches are NumPy arrays.",
)
theirs.cannot("tree_find tree_set tree_set_both", "its trees are inside its compiled module")
theirs.cannot("sequences frame_sequences", "it draws single steps")
theirs.cannot("sample_tensors", "its batches are NumPy arrays")


def env_dict(kind: str) -> dict[str, dict[str, Any]]:
    """The fields of such steps; a number has one axis of length 1, as cpprb has no other."""
    fields = data.KINDS[kind].fields.items()
    return {
        name: {"shape": shape or 1, "dtype": np.dtype(dtype)} for name, (shape, dtype) in fields
    }


def fill(rb: Any, chunk: data.Batch, **options: Any) -> Any:
    """Add these steps, an episode of their own, until the ring is full."""
    while rb.get_stored_size() < rb.get_buffer_size():
        rb.add(**chunk, **options)
        rb.on_episode_end()
    return rb


def filled(rows: int, kind: str = "small") -> Any:
    """A full buffer."""
    chunk = data.filling(rows, kind)
    return fill(ReplayBuffer(rows, env_dict(kind)), chunk)


def prioritized(rows: int) -> tuple[Any, data.CycleInputs]:
    """A full buffer of small steps with priorities, and those to come."""
    inputs = data.CycleInputs(rows, BATCH)
    rb = PrioritizedReplayBuffer(rows, env_dict("small"), alpha=data.ALPHA, eps=data.EPS)
    return fill(rb, data.random_steps(rows), priorities=inputs.first), inputs


def summing(rows: int) -> Any:
    """A full buffer of three-step sums; all in one call, as ``add`` changes the rewards."""
    nstep = {"size": 3, "gamma": data.GAMMA, "rew": "rew", "next": "next_obs"}
    return fill(ReplayBuffer(rows, env_dict("small"), Nstep=nstep), data.random_steps(rows))


def without_next(rows: int, kind: str) -> Any:
    """An empty buffer with one observation, or one frame of it, in each row."""
    fields = env_dict(kind)
    del fields["next_obs"]
    stacks = {"stack_compress": "obs"} if kind == "images" else {}
    return ReplayBuffer(rows, fields, next_of="obs", **stacks)


def compact(rows: int, kind: str) -> Any:
    """The same, full: ``next_of``, and ``stack_compress`` of images."""
    return fill(without_next(rows, kind), data.trajectory(min(data.GAME, rows), kind))


def stacked(rows: int, frames_first: bool) -> Any:
    """A full buffer that stores frames of stacks. Raises Cannot if frames are the first axis."""
    if frames_first:
        raise Cannot("frames are the last axis of its stacks")
    return fill(
        without_next(rows, "images"), data.game(np.random.default_rng(0), min(data.GAME, rows))
    )


def adding_stacks(rb: Any) -> Work:
    """Stacks that slide, an episode in a cycle; ``on_episode_end`` marks its ends."""
    steps = data.game(np.random.default_rng(1))
    return statement(
        f"{', '.join(steps)} = fresh()\n{ADD}\nif done: rb.on_episode_end()",
        rb=rb,
        fresh=data.taking_turns(*steps.values()),
    )


def drawing_contiguous(rb: Any, n: int) -> Work:
    """``sample``, and then NumPy, as the frames of a stack lie one behind another."""
    return statement(
        f"batch = rb.sample({n})\n"
        "for name in ('obs', 'next_obs'): batch[name] = contiguous(batch[name])",
        rb=rb,
        contiguous=np.ascontiguousarray,
    )


theirs.works_on(filled, add_one=adding, add_many=adding_many, add_envs=adding_many, sample=drawing)
# Of an update the nodes above the leaves wait for a draw.
priority_cases(theirs, prioritized, adding, DRAW, "batch['indexes']", "rb.update_priorities")
theirs.works_on(summing, nstep_add=adding, nstep_sample=drawing)  # ``add`` makes the sums
theirs.works_on(
    stacked,
    stacked_add=adding_stacks,
    stacked_sample=drawing,
    stacked_sample_contiguous=drawing_contiguous,
)
# ``save_transitions`` always compresses.
file_cases(
    theirs,
    filled,
    save=lambda rb, file: rb.save_transitions(file),
    load=lambda rb, file: rb.load_transitions(file),
)
theirs.does("import_time")(partial(importing, "cpprb"))
theirs.does("first_batch_time")(partial(importing, "cpprb", first_batch("cpprb")))
memory_cases(theirs, memory=filled, memory_compact=compact)


@theirs.does("stacked_nbytes")
def stacked_nbytes(rows: int, frames_first: bool) -> float:
    """Memory in use, as its arrays are out of reach."""
    theirs.shelf.clear()
    return nbytes_of_row(lambda: stacked(rows, frames_first), rows)


def replay(capacity: int) -> tuple[Add, Sample]:
    """Ends of episodes are marked as its documentation says; numbers lose their axis."""
    rb = ReplayBuffer(capacity, env_dict("small"))

    def add(step: dict[str, Any], truncated: bool) -> None:
        rb.add(**step)
        if step["done"] or truncated:
            rb.on_episode_end()

    def sample(n: int) -> data.Batch:
        batch: data.Batch = rb.sample(n)
        for name in ("act", "rew", "done"):
            batch[name] = batch[name].reshape(-1)
        return batch

    return add, sample


loop_cases(theirs, replay)
