"""TorchRL: adding, uniform sampling, memory, files, import."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from contender import IMPORTS_MORE, Contender, Shelf
from data import filling, one_step, random_steps
from loop import loop_cases
from measure import Work, statement
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, ReplayBuffer

from .common import importing, nbytes_of_row, saving_and_loading

__all__ = ["Steps", "adding", "drawing", "fill", "nested", "shelf", "tensors", "theirs"]


Steps = dict[str, Any]

logging.getLogger("torchrl").setLevel(logging.WARNING)

theirs = Contender(
    "torchrl",
    "Tensors in a LazyTensorStorage; of a ListStorage it says that it is inefficient. Steps are "
    "added as dicts, which takes less than TensorDicts; these are drawn, by torch.compile of "
    "sample with compilable=True, which takes less than without. Trees get NumPy arrays.",
)
shelf = Shelf()


def tensors(steps: Steps) -> Steps:
    """The same steps as tensors, on the same memory."""
    return {name: torch.as_tensor(column) for name, column in steps.items()}


def tensordict(steps: Steps) -> TensorDict:
    """The same steps as one TensorDict."""
    columns = tensors(steps)
    return TensorDict(columns, [len(columns["act"])])


def nested(steps: Steps) -> TensorDict:
    """The same steps as its environments give them: what came of a step is under "next"."""
    columns = tensors(steps)
    n = len(columns["act"])
    after = {
        "obs": columns["next_obs"],
        "reward": columns["rew"][:, None],
        "done": columns["done"][:, None],
    }
    return TensorDict(
        {"obs": columns["obs"], "act": columns["act"], "next": TensorDict(after, [n])}, [n]
    )


def fill(rb: Any, steps: Any, rows: int) -> Any:
    """Add these steps again and again until the buffer is full."""
    while len(rb) < rows:
        rb.extend(steps)
    return rb


def filled(kind: str, rows: int, form: Callable[[Steps], Any]) -> Any:
    """A full buffer of steps in this form."""
    chunk = filling(rows, kind)
    rb = ReplayBuffer(storage=LazyTensorStorage(rows, compilable=True), compilable=True)
    return fill(rb, form(chunk), rows)


def drawing(rb: Any, n: int) -> Work:
    """``sample`` of so many rows, compiled for this number alone."""
    torch.compiler.reset()
    draw = torch.compile(lambda: rb.sample(n))
    draw()
    return statement("batch = draw()", draw=draw)


def adding(rb: Any, kind: str) -> Work:
    """``add`` of a dict of tensors that are made of what an agent has."""
    return statement(
        "rb.add({name: as_tensor(value) for name, value in step.items()})",
        rb=rb,
        step=one_step(kind),
        as_tensor=torch.as_tensor,
    )


@theirs.does("add_one")
def add_one(kind: str, rows: int) -> Work:
    """``add`` of a step."""
    return adding(shelf.get(filled, kind, rows, tensors), kind)


@theirs.does("add_many")
def add_many(kind: str, rows: int, n: int) -> Work:
    """``extend`` by a dict of tensors on the memory of the arrays."""
    return statement(
        "rb.extend(tensors(steps))",
        rb=shelf.get(filled, kind, rows, tensors),
        tensors=tensors,
        steps=random_steps(n, kind),
    )


@theirs.does("add_envs")
def add_envs(kind: str, rows: int, envs: int) -> Work:
    """``extend`` by a step of each environment."""
    return add_many(kind, rows, envs)


@theirs.does("sample")
@theirs.does("sample_tensors")
def sample(kind: str, rows: int, n: int) -> Work:
    """``sample`` of a TensorDict, compiled."""
    return drawing(shelf.get(filled, kind, rows, tensordict), n)


@theirs.does_all("save", "save_synchronised", "load")
def files(rows: int) -> tuple[Work, Work, Work]:
    """``torch.save`` of its ``state_dict``, and back: ``dumps`` takes longer."""
    rb = shelf.get(filled, "small", rows, tensordict)
    return saving_and_loading(
        lambda file: torch.save(rb.state_dict(), file),
        lambda file: rb.load_state_dict(torch.load(file, weights_only=False)),
    )


theirs.cannot("first_batch_time", IMPORTS_MORE)


@theirs.does("import_time")
def import_time() -> Work:
    """The module of its buffers, and PyTorch with it."""
    return importing("torchrl.data")


@theirs.does("memory")
def memory(kind: str, rows: int) -> float:
    """Both observations stored."""
    shelf.clear()
    return nbytes_of_row(lambda: filled(kind, rows, tensordict), rows)


class Replay:
    """Its buffer as the training loop wants it; compiled, a draw after an add takes longer."""

    def __init__(self, capacity: int) -> None:
        self.rb = ReplayBuffer(storage=LazyTensorStorage(capacity))

    def add(
        self, obs: Any, act: int, rew: float, next_obs: Any, done: bool, truncated: bool
    ) -> None:
        """``add`` of a dict of tensors. That time was up need not be known."""
        del truncated
        step = {"obs": obs, "act": act, "rew": rew, "next_obs": next_obs, "done": done}
        self.rb.add({name: torch.as_tensor(value) for name, value in step.items()})

    def sample(self, n: int) -> Steps:
        """Its tensors, seen as arrays."""
        return {name: column.numpy() for name, column in self.rb.sample(n).items()}


loop_cases(theirs, Replay)
