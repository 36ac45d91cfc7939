"""What is measured of reading rows together: n-step sums, stacked frames, sequences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from cases import ADD, Group, filled, filled_pairs, random_steps
from floor import ENV_DICT, Batch, Floor
from floor_readings import SequenceFloor
from measure import Effort, Row, Work, compiled, interleave, statement
from weighted import taking_turns

from cpprb_like import ReplayBuffer

__all__ = [
    "GAME",
    "NSTEP",
    "PAIRS",
    "READINGS",
    "SEQUENCES",
    "STACKED",
    "STACKED_ENV_DICT",
    "game",
    "long_episodes",
    "stacked_steps",
]

BATCH = 256
NSTEP: dict[str, Any] = {"size": 3, "gamma": 0.99, "rew": "rew", "next": "next_obs"}
PAIRS = 32  # stacks of frames of a batch, and as many next ones
FRAME = (84, 84)
DEPTH = 4
STACKED_ENV_DICT: dict[str, dict[str, Any]] = {
    "obs": {"shape": (*FRAME, DEPTH), "dtype": np.uint8},
    "act": {"dtype": np.int64},
    "rew": {},
    "done": {"dtype": np.bool_},
}
STACKED = {"next_of": "obs", "stack_compress": "obs"}
GAME = 1000  # steps of an episode of stacks, and of one that sequences are read from
SEQUENCES = (64, 80)  # in a batch, and rows in each
STACKED_NBYTES = 7300  # that a step may take; its frame takes 7056


def game(rng: np.random.Generator, steps: int = GAME, *, frames_first: bool = False) -> Batch:
    """An episode of stacks of random frames; the frames are the last axis or the first."""
    frames = rng.integers(0, 256, (steps + DEPTH, *FRAME), np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(frames, DEPTH, axis=0)
    stacks = np.ascontiguousarray(np.moveaxis(windows, -1, 1) if frames_first else windows)
    return {
        "obs": stacks[:-1],
        "next_obs": stacks[1:],
        "act": rng.integers(0, 18, steps),
        "rew": rng.random(steps, np.float32),
        "done": np.arange(steps) == steps - 1,
    }


def stacked_steps(rows: int, *, frames_first: bool = False) -> ReplayBuffer:
    """A full buffer of stacks of which only frames are stored."""
    env_dict, axis = STACKED_ENV_DICT, -1
    if frames_first:
        env_dict = env_dict | {"obs": {"shape": (DEPTH, *FRAME), "dtype": np.uint8}}
        axis = 0
    rb = ReplayBuffer(rows, env_dict, next_of="obs", stack_compress={"obs": axis}, seed=0)
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


def long_episodes(rows: int) -> ReplayBuffer:
    """A full buffer of small steps in episodes that are much longer than the sequences."""
    steps = random_steps(GAME) | {"done": np.arange(GAME) == GAME - 1}
    return _full(ReplayBuffer(rows, ENV_DICT, seed=0), steps)


def nstep(effort: Effort, library: Path) -> Iterator[Row]:
    """Sums over three steps against the single steps; the episodes have 50 steps on average."""
    del library
    plain, summing = filled(effort.rows), filled(effort.rows, NSTEP)
    sample = f"batch = rb.sample({BATCH})"
    ours, single = interleave(effort, statement(sample, rb=summing), statement(sample, rb=plain))
    what = f"sample({BATCH}) of {effort.rows:.0e} rows, 3-step, against 1-step"
    yield Row.of(what, ours, single, 2.0)
    row = {name: column[0] for name, column in random_steps(1).items()}
    ours, single = interleave(
        effort, statement(ADD, target=summing, **row), statement(ADD, target=plain, **row)
    )
    yield Row.of("add 1 step, 3-step, against 1-step", ours, single)


def stacks(effort: Effort, library: Path) -> Iterator[Row]:
    """Pairs of stacked frames against memcpy of pairs that are stored whole."""
    whole = filled_pairs(effort.image_pairs)
    in_c = compiled(Floor(library, whole).copy_pairs(whole.sample(PAIRS)))
    for order, frames_first in (("frames last", False), ("frames first", True)):
        rb = stacked_steps(effort.image_pairs, frames_first=frames_first)
        ours, floor = interleave(effort, statement(f"batch = rb.sample({PAIRS})", rb=rb), in_c)
        yield Row.of(f"sample({PAIRS}) of stacked pairs, {order}", ours, floor, 1.15)
        said, frame = rb.nbytes / rb.capacity, int(np.prod(FRAME))
        yield Row(
            f"memory of stacked pairs, {order}",
            said,
            frame,
            f"<= {STACKED_NBYTES} B",
            said <= STACKED_NBYTES,
            "B",
            said / frame,
        )
        episode = game(np.random.default_rng(1), frames_first=frames_first)
        (ours,) = interleave(effort, adding_stacks(rb, episode))
        yield Row(f"add 1 step of a stacked pair, {order}", ours)


def sequences(effort: Effort, library: Path) -> Iterator[Row]:
    """Sequences against C that copies as many rows, wherever they start."""
    rb, (n, length) = long_episodes(effort.rows), SEQUENCES
    floor, what = SequenceFloor(library, rb), f"sequences of steps, {n} x {length}"
    draw = f"rb.sample_sequences({n}, {length})"
    batches = rb.sample_sequences(n, length), rb.sample_sequences(n, length)
    masked, across, columns, records = interleave(
        effort,
        statement(f"batch = {draw}", rb=rb),
        statement(f"batch = {draw.replace(')', ', across_episodes=True)')}", rb=rb),
        compiled(floor.sequences(batches, length)),
        compiled(floor.copy_runs("act", n, length)),
    )
    yield Row.of(what, masked, columns, 1.5)
    yield Row.of(f"{what}, across episodes", across, columns, 1.5)
    yield Row.of(f"{what}, against memcpy of the records", masked, records)
    frames = {
        "obs": np.random.default_rng(0).integers(0, 256, (GAME, *FRAME), np.uint8),
        "done": np.arange(GAME) == GAME - 1,
    }
    env_dict = {"obs": {"shape": FRAME, "dtype": np.uint8}, "done": {"dtype": np.bool_}}
    rb = _full(ReplayBuffer(DEPTH * effort.image_pairs, env_dict, seed=0), frames)
    ours, in_c = interleave(
        effort,
        statement("batch = rb.sample_sequences(16, 20)", rb=rb),
        compiled(SequenceFloor(library, rb).copy_runs("obs", 16, 20)),
    )
    yield Row.of("sequences of frames, 16 x 20", ours, in_c, 1.5)


def _full(rb: ReplayBuffer, episode: Batch) -> ReplayBuffer:
    while len(rb) < rb.capacity:
        left = rb.capacity - len(rb)
        rb.add(**{name: column[:left] for name, column in episode.items()})
    return rb


READINGS: dict[str, Group] = {"nstep": nstep, "stacks": stacks, "sequences": sequences}
