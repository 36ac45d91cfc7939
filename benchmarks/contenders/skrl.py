"""skrl: its memory of PyTorch tensors on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from contender import IMPORTS_MORE, MEASURED_SMALL, Contender, Shelf
from data import GAME, KINDS, Batch, filling, one_step, random_steps
from loop import loop_cases
from measure import Work, statement
from skrl.memories.torch import RandomMemory

from .common import importing, nbytes_of_row, saving_to_folders, synchronising

__all__ = ["theirs"]

ADD = "rb.add_samples(**{name: as_tensor(value) for name, value in step.items()})"

theirs = Contender(
    "skrl",
    "Its RandomMemory on the CPU, with replacement=True: without, it permutes all rows to draw a "
    "few. It stores each field as one row of numbers: a batch of images is flat.",
)
theirs.cannot("first_batch_time", IMPORTS_MORE)
theirs.cannot("save_large load_large save_again", MEASURED_SMALL)
theirs.cannot("record", "it leaves to the program which observation came before a step")
theirs.cannot(
    "prioritized_add prioritized_draw prioritized_update prioritized_cycle",
    "it has no priorities",
)
theirs.cannot("add_many", "of several steps at once it stores each field in other rows")
theirs.cannot("tree_find tree_set tree_set_both", "it has no trees")
theirs.cannot("nstep_add nstep_sample", "it has no n-step sums")
theirs.cannot("sequences frame_sequences", "its sequences run across the ends of episodes")
theirs.cannot(
    "stacked_add stacked_sample stacked_sample_contiguous stacked_nbytes",
    "it stores each stack with all frames",
)
theirs.cannot("memory_compact", "it stores next observations as it stores observations")
theirs.cannot("load", "it does not draw what it has loaded")
shelf = Shelf()


def flat(steps: Batch) -> Batch:
    """The same steps, each field a row of numbers."""
    return {name: column.reshape(len(column), -1) for name, column in steps.items()}


def filled(kind: str, rows: int, envs: int = 1, **columns: Any) -> Any:
    """A full memory; its tensors are set, as it has a method for that."""
    rb = RandomMemory(memory_size=rows // envs, num_envs=envs, device="cpu", replacement=True)
    chunk = filling(rows, kind) | columns
    for name, column in flat(chunk).items():
        numbers = torch.from_numpy(column)
        rb.create_tensor(name, size=numbers.shape[1], dtype=numbers.dtype)
        stored = rb.get_tensor_by_name(name).view(rows // envs * envs, -1)
        for part in stored.split(len(numbers)):
            part.copy_(numbers[: len(part)])
    rb.filled = True
    return rb


@theirs.does("add_one")
def add_one(kind: str, rows: int) -> Work:
    """``add_samples`` of tensors that are made of what an agent has."""
    step = one_step(kind)
    step |= {name: step[name].reshape(-1) for name in ("obs", "next_obs")}
    return statement(ADD, rb=shelf.get(filled, kind, rows), step=step, as_tensor=torch.as_tensor)


@theirs.does("add_envs")
def add_envs(kind: str, rows: int, envs: int) -> Work:
    """``add_samples`` to a memory of as many environments."""
    rb = shelf.get(filled, kind, rows, envs)
    return statement(ADD, rb=rb, step=flat(random_steps(envs, kind)), as_tensor=torch.as_tensor)


def drawing(rb: Any, options: str) -> Work:
    """``sample`` of all fields."""
    draw = f"batch = rb.sample(names, {options})[0]"
    return statement(draw, rb=rb, names=list(KINDS["small"].fields))


@theirs.does("sample")
@theirs.does("sample_tensors")
def sample(kind: str, rows: int, n: int) -> Work:
    """A list of tensors."""
    return drawing(shelf.get(filled, kind, rows), f"batch_size={n}")


def long_episodes(rows: int) -> Any:
    """A full memory of small steps in long episodes."""
    size = min(rows, 100_000)
    return filled("small", rows, done=np.arange(size) % GAME == GAME - 1)


@theirs.does("sequences_across")
def sequences_across(rows: int, n: int, length: int) -> Work:
    """``sample`` with a length; the sequences are one behind another on one axis."""
    return drawing(shelf.get(long_episodes, rows), f"batch_size={n}, sequence_length={length}")


@theirs.does("save")
def save(rows: int) -> Work:
    """``save`` as arrays of NumPy, which takes no longer than tensors."""
    rb = shelf.get(filled, "small", rows)
    return saving_to_folders(lambda folder: rb.save(folder, format="npz"))


@theirs.does("save_synchronised")
def save_synchronised(rows: int) -> Work:
    """The same, put on the disk."""
    rb = shelf.get(filled, "small", rows)
    return synchronising(lambda folder: rb.save(folder, format="npz"))


@theirs.does("import_time")
def import_time() -> Work:
    """The module of its memories, and PyTorch with it."""
    return importing("skrl.memories.torch")


@theirs.does("memory")
def memory(kind: str, rows: int) -> float:
    """Both observations stored."""
    shelf.clear()
    return nbytes_of_row(lambda: filled(kind, rows), rows)


class Replay:
    """Its memory as the training loop wants it."""

    def __init__(self, capacity: int) -> None:
        self.rb = RandomMemory(memory_size=capacity, num_envs=1, device="cpu", replacement=True)
        for name, column in flat(random_steps(1)).items():
            numbers = torch.from_numpy(column)
            self.rb.create_tensor(name, size=numbers.shape[1], dtype=numbers.dtype)
        self.names = list(KINDS["small"].fields)

    def add(
        self, obs: Any, act: int, rew: float, next_obs: Any, done: bool, truncated: bool
    ) -> None:
        """``add_samples`` of tensors. That time was up need not be known."""
        del truncated
        step = {"obs": obs, "act": act, "rew": rew, "next_obs": next_obs, "done": done}
        self.rb.add_samples(**{name: torch.as_tensor(value) for name, value in step.items()})

    def sample(self, n: int) -> Batch:
        """Its tensors, seen as arrays; numbers without their axis of length 1."""
        drawn = self.rb.sample(self.names, batch_size=n)[0]
        batch = {name: column.numpy() for name, column in zip(self.names, drawn, strict=True)}
        return {
            name: column[:, 0] if column.shape[1] == 1 else column for name, column in batch.items()
        }


loop_cases(theirs, Replay)
