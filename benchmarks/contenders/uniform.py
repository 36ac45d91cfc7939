"""This package and its floors: adding, uniform sampling, memory, import."""

from __future__ import annotations

import numpy as np
from budgets import FLOOR, OURS
from contender import Contender, Shelf
from data import GAME, KINDS, Batch, filling, one_step, random_steps, trajectory
from floors.steps import Floor
from measure import Work, compiled, statement

from cpprb_like import ReplayBuffer
from cpprb_like.typing import FieldSpec

from .common import first_batch, importing, nbytes_of_row

__all__ = [
    "ADD",
    "env_dict",
    "fill",
    "filled",
    "floor",
    "ours",
    "sample",
    "sample_floor",
    "shelf",
]

ADD = "target.add(obs=obs, act=act, rew=rew, next_obs=next_obs, done=done)"

ours = Contender(OURS, "ReplayBuffer(rows, env_dict).")
floor = Contender(FLOOR, "The same work in C on the same memory; of an add, a method without body.")
shelf = Shelf()


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


def filled(kind: str, rows: int) -> ReplayBuffer:
    """A full buffer."""
    chunk = filling(rows, kind)
    return fill(ReplayBuffer(rows, env_dict(kind), seed=0), chunk)


@ours.does("add_one")
def add_one(kind: str, rows: int) -> Work:
    """Numbers are Python's, as an agent has them."""
    return statement(ADD, target=shelf.get(filled, kind, rows), **one_step(kind))


@floor.does("add_one")
def add_one_floor(kind: str, rows: int) -> Work:
    """Small: a Python method without a body. Wide: memcpy of the observations."""
    if kind == "small":
        return statement(ADD, target=Empty(), **one_step(kind))
    rb = shelf.get(filled, kind, rows)
    return compiled(Floor(rb).write_pairs(random_steps(1, kind)))


@ours.does("add_one_numpy")
def add_one_numpy(kind: str, rows: int) -> Work:
    """Numbers are NumPy's, as an environment gives them."""
    return statement(ADD, target=shelf.get(filled, kind, rows), **numpy_step(kind))


@floor.does("add_one_numpy")
def add_one_numpy_floor(kind: str, rows: int) -> Work:
    """A Python method without a body."""
    del rows
    return statement(ADD, target=Empty(), **numpy_step(kind))


@ours.does("add_one_double")
def add_one_double(kind: str, rows: int) -> Work:
    """Observations are float64, and are converted."""
    step = one_step(kind)
    doubles = {name: np.asarray(step[name], np.float64) for name in ("obs", "next_obs")}
    return statement(ADD, target=shelf.get(filled, kind, rows), **step | doubles)


@ours.does("add_many")
def add_many(kind: str, rows: int, n: int) -> Work:
    """Several steps in one call."""
    return statement(ADD, target=shelf.get(filled, kind, rows), **random_steps(n, kind))


@floor.does("add_many")
def add_many_floor(kind: str, rows: int, n: int) -> Work:
    """The same bytes, scattered into the same records."""
    return compiled(Floor(shelf.get(filled, kind, rows)).scatter(random_steps(n, kind)))


def for_envs(kind: str, rows: int, envs: int) -> ReplayBuffer:
    """An empty buffer for the steps of several environments."""
    return ReplayBuffer(rows, env_dict(kind), n_envs=envs, seed=0)


@ours.does("add_envs")
def add_envs(kind: str, rows: int, envs: int) -> Work:
    """A time step of all environments in one call."""
    return statement(ADD, target=shelf.get(for_envs, kind, rows, envs), **random_steps(envs, kind))


@floor.does("add_envs")
def add_envs_floor(kind: str, rows: int, envs: int) -> Work:
    """The same bytes, scattered into the same records."""
    rb = shelf.get(for_envs, kind, rows, envs)
    return compiled(Floor(rb).scatter(random_steps(envs, kind)))


@ours.does("sample")
def sample(kind: str, rows: int, n: int) -> Work:
    """A fresh batch."""
    return statement(f"batch = rb.sample({n})", rb=shelf.get(filled, kind, rows))


@ours.does("sample_none")
def sample_none(kind: str, rows: int) -> Work:
    """An empty batch."""
    return statement("batch = rb.sample(0)", rb=shelf.get(filled, kind, rows))


@ours.does("sample_distinct")
def sample_distinct(kind: str, rows: int, n: int) -> Work:
    """A batch of different steps."""
    return statement(f"batch = rb.sample({n}, replace=False)", rb=shelf.get(filled, kind, rows))


@ours.does("sample_into")
def sample_into(kind: str, rows: int, n: int) -> Work:
    """A batch in memory that is the caller's."""
    rb = shelf.get(filled, kind, rows)
    return statement(f"rb.sample({n}, out=batch)", rb=rb, batch=rb.sample(n))


@floor.does("sample")
@floor.does("sample_distinct")
@floor.does("sample_into")
def sample_floor(kind: str, rows: int, n: int) -> Work:
    """Small: a loop over the same records. Wide: memcpy of the observations alone."""
    rb = shelf.get(filled, kind, rows)
    draw = Floor(rb).sample if kind == "small" else Floor(rb).copy_pairs
    return compiled(draw(rb.sample(n)))


@ours.does("import_time")
def import_time() -> Work:
    """The package, and NumPy with it."""
    return importing("cpprb_like")


@ours.does("first_batch_time")
def first_batch_time() -> Work:
    """The package, a buffer, a step and a batch: nothing is put off that these need."""
    return importing("cpprb_like", first_batch("cpprb_like"))


@floor.does("import_time")
def import_time_floor() -> Work:
    """NumPy alone."""
    return importing("numpy")


@ours.does("memory_said")
def memory_said(kind: str, rows: int) -> float:
    """What the buffer counts before it takes it, and prints."""
    return ReplayBuffer(rows, env_dict(kind)).nbytes / rows


@ours.does("memory")
def memory(kind: str, rows: int) -> float:
    """Both observations stored."""
    shelf.clear()
    return nbytes_of_row(lambda: filled(kind, rows), rows)


@floor.does("memory_said")
@floor.does("memory")
@floor.does("memory_compact")
def memory_floor(kind: str, rows: int) -> float:
    """What was declared."""
    del rows
    return KINDS[kind].nbytes


@ours.does("memory_compact")
def memory_compact(kind: str, rows: int) -> float:
    """Next observations, and of stacks all frames but the newest, are read from other rows."""
    shelf.clear()
    fields: dict[str, FieldSpec] = env_dict(kind)
    del fields["next_obs"]
    stacks = "obs" if kind == "images" else None
    steps = trajectory(GAME, kind)
    return nbytes_of_row(
        lambda: fill(ReplayBuffer(rows, fields, next_of="obs", stack_compress=stacks), steps), rows
    )
