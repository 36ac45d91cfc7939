"""This package and its floors: adding, uniform sampling, memory, import, a training loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from budgets import CALL, FLOOR, HAND, OURS
from contender import Cannot, Contender
from data import GAME, KINDS, Batch, filling, one_step, random_steps, trajectory
from floors.steps import Batches, Floor, Repeat
from loop import Add, Sample, loop_cases
from measure import Work, compiled, statement

from cpprb_like import ReplayBuffer
from cpprb_like.typing import FieldSpec

from .common import first_batch, importing, memory_cases
from .cpprb_calls import ADD, adding, adding_many, drawing

ours = Contender(OURS, "ReplayBuffer(rows, env_dict).")
floor = Contender(
    FLOOR, "The same work in C on the same memory; of an add, a method without body.", ours.shelf
)
call = Contender(CALL, "sample(0).", ours.shelf)
hand = Contender(HAND, "rng.integers(...), and an indexed array for each field.")


class Empty:
    """A method that takes the fields of a step and does nothing."""

    def add(self, *, obs: object, act: object, rew: object, next_obs: object, done: object) -> None:
        """Nothing."""


def env_dict(kind: str) -> dict[str, FieldSpec]:
    """The fields of such steps."""
    fields = KINDS[kind].fields.items()
    return {name: {"shape": shape, "dtype": np.dtype(dtype)} for name, (shape, dtype) in fields}


def numpy_step(kind: str) -> Batch:
    """A step as an environment gives it: its numbers are NumPy's."""
    return {name: column[0] for name, column in random_steps(1, kind).items()}


def fill(rb: ReplayBuffer, chunk: Batch) -> ReplayBuffer:
    """Add these steps again and again until the ring is full."""
    while rb.ring.stored < rb.capacity:
        left = rb.capacity - rb.ring.stored
        rb.add(**{name: column[:left] for name, column in chunk.items()})
    return rb


def filled(rows: int, kind: str = "small") -> ReplayBuffer:
    """A full buffer."""
    return fill(ReplayBuffer(rows, env_dict(kind), seed=0), filling(rows, kind))


def for_envs(rows: int, kind: str, envs: int) -> ReplayBuffer:
    """An empty buffer for the steps of several environments."""
    return ReplayBuffer(rows, env_dict(kind), n_envs=envs, seed=0)


def compact(rows: int, kind: str) -> ReplayBuffer:
    """A full buffer that reads next observations, and older frames of stacks, from other rows."""
    fields = env_dict(kind)
    del fields["next_obs"]
    stacks = "obs" if kind == "images" else None
    rb = ReplayBuffer(rows, fields, next_of="obs", stack_compress=stacks)
    return fill(rb, trajectory(GAME, kind))


def adding_numpy(rb: Any, kind: str) -> Work:
    """``add`` of numbers of NumPy."""
    return statement(ADD, rb=rb, **numpy_step(kind))


def adding_doubles(rb: Any, kind: str) -> Work:
    """``add`` of observations that are float64, and are converted."""
    step = one_step(kind)
    doubles = {name: np.asarray(step[name], np.float64) for name in ("obs", "next_obs")}
    return statement(ADD, rb=rb, **step | doubles)


def adding_floor(rb: ReplayBuffer, kind: str) -> Work:
    """Small: a Python method without a body. Wide: memcpy of the observations."""
    if kind == "small":
        return adding(Empty())
    return compiled(Floor(rb).write_pairs(random_steps(1, kind)))


def adding_many_floor(rb: ReplayBuffer, n: int, kind: str) -> Work:
    """The same bytes, scattered into the same records."""
    return compiled(Floor(rb).scatter(random_steps(n, kind)))


def drawing_floor(rb: ReplayBuffer, n: int, kind: str) -> Work:
    """Small: a loop over the same records. Wide: memcpy of the observations alone."""
    return compiled(_floor_of(rb, kind)((rb.sample(n), rb.sample(n))))


def drawing_into_floor(rb: ReplayBuffer, n: int, kind: str) -> Work:
    """``drawing_floor`` into one batch."""
    batch = rb.sample(n)
    return compiled(_floor_of(rb, kind)((batch, batch)))


def drawing_nothing(rb: ReplayBuffer, kind: str) -> Work:
    """What each draw takes, however few rows it has."""
    if kind != "small":
        raise Cannot("the call counts beside small steps only")
    return drawing(rb, 0)


def drawing_by_hand(rows: int, kind: str) -> Work:
    """A draw of no rows from arrays."""
    columns = random_steps(1, kind).items()
    arrays = {name: np.zeros((rows, *column.shape[1:]), column.dtype) for name, column in columns}
    batch = ", ".join(f"{name!r}: {name}[indexes]" for name in arrays)
    draw = f"indexes = rng.integers(0, {rows}, 0)\nbatch = {{{batch}}}"
    return statement(draw, rng=np.random.default_rng(0), **arrays)


def _floor_of(rb: ReplayBuffer, kind: str) -> Callable[[Batches], Repeat]:
    return Floor(rb).sample if kind == "small" else Floor(rb).copy_pairs


ours.works_on(
    filled,
    add_one=adding,
    add_one_numpy=adding_numpy,
    add_one_double=adding_doubles,
    add_many=adding_many,
    sample=drawing,
    sample_none=lambda rb: drawing(rb, 0),
    sample_distinct=lambda rb, n: statement(f"batch = rb.sample({n}, replace=False)", rb=rb),
    sample_into=lambda rb, n: statement(f"rb.sample({n}, out=batch)", rb=rb, batch=rb.sample(n)),
)
floor.works_on(
    filled,
    add_one=adding_floor,
    add_one_numpy=lambda _, kind: adding_numpy(Empty(), kind),
    add_many=adding_many_floor,
    sample=drawing_floor,
    sample_distinct=drawing_floor,
    sample_into=drawing_into_floor,
)
call.works_on(filled, sample=drawing_nothing)
hand.does("sample_none")(drawing_by_hand)
ours.works_on(for_envs, add_envs=adding_many)
floor.works_on(for_envs, add_envs=adding_many_floor)
ours.does("import_time")(partial(importing, "cpprb_like"))
floor.does("import_time")(partial(importing, "numpy"))
# A first batch: the import puts off nothing that these calls need.
ours.does("first_batch_time")(partial(importing, "cpprb_like", first_batch("cpprb_like")))
memory_cases(ours, memory=filled, memory_compact=compact)


@ours.does("memory_said")
def memory_said(rows: int, kind: str) -> float:
    """What the buffer counts before it takes it, and prints."""
    return ReplayBuffer(rows, env_dict(kind)).nbytes / rows


@floor.does("memory_said")
@floor.does("memory")
@floor.does("memory_compact")
def memory_floor(rows: int, kind: str) -> float:
    """What was declared."""
    del rows
    return KINDS[kind].nbytes


def replay(capacity: int) -> tuple[Add, Sample]:
    """One call each: next observations are stored, so no end by time needs a mark."""
    rb = ReplayBuffer(capacity, env_dict("small"), seed=0)
    return lambda step, _: rb.add(**step), rb.sample


loop_cases(ours, replay)
