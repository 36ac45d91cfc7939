"""This package and its floors: n-step sums, stacked frames, sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
from data import (
    DEPTH,
    FRAME,
    GAME,
    GAMMA,
    Batch,
    filling,
    game,
    one_step,
    random_steps,
    taking_turns,
)
from floors.sequences import SequenceFloor
from floors.steps import Floor
from measure import Work, compiled, statement

from cpprb_like import ReplayBuffer, Sequences
from cpprb_like.typing import FieldSpec, NstepSpec

from .uniform import ADD, env_dict, fill, filled, floor, ours, shelf
from .weighted import plain

__all__ = ["adding_stacks"]

BATCH = 256
NSTEP: NstepSpec = {"size": 3, "gamma": GAMMA, "rew": "rew", "next": "next_obs"}


def summing(rows: int) -> ReplayBuffer:
    """A full buffer of random steps that are read as three steps."""
    rb = ReplayBuffer(rows, env_dict("small"), Nstep=NSTEP, seed=0)
    return fill(rb, filling(rows, "small"))


@ours.does("nstep_add")
def nstep_add(rows: int) -> Work:
    """Steps are summed when they are drawn."""
    return statement(ADD, target=shelf.get(summing, rows), **one_step("small"))


@plain.does("nstep_add")
def nstep_add_plain(rows: int) -> Work:
    """Of single steps."""
    return statement(ADD, target=filled("small", rows), **one_step("small"))


@ours.does("nstep_sample")
def nstep_sample(rows: int) -> Work:
    """``sample`` with ``Nstep``."""
    return statement(f"batch = rb.sample({BATCH})", rb=shelf.get(summing, rows))


@plain.does("nstep_sample")
def nstep_sample_plain(rows: int) -> Work:
    """Of single steps."""
    return statement(f"batch = rb.sample({BATCH})", rb=filled("small", rows))


def long_episodes(rows: int) -> ReplayBuffer:
    """A full buffer of small steps in episodes that are much longer than the sequences."""
    steps = random_steps(GAME) | {"done": np.arange(GAME) == GAME - 1}
    return fill(ReplayBuffer(rows, env_dict("small"), seed=0), steps)


@ours.does("sequences")
def sequences(rows: int, n: int, length: int) -> Work:
    """A view of sequences."""
    rb = shelf.get(long_episodes, rows)
    return statement(f"batch = view.sample({n})", view=rb.view(Sequences(length)))


@ours.does("sequences_across")
def sequences_across(rows: int, n: int, length: int) -> Work:
    """A view of sequences that may run on into the next episode."""
    rb = shelf.get(long_episodes, rows)
    view = rb.view(Sequences(length, across_episodes=True))
    return statement(f"batch = view.sample({n})", view=view)


@floor.does("sequences")
@floor.does("sequences_across")
def sequences_floor(rows: int, n: int, length: int) -> Work:
    """A loop that copies as many rows into columns, wherever they start."""
    rb = shelf.get(long_episodes, rows)
    view = rb.view(Sequences(length))
    batches = view.sample(n), view.sample(n)
    return compiled(SequenceFloor(rb).sequences(batches, length))


def single_frames(rows: int) -> ReplayBuffer:
    """A full buffer of frames."""
    frames = {
        "obs": np.random.default_rng(0).integers(0, 256, (GAME, *FRAME), np.uint8),
        "done": np.arange(GAME) == GAME - 1,
    }
    fields: dict[str, FieldSpec] = {
        "obs": {"shape": FRAME, "dtype": np.uint8},
        "done": {"dtype": np.bool_},
    }
    return fill(ReplayBuffer(rows, fields, seed=0), frames)


@ours.does("frame_sequences")
def frame_sequences(rows: int, n: int, length: int) -> Work:
    """A view of sequences."""
    rb = shelf.get(single_frames, rows)
    return statement(f"batch = view.sample({n})", view=rb.view(Sequences(length)))


@floor.does("frame_sequences")
def frame_sequences_floor(rows: int, n: int, length: int) -> Work:
    """Memcpy of as many frames that lie together."""
    return compiled(SequenceFloor(shelf.get(single_frames, rows)).copy_runs("obs", n, length))


def stacked(rows: int, frames_first: bool) -> ReplayBuffer:
    """A full buffer of stacks of which only frames are stored."""
    shape, axis = ((DEPTH, *FRAME), 0) if frames_first else ((*FRAME, DEPTH), -1)
    fields: dict[str, FieldSpec] = {
        "obs": {"shape": shape, "dtype": np.uint8},
        "act": {"shape": (), "dtype": np.int64},
        "rew": {"shape": ()},
        "done": {"shape": (), "dtype": np.bool_},
    }
    rb = ReplayBuffer(rows, fields, next_of="obs", stack_compress={"obs": axis}, seed=0)
    rng = np.random.default_rng(0)
    while rb.ring.stored < rows:
        steps = min(GAME, rows - rb.ring.stored)
        rb.add(**game(rng, steps, frames_first=frames_first))
    return rb


def adding_stacks(target: Any, steps: Batch) -> Work:
    """Adds the steps of an episode one by one, again and again."""
    names = ", ".join(steps)
    fields = ", ".join(f"{name}={name}" for name in steps)
    fresh = taking_turns(*steps.values())
    return statement(f"{names} = fresh()\ntarget.add({fields})", target=target, fresh=fresh)


@ours.does("stacked_add")
def stacked_add(rows: int, frames_first: bool) -> Work:
    """Stacks that slide, an episode again and again."""
    steps = game(np.random.default_rng(1), frames_first=frames_first)
    return adding_stacks(shelf.get(stacked, rows, frames_first), steps)


@ours.does("stacked_sample")
@ours.does("stacked_sample_contiguous")
def stacked_sample(rows: int, frames_first: bool, n: int) -> Work:
    """Batches are C-contiguous, whatever the order of the axes."""
    return statement(f"batch = rb.sample({n})", rb=shelf.get(stacked, rows, frames_first))


@floor.does("stacked_sample")
@floor.does("stacked_sample_contiguous")
def stacked_sample_floor(rows: int, frames_first: bool, n: int) -> Work:
    """Memcpy of pairs that are stored whole."""
    del frames_first
    whole = filled("images", rows)
    return compiled(Floor(whole).copy_pairs(whole.sample(n)))


@ours.does("stacked_nbytes")
def stacked_nbytes(rows: int, frames_first: bool) -> float:
    """What the buffer takes for a step."""
    rb = shelf.get(stacked, rows, frames_first)
    return rb.nbytes / rb.capacity


@floor.does("stacked_nbytes")
def stacked_nbytes_floor(rows: int, frames_first: bool) -> float:
    """A frame."""
    del rows, frames_first
    return float(np.prod(FRAME))
