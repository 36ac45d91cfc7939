"""flashbax: adding, uniform sampling, memory, files, import."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import flashbax
import jax
import numpy as np
from contender import IMPORTS_MORE, Contender, Shelf
from data import GAME, filling, one_step, random_steps, trajectory
from flashbax.vault import Vault
from loop import loop_cases
from measure import Work, compiled

from .common import (
    after,
    give_memory_back,
    importing,
    nbytes_of_row,
    saving_to_folders,
    synchronising,
)

__all__ = ["Filled", "adding", "drawing", "shelf", "theirs", "with_fresh_key"]

UNCOMPRESSED = {"id": "zlib", "level": 0}

Step = dict[str, Any]

theirs = Contender(
    "flashbax",
    "Its item buffers, as its README advises for speed, and its trajectory buffer. Each call is "
    "compiled by jax.jit, and gives the state away if it changes it; calls follow one another "
    "without waiting, and time ends when all results are there. JAX has no int64 by default.",
)
theirs.cannot("first_batch_time", IMPORTS_MORE)
theirs.cannot("sample_tensors", "its batches are arrays of JAX")
shelf = Shelf()


class Filled:
    """The state of a full buffer, and what it was made of."""

    def __init__(self, make: Callable[..., Any], rows: int, chunk: Step) -> None:
        self.make = partial(make, max_length=rows, min_length=1)
        whole = self.make(sample_batch_size=1, add_sequences=True)
        self.state = jax.jit(whole.init)({name: column[0] for name, column in chunk.items()})
        self.add_all = jax.jit(whole.add, donate_argnums=0)
        size = len(chunk["done"])
        for start in range(0, rows, size):
            part = {name: column[: rows - start] for name, column in chunk.items()}
            self.state = self.add_all(self.state, part)

    def adding(self, function: Any, steps: Step) -> Work:
        """Work that adds these steps by this function."""

        def work(calls: int) -> None:
            for _ in range(calls):
                self.state = function(self.state, steps)
            jax.block_until_ready(self.state)

        return compiled(work)


def filled(kind: str, rows: int) -> Filled:
    """A full item buffer."""
    chunk = filling(rows, kind)
    return Filled(flashbax.make_item_buffer, rows, chunk)


def adding(buffer: Filled, kind: str) -> Work:
    """``add`` of a step, its numbers Python's."""
    single = jax.jit(buffer.make(sample_batch_size=1).add, donate_argnums=0)
    return buffer.adding(single, one_step(kind))


def drawing(draw: Any, state: Any) -> Work:
    """Work that draws from a state, with keys that are split from one another."""
    turn = jax.jit(partial(with_fresh_key, draw))
    keys = [jax.random.PRNGKey(0)]

    def work(calls: int) -> None:
        key = keys.pop()
        for _ in range(calls):
            key, batch = turn(state, key)
        keys.append(key)
        jax.block_until_ready(batch)

    return compiled(work)


def with_fresh_key(draw: Any, state: Any, key: Any) -> tuple[Any, Any]:
    """What is drawn with a key split off, and the other one."""
    key, now = jax.random.split(key)
    return key, draw(state, now)


@theirs.does("add_one")
def add_one(kind: str, rows: int) -> Work:
    """``add``, jitted, with its state given away."""
    return adding(shelf.get(filled, kind, rows), kind)


@theirs.does("add_many")
def add_many(kind: str, rows: int, n: int) -> Work:
    """``add`` of a sequence of items."""
    buffer = shelf.get(filled, kind, rows)
    return buffer.adding(buffer.add_all, random_steps(n, kind))


@theirs.does("add_envs")
def add_envs(kind: str, rows: int, envs: int) -> Work:
    """``add`` of a batch of items, which lie one behind another."""
    return add_many(kind, rows, envs)


@theirs.does("sample")
def sample(kind: str, rows: int, n: int) -> Work:
    """``sample``, jitted together with the split of its key."""
    buffer = shelf.get(filled, kind, rows)
    return drawing(buffer.make(sample_batch_size=n).sample, buffer.state)


def vault(folder: str, buffer: Filled, rows: int) -> Vault:
    """A vault that holds all rows of a buffer, without compression."""
    made = Vault(
        "steps",
        experience_structure=buffer.state.experience,
        rel_dir=folder,
        compression=UNCOMPRESSED,
    )
    made.write(buffer.state, source_interval=(0, rows))
    return made


@theirs.does("save")
def save(rows: int) -> Work:
    """A new Vault, and ``write``."""
    buffer = shelf.get(filled, "small", rows)
    return saving_to_folders(lambda folder: vault(folder, buffer, rows))


@theirs.does("save_synchronised")
def save_synchronised(rows: int) -> Work:
    """The same, put on the disk."""
    buffer = shelf.get(filled, "small", rows)
    return synchronising(lambda folder: vault(folder, buffer, rows))


@theirs.does("load")
def load(rows: int) -> Work:
    """``read`` of a Vault that is open."""
    folder = TemporaryDirectory()
    stored = vault(folder.name, shelf.get(filled, "small", rows), rows)

    def read() -> None:
        assert Path(folder.name).exists()  # as long as the work lives
        jax.block_until_ready(stored.read().experience)

    return after(give_memory_back, read)


@theirs.does("import_time")
def import_time() -> Work:
    """The package, and JAX with it."""
    return importing("flashbax")


@theirs.does("memory")
def memory(kind: str, rows: int) -> float:
    """An item buffer, both observations stored."""
    shelf.clear()
    return nbytes_of_row(lambda: jax.block_until_ready(filled(kind, rows).state), rows)


@theirs.does("memory_compact")
def memory_compact(kind: str, rows: int) -> float:
    """A flat buffer: next observations are those of the next step."""
    shelf.clear()
    steps = trajectory(min(GAME, rows), kind)
    del steps["next_obs"]
    return nbytes_of_row(lambda: jax.block_until_ready(flat(steps, rows).state), rows)


def flat(steps: Step, rows: int) -> Filled:
    """A full flat buffer."""
    return Filled(flashbax.make_flat_buffer, rows, steps)


class Replay:
    """Its item buffer as the training loop wants it; results are waited for in each call."""

    def __init__(self, capacity: int) -> None:
        make = partial(flashbax.make_item_buffer, max_length=capacity, min_length=1)
        single = make(sample_batch_size=1)
        self.make = make
        self.state = jax.jit(single.init)(one_step("small"))
        self.write = jax.jit(single.add, donate_argnums=0)
        self.key = jax.random.PRNGKey(0)
        self.draw: Any = None

    def add(
        self, obs: Any, act: int, rew: float, next_obs: Any, done: bool, truncated: bool
    ) -> None:
        """``add`` of a step. That time was up need not be known."""
        del truncated
        step = {"obs": obs, "act": act, "rew": rew, "next_obs": next_obs, "done": done}
        self.state = jax.block_until_ready(self.write(self.state, step))

    def sample(self, n: int) -> Step:
        """Its arrays, which NumPy sees without a copy."""
        if self.draw is None:
            self.draw = jax.jit(partial(with_fresh_key, self.make(sample_batch_size=n).sample))
        self.key, batch = self.draw(self.state, self.key)
        return {name: np.asarray(column) for name, column in batch.experience.items()}


loop_cases(theirs, Replay)
