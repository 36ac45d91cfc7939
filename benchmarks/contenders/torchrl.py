"""TorchRL: priorities, its trees in C++, n-step, sequences, stacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from contender import MEASURED_SMALL, Cannot
from data import (
    ALPHA,
    BETA,
    DEPTH,
    EPS,
    FRAME,
    GAME,
    GAMMA,
    CycleInputs,
    TreeInputs,
    game,
    random_steps,
    taking_turns,
    trajectory,
)
from measure import Work, statement
from tensordict import TensorDict
from torchrl._torchrl import MinSegmentTreeFp64, SumSegmentTreeFp64
from torchrl.data import LazyTensorStorage, PrioritizedReplayBuffer, ReplayBuffer, SliceSampler
from torchrl.envs.transforms import CatFrames, MultiStepTransform, NextStateReconstructor

from .common import nbytes_of_row
from .torchrl_uniform import Steps, adding, drawing, fill, nested, shelf, tensors, theirs

__all__ = ["theirs"]

BATCH = 256
NSTEPS = 3
TRANSFORMED = 1000  # steps that its n-step transform gets at once: it compares each with each
DRAW = "batch, info = rb.sample(return_info=True)"

theirs.cannot("save_large load_large save_again", MEASURED_SMALL)
theirs.cannot("record", "it leaves to the program which observation came before a step")
theirs.cannot("stacked_sample_contiguous", "CatFrames fails where frames are the last axis")


def prioritized(rows: int) -> tuple[Any, CycleInputs]:
    """A full buffer of small steps with priorities, and those to come."""
    inputs = CycleInputs(rows, BATCH)
    rb = PrioritizedReplayBuffer(
        alpha=ALPHA, beta=BETA, eps=EPS, storage=LazyTensorStorage(rows), batch_size=BATCH
    )
    fill(rb, tensors(random_steps(rows)), rows)
    rb.update_priority(torch.arange(rows), torch.from_numpy(inputs.first).float())
    return rb, inputs


@theirs.does("prioritized_add")
def prioritized_add(rows: int) -> Work:
    """New steps get the greatest priority."""
    return adding(shelf.get(prioritized, rows)[0], "small")


@theirs.does("prioritized_draw")
def prioritized_draw(rows: int) -> Work:
    """A dict of tensors, and the weights beside it; its trees are no part of what compiles."""
    return statement(DRAW, rb=shelf.get(prioritized, rows)[0])


@theirs.does("prioritized_update")
def prioritized_update(rows: int) -> Work:
    """``update_priority``, of rows that were drawn before."""
    rb, inputs = shelf.get(prioritized, rows)
    drawn = [rb.sample(return_info=True)[1]["index"].numpy() for _ in inputs.fresh]
    fresh = taking_turns(torch.from_numpy(np.array(drawn)), torch.from_numpy(inputs.fresh).float())
    return statement("rb.update_priority(*fresh())", rb=rb, fresh=fresh)


@theirs.does("prioritized_cycle")
def prioritized_cycle(rows: int) -> Work:
    """A batch, and new priorities for its steps."""
    rb, inputs = shelf.get(prioritized, rows)
    fresh = taking_turns(torch.from_numpy(inputs.fresh).float())
    return statement(f"{DRAW}\nrb.update_priority(info['index'], fresh())", rb=rb, fresh=fresh)


def tree(make: Callable[[int], Any], inputs: TreeInputs) -> Any:
    """One of its trees, with these weights."""
    leaves = inputs.weights.size
    made = make(leaves)
    made[np.arange(leaves)] = inputs.weights
    return made


@theirs.does("tree_find")
def tree_find(leaves: int, n: int) -> Work:
    """``scan_lower_bound``."""
    inputs = TreeInputs(leaves, n)
    return statement(
        "sums.scan_lower_bound(fresh())",
        sums=tree(SumSegmentTreeFp64, inputs),
        fresh=taking_turns(inputs.targets),
    )


@theirs.does("tree_set")
def tree_set(leaves: int, n: int) -> Work:
    """Assignment to items."""
    inputs = TreeInputs(leaves, n)
    return statement(
        "slots, values = fresh()\nsums[slots] = values",
        sums=tree(SumSegmentTreeFp64, inputs),
        fresh=taking_turns(inputs.slots, inputs.values),
    )


@theirs.does("tree_set_both")
def tree_set_both(leaves: int, n: int) -> Work:
    """Assignment to the items of two trees."""
    inputs = TreeInputs(leaves, n)
    return statement(
        "slots, values = fresh()\nsums[slots] = values\nleast[slots] = values",
        sums=tree(SumSegmentTreeFp64, inputs),
        least=tree(MinSegmentTreeFp64, inputs),
        fresh=taking_turns(inputs.slots, inputs.values),
    )


def summing(rows: int) -> Any:
    """A full buffer that sums three steps when they are added."""
    steps = random_steps(min(rows, 100 * TRANSFORMED))
    rb = ReplayBuffer(
        storage=LazyTensorStorage(rows, compilable=True),
        transform=MultiStepTransform(n_steps=NSTEPS, gamma=GAMMA),
        compilable=True,
    )
    chunks = nested(steps).split(TRANSFORMED)
    while len(rb) < rows:
        for chunk in chunks:
            rb.extend(chunk)
    return rb


@theirs.does("nstep_add")
def nstep_add(rows: int) -> Work:
    """``extend`` by one step, which sums with those before it."""
    rb = shelf.get(summing, rows)
    return statement("rb.extend(nested(step))", rb=rb, nested=nested, step=random_steps(1))


@theirs.does("nstep_sample")
def nstep_sample(rows: int) -> Work:
    """``sample`` of sums that are there, compiled."""
    return drawing(shelf.get(summing, rows), BATCH)


def slices(steps: Steps, rows: int, length: int) -> Any:
    """A full buffer of sequences. It remembers where episodes end, as nothing is added."""
    rb = ReplayBuffer(
        storage=LazyTensorStorage(rows, compilable=True),
        sampler=SliceSampler(
            slice_len=length, end_key="done", cache_values=True, truncated_key=None
        ),
        compilable=True,
    )
    whole = {name: np.resize(column, (rows, *column.shape[1:])) for name, column in steps.items()}
    rb.extend(TensorDict(tensors(whole), [rows]))
    return rb


def small_slices(rows: int, length: int) -> Any:
    """Sequences of small steps."""
    return slices(random_steps(GAME) | {"done": np.arange(GAME) == GAME - 1}, rows, length)


def frame_slices(rows: int, length: int) -> Any:
    """Sequences of frames."""
    frames = np.random.default_rng(0).integers(0, 256, (GAME, *FRAME), np.uint8)
    return slices({"obs": frames, "done": np.arange(GAME) == GAME - 1}, rows, length)


@theirs.does("sequences")
def sequences(rows: int, n: int, length: int) -> Work:
    """``SliceSampler``; the sequences are one behind another on one axis."""
    return drawing(shelf.get(small_slices, rows, length), n * length)


@theirs.does("frame_sequences")
def frame_sequences(rows: int, n: int, length: int) -> Work:
    """``SliceSampler``, as of steps."""
    return drawing(shelf.get(frame_slices, rows, length), n * length)


def frames_of(steps: Steps) -> Steps:
    """Of each stack the newest frame alone."""
    return steps | {name: steps[name][:, -1:] for name in ("obs", "next_obs")}


def stacked(rows: int) -> Any:
    """A full buffer of frames of which stacks are made when they are drawn.

    Each frame is stored twice: its next observations are stored. Stacks never need padding, as
    what is drawn has its frames; the one that is asked for takes less than the default.
    """
    frames = CatFrames(
        N=DEPTH, dim=-3, in_keys=["obs"], out_keys=["stack"], reset_key="_reset", padding="constant"
    )
    transform, sampler = frames.make_rb_transform_and_sampler(
        batch_size=None, end_key=("next", "done"), cache_values=True, truncated_key=None
    )
    rb = ReplayBuffer(storage=LazyTensorStorage(rows), sampler=sampler, transform=transform)
    steps = game(np.random.default_rng(0), min(GAME, rows), frames_first=True)
    return fill(rb, nested(frames_of(steps)), rows)


def stacks(rows: int, frames_first: bool) -> Any:
    """The full buffer of stacks. Raises Cannot if frames are to be the last axis."""
    if not frames_first:
        raise Cannot("CatFrames fails where frames are the last axis")
    return shelf.get(stacked, rows)


@theirs.does("stacked_add")
def stacked_add(rows: int, frames_first: bool) -> Work:
    """``extend`` by a newest frame, an episode again and again; its TensorDicts are there."""
    rb = stacks(rows, frames_first)
    steps = nested(frames_of(game(np.random.default_rng(1), frames_first=True)))
    return statement("rb.extend(fresh())", rb=rb, fresh=taking_turns(steps.split(1)))


@theirs.does("stacked_sample")
def stacked_sample(rows: int, frames_first: bool, n: int) -> Work:
    """``sample`` with the transform and the sampler that CatFrames makes for a buffer."""
    return statement(f"batch = rb.sample({n})", rb=stacks(rows, frames_first))


@theirs.does("stacked_nbytes")
def stacked_nbytes(rows: int, frames_first: bool) -> float:
    """What its tensors take for a step."""
    return float(stacks(rows, frames_first).storage[:].bytes()) / rows


def compact(rows: int) -> Any:
    """A full buffer of steps without next observations: neighbours have them, drawn together."""
    rb = ReplayBuffer(
        storage=LazyTensorStorage(rows),
        sampler=SliceSampler(slice_len=2, end_key=("next", "done"), truncated_key=None),
        transform=NextStateReconstructor(["obs"], traj_key=None),
    )
    steps = nested(trajectory(min(rows, 100 * GAME), "small")).exclude(("next", "obs"))
    return fill(rb, steps, rows)


@theirs.does("memory_compact")
def memory_compact(kind: str, rows: int) -> float:
    """Next observations left out, of which only slices of steps are drawn; CatFrames of images."""
    shelf.clear()
    make = {"small": compact, "images": stacked}[kind]
    return nbytes_of_row(lambda: make(rows), rows)
