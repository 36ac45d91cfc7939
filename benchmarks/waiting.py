"""How long a learner on images waits for its batches: ``python benchmarks/waiting.py``.

DQN on stacks of four frames of 84 x 84 pixels, on the CPU, with batches of this package drawn in
the learner's turn, and ahead by a thread or by the workers of a ``DataLoader``; with a
``DataLoader`` over arrays, as one writes it without a buffer; and with the buffers of
Stable-Baselines3 and torchrl. Contenders that are installed are measured, by the
interpreter that runs it: ``make bench`` runs it in the environments of both peers, and writes
``results/waiting-full.json``, of which ``make bench-report`` makes the table of docs/learners.md.
It needs PyTorch, and two cores: one for the learner, one for whoever draws ahead.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from cpprb_like import ReplayBuffer
from cpprb_like.integrations.torch import EpochDataset

SHAPE = (4, 84, 84)
ACTIONS = 6
Batches = Iterator[Any]
FIELDS: dict[str, Any] = {
    "obs": {"shape": SHAPE, "dtype": "u1"},
    "act": {"shape": (), "dtype": "i8"},
    "rew": {"shape": ()},
    "next_obs": {"shape": SHAPE, "dtype": "u1"},
    "done": {"shape": ()},
}


def steps(rows: int) -> dict[str, Any]:
    """Random steps."""
    rng = np.random.default_rng(0)
    return {
        "obs": rng.integers(0, 256, (rows, *SHAPE), np.uint8),
        "act": rng.integers(0, ACTIONS, rows),
        "rew": rng.random(rows, np.float32),
        "next_obs": rng.integers(0, 256, (rows, *SHAPE), np.uint8),
        "done": np.zeros(rows, np.float32),
    }


def ours(rows: int) -> ReplayBuffer:
    """A buffer of this package."""
    rb = ReplayBuffer(rows, FIELDS, seed=0)
    rb.add(**steps(rows))
    return rb


def drawn(prefetch: int) -> Callable[[int, int, ExitStack], Batches]:
    """Batches of this package, so many drawn ahead."""

    def make(rows: int, n: int, stack: ExitStack) -> Batches:
        return stack.enter_context(ours(rows).batches(n, to="torch", prefetch=prefetch))

    return make


def by_workers(workers: int) -> Callable[[int, int, ExitStack], Batches]:
    """Epochs of this package, by a ``DataLoader``."""

    def make(rows: int, n: int, _: ExitStack) -> Batches:
        loader: Any = DataLoader(
            EpochDataset(ours(rows), n, drop_last=True),
            batch_size=None,
            num_workers=workers,
            persistent_workers=workers > 0,
        )
        while True:
            yield from loader

    return make


class Rows(Dataset[Any]):  # type: ignore[misc]
    """Arrays, of which an item is a row."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns["rew"])

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {name: values[row] for name, values in self._columns.items()}


def over_arrays(rows: int, n: int, _: ExitStack) -> Batches:
    """Epochs of a ``DataLoader`` without workers, row by row in random order."""
    loader: Any = DataLoader(Rows(steps(rows)), batch_size=n, shuffle=True, drop_last=True)
    while True:
        yield from loader


def of_stable_baselines3(rows: int, n: int, _: ExitStack) -> Batches:
    """Batches of its ``ReplayBuffer``."""
    from gymnasium import spaces  # noqa: PLC0415
    from stable_baselines3.common.buffers import ReplayBuffer as Theirs  # noqa: PLC0415

    rb = Theirs(rows, spaces.Box(0, 255, SHAPE, np.uint8), spaces.Discrete(ACTIONS), "cpu")
    given = steps(rows)
    rb.observations[:, 0], rb.next_observations[:, 0] = given["obs"], given["next_obs"]
    rb.actions[:, 0, 0] = given["act"]
    rb.rewards[:, 0], rb.dones[:, 0] = given["rew"], given["done"]
    rb.full = True
    while True:
        batch = rb.sample(n)
        yield {
            "obs": batch.observations,
            "act": batch.actions[:, 0],
            "rew": batch.rewards[:, 0],
            "next_obs": batch.next_observations,
            "done": batch.dones[:, 0],
        }


