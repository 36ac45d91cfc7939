"""skrl: its memory of PyTorch tensors on the CPU."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from contender import Peer
from data import GAME, KINDS, Batch, filling, one_step, random_steps
from loop import Add, Sample, loop_cases
from measure import Work, statement
from skrl.memories.torch import RandomMemory

from .common import folder_cases, importing, memory_cases

ADD = "rb.add_samples(**{name: as_tensor(value) for name, value in step.items()})"

theirs = Peer(
    "skrl",
    "Its RandomMemory on the CPU, with replacement=True: without, it permutes all rows to draw a "
    "few. It stores each field as one row of numbers: a batch of images is flat.",
)
theirs.cannot(
    "prioritized_add prioritized_draw prioritized_update prioritized_cycle",
    "it has no priorities",
)
theirs.cannot(
    "add_many", "a call with several steps puts the fields of one step into different rows"
)
theirs.cannot("tree_find tree_set tree_set_both", "it has no trees")
theirs.cannot("nstep_add nstep_sample", "it has no n-step sums")
theirs.cannot("sequences frame_sequences", "its sequences run across the ends of episodes")
theirs.cannot(
    "stacked_add stacked_sample stacked_sample_contiguous stacked_nbytes",
    "it stores each stack with all frames",
)
theirs.cannot("memory_compact", "it stores next observations as it stores observations")
theirs.cannot("load", "it does not draw what it has loaded")


def flat(steps: Batch) -> Batch:
    """The same steps, each field a row of numbers."""
    return {name: column.reshape(len(column), -1) for name, column in steps.items()}


def empty(rows: int, envs: int, steps: Batch) -> Any:
    """An empty memory for such steps."""
    rb = RandomMemory(memory_size=rows // envs, num_envs=envs, device="cpu", replacement=True)
    for name, column in flat(steps).items():
        numbers = torch.from_numpy(column)
        rb.create_tensor(name, size=numbers.shape[1], dtype=numbers.dtype)
    return rb


def filled(rows: int, kind: str = "small", envs: int = 1, **columns: Any) -> Any:
    """A full memory; its tensors are set, as it has a method for that."""
    chunk = filling(rows, kind) | columns
    rb = empty(rows, envs, chunk)
    for name, column in flat(chunk).items():
        numbers = torch.from_numpy(column)
        stored = rb.get_tensor_by_name(name).view(rows // envs * envs, -1)
        for part in stored.split(len(numbers)):
            part.copy_(numbers[: len(part)])
    rb.filled = True
    return rb


def long_episodes(rows: int) -> Any:
    """A full memory of small steps in long episodes."""
    return filled(rows, done=np.arange(min(rows, 100_000)) % GAME == GAME - 1)


def adding(rb: Any, kind: str) -> Work:
    """``add_samples`` of tensors, made of the numbers that an agent has."""
    step = one_step(kind)
    step |= {name: step[name].reshape(-1) for name in ("obs", "next_obs")}
    return statement(ADD, rb=rb, step=step, as_tensor=torch.as_tensor)


def adding_envs(rb: Any, envs: int, kind: str) -> Work:
    """``add_samples`` of a step of each environment."""
    return statement(ADD, rb=rb, step=flat(random_steps(envs, kind)), as_tensor=torch.as_tensor)


def drawing(rb: Any, n: int, length: int = 1) -> Work:
    """``sample`` of all fields as a list of tensors; sequences follow one another on one axis."""
    options = f"batch_size={n}" + (f", sequence_length={length}" if length > 1 else "")
    return statement(
        f"batch = rb.sample(names, {options})[0]", rb=rb, names=list(KINDS["small"].fields)
    )


theirs.works_on(filled, add_one=adding, sample=drawing, sample_tensors=drawing)
theirs.works_on(filled, add_envs=adding_envs)
theirs.works_on(long_episodes, sequences_across=drawing)
# Arrays of NumPy take no longer than tensors.
folder_cases(theirs, filled, lambda rb, folder: rb.save(folder, format="npz"))
theirs.does("import_time")(partial(importing, "skrl.memories.torch"))  # with PyTorch
memory_cases(theirs, memory=filled)


def replay(capacity: int) -> tuple[Add, Sample]:
    """Tensors are made for each step; batches are arrays on the memory of tensors."""
    rb, names = empty(capacity, 1, random_steps(1)), list(KINDS["small"].fields)

    def add(step: dict[str, Any], _: bool) -> None:
        rb.add_samples(**{name: torch.as_tensor(value) for name, value in step.items()})

    def sample(n: int) -> Batch:
        drawn = rb.sample(names, batch_size=n)[0]
        batch = {name: column.numpy() for name, column in zip(names, drawn, strict=True)}
        return {
            name: column[:, 0] if column.shape[1] == 1 else column for name, column in batch.items()
        }

    return add, sample


loop_cases(theirs, replay)
