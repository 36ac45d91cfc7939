"""This package and its floors: n-step sums, stacked frames, sequences."""

from __future__ import annotations

from functools import partial
from typing import Any

import data
import numpy as np
from floors.steps import Floor
from measure import Work, compiled, statement

from cpprb_like import ReplayBuffer, Sequences
from cpprb_like.typing import FieldSpec, NstepSpec

from .cpprb_calls import adding, drawing
from .uniform import call, env_dict, fill, filled, floor, ours
from .weighted import plain

NSTEP: NstepSpec = {"size": 3, "gamma": data.GAMMA, "rew": "rew", "next": "next_obs"}


def summing(rows: int) -> ReplayBuffer:
    """A full buffer of random steps; draws sum three of them."""
    rb = ReplayBuffer(rows, env_dict("small"), Nstep=NSTEP, seed=0)
    return fill(rb, data.filling(rows, "small"))


def summing_floor(rb: ReplayBuffer, n: int = 256) -> Work:
    """A loop that sums rewards up to the ends of episodes, and copies first and last steps."""
    batches = rb.sample(n), rb.sample(n)
    return compiled(Floor(rb).sum_steps(batches, NSTEP["size"], data.GAMMA))


def long_episodes(rows: int) -> ReplayBuffer:
    """A full buffer of small steps in episodes that are much longer than the sequences."""
    return fill(ReplayBuffer(rows, env_dict("small"), seed=0), data.long_episode())


def single_frames(rows: int) -> ReplayBuffer:
    """A full buffer of frames."""
    fields: dict[str, FieldSpec] = {
        "obs": {"shape": data.FRAME, "dtype": np.uint8},
        "done": {"dtype": np.bool_},
    }
    return fill(ReplayBuffer(rows, fields, seed=0), data.frames_of_episode())


def drawing_sequences(
    rb: ReplayBuffer, n: int, length: int, *, across_episodes: bool = False
) -> Work:
    """A batch of a view of sequences."""
    view = rb.view(Sequences(length, across_episodes=across_episodes))
    return statement(f"batch = view.sample({n})", view=view)


def drawing_no_sequences(
    rb: ReplayBuffer, n: int, length: int, *, across_episodes: bool = False
) -> Work:
    """What each draw takes, however few sequences it has."""
    del n
    return drawing_sequences(rb, 0, length, across_episodes=across_episodes)


def sequences_floor(rb: ReplayBuffer, n: int, length: int, *, across: bool = False) -> Work:
    """A loop that copies as many rows into columns, wherever they start, and marks their ends."""
    view = rb.view(Sequences(length))
    batches = view.sample(n), view.sample(n)
    return compiled(Floor(rb).sequences(batches, length, across=across))


def frame_sequences_floor(rb: ReplayBuffer, n: int, length: int) -> Work:
    """Memcpy of as many frames that lie together."""
    return compiled(Floor(rb).copy_runs("obs", n, length))


def stacked(rows: int, frames_first: bool) -> ReplayBuffer:
    """A full buffer of stacks that stores frames alone."""
    shape, axis = (
        ((data.DEPTH, *data.FRAME), 0) if frames_first else ((*data.FRAME, data.DEPTH), -1)
    )
    fields: dict[str, FieldSpec] = {
        "obs": {"shape": shape, "dtype": np.uint8},
        "act": {"shape": (), "dtype": np.int64},
        "rew": {"shape": ()},
        "done": {"shape": (), "dtype": np.bool_},
    }
    rb = ReplayBuffer(rows, fields, next_of="obs", stack_compress={"obs": axis}, seed=0)
    rng = np.random.default_rng(0)
    while rb.ring.stored < rows:
        steps = min(data.GAME, rows - rb.ring.stored)
        rb.add(**data.game(rng, steps, frames_first=frames_first))
    return rb


def adding_stacks(rb: Any, steps: data.Batch) -> Work:
    """``add`` of the steps of an episode one by one, in a cycle."""
    names = ", ".join(steps)
    fields = ", ".join(f"{name}={name}" for name in steps)
    fresh = data.taking_turns(*steps.values())
    return statement(f"{names} = fresh()\nrb.add({fields})", rb=rb, fresh=fresh)


def adding_a_game(rb: ReplayBuffer, frames_first: bool) -> Work:
    """Stacks that slide, an episode in a cycle."""
    return adding_stacks(rb, data.game(np.random.default_rng(1), frames_first=frames_first))


ours.works_on(summing, nstep_add=adding, nstep_sample=drawing)
floor.works_on(summing, nstep_sample=summing_floor)
call.works_on(summing, nstep_sample=lambda rb: drawing(rb, 0))
plain.works_on(filled, nstep_add=adding, nstep_sample=drawing)
ours.works_on(
    long_episodes,
    sequences=drawing_sequences,
    sequences_across=partial(drawing_sequences, across_episodes=True),
)
floor.works_on(
    long_episodes,
    sequences=sequences_floor,
    sequences_across=partial(sequences_floor, across=True),
)
call.works_on(
    long_episodes,
    sequences=drawing_no_sequences,
    sequences_across=partial(drawing_no_sequences, across_episodes=True),
)
ours.works_on(single_frames, frame_sequences=drawing_sequences)
floor.works_on(single_frames, frame_sequences=frame_sequences_floor)
ours.works_on(
    stacked,
    stacked_add=adding_a_game,
    stacked_sample=drawing,
    stacked_sample_contiguous=drawing,  # batches are C-contiguous, whatever the order of axes
    stacked_nbytes=lambda rb: rb.nbytes / rb.capacity,
)


@floor.does("stacked_sample")
@floor.does("stacked_sample_contiguous")
def stacked_sample_floor(rows: int, frames_first: bool, n: int) -> Work:
    """Memcpy of pairs that are stored whole."""
    del frames_first
    whole = filled(rows, "images")
    return compiled(Floor(whole).copy_pairs((whole.sample(n), whole.sample(n))))


@floor.does("stacked_nbytes")
def stacked_nbytes_floor(rows: int, frames_first: bool) -> float:
    """A frame."""
    del rows, frames_first
    return float(np.prod(data.FRAME))