def of_torchrl(prefetch: int | None) -> Callable[[int, int, ExitStack], Batches]:
    """Batches of its ``ReplayBuffer``."""

    def make(rows: int, n: int, _: ExitStack) -> Batches:
        from tensordict import TensorDict  # noqa: PLC0415
        from torchrl.data import LazyTensorStorage  # noqa: PLC0415
        from torchrl.data import ReplayBuffer as Theirs  # noqa: PLC0415

        rb = Theirs(storage=LazyTensorStorage(rows), batch_size=n, prefetch=prefetch)
        rb.extend(TensorDict(steps(rows), batch_size=[rows]))
        while True:
            yield rb.sample()

    return make


CONTENDERS: dict[str, tuple[str, Callable[[int, int, ExitStack], Batches]]] = {
    "cpprb_like": ("torch", drawn(0)),
    "cpprb_like, prefetch=1": ("torch", drawn(1)),
    "cpprb_like, prefetch=2": ("torch", drawn(2)),
    "EpochDataset, DataLoader with 1 worker": ("torch", by_workers(1)),
    "DataLoader over arrays": ("torch", over_arrays),
    "Stable-Baselines3": ("stable_baselines3", of_stable_baselines3),
    "torchrl": ("torchrl", of_torchrl(None)),
    "torchrl, prefetch=2": ("torchrl", of_torchrl(2)),
}


class Learner:
    """DQN with the network of Mnih et al. (2015), and no target network to speak of."""

    def __init__(self) -> None:
        self.network = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
            nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(),
            nn.Linear(512, ACTIONS),
        )  # fmt: skip
        self.optimizer = torch.optim.Adam(self.network.parameters(), 1e-4)

    def learn(self, batch: Any) -> None:
        """One step of gradient descent."""
        with torch.no_grad():
            best = self.network(batch["next_obs"].float() / 255).max(1).values
            target = batch["rew"] + 0.99 * (1 - batch["done"]) * best
        values = self.network(batch["obs"].float() / 255)
        value = values.gather(1, batch["act"].long()[:, None])[:, 0]
        loss = nn.functional.smooth_l1_loss(value, target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def waited(batches: Batches, number: int, learn: Callable[[Any], None]) -> dict[str, float]:
    """Seconds that a batch is waited for, least and median, and of a training step, median."""
    waits, wholes = [], []
    for step in range(number + 3):
        start = time.perf_counter()
        batch = next(batches)
        got = time.perf_counter()
        learn(batch)
        if step >= 3:  # threads, workers and memory have begun
            waits.append(got - start)
            wholes.append(time.perf_counter() - start)
    middle = statistics.median
    return {"least": min(waits), "median": middle(waits), "whole": middle(wholes)}


def measured(name: str, rows: int, n: int, steps: int) -> dict[str, Any]:
    """What is found of a contender: beside a learner, and by itself."""
    with ExitStack() as stack:
        batches: Any = CONTENDERS[name][1](rows, n, stack)
        if isinstance(batches, Generator):
            stack.enter_context(closing(batches))
        found = waited(batches, max(10, steps * 32 // n), Learner().learn)
        alone = waited(batches, 100 if n < 100 else 30, lambda _: None)
    return {"name": name, "batch": n, **found, "alone": alone["median"]}


def main() -> None:
    """Measure all that is installed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[32, 256])
    parser.add_argument("--steps", type=int, default=60, help="with batches of 32")
    packages = {package for package, _ in CONTENDERS.values()}
    parser.add_argument("--need", nargs="+", choices=packages, default=packages, help="packages")
    options = parser.parse_args()
    if options.rows < max(options.batch_sizes):  # an epoch would have no batch, and never end
        parser.error(f"--rows: expected at least {max(options.batch_sizes)}, got {options.rows}")
    torch.set_num_threads(1)
    cases = [
        measured(name, options.rows, n, options.steps)
        for n in options.batch_sizes
        for name, (package, _) in CONTENDERS.items()
        if package in options.need and importlib.util.find_spec(package) is not None
    ]
    about = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "rows": options.rows,
        "load": os.getloadavg() if sys.platform != "win32" else None,
    }
    print(json.dumps({"about": about, "cases": cases}))


if __name__ == "__main__":
    main()
