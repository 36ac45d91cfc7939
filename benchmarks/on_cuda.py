"""What batches on a CUDA device cost a learner: ``python benchmarks/on_cuda.py``.

Training steps a second with batches of this package on the device, drawn in the learner's turn or
ahead by a thread; with copies that a program makes by hand; with Stable-Baselines3's buffer, if it
is installed; and with one batch that stays on the device, which is the limit. The learners are DQN
on stacks of four frames of 84 x 84 pixels, and a network of two layers on small steps. It needs a
CUDA device and PyTorch.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import nn
from waiting import ACTIONS, FIELDS, SHAPE, Learner, of_stable_baselines3, ours

from cpprb_like import ReplayBuffer

DEVICE = "cuda"
SECONDS, TURNS = 0.4, 5  # of each measurement, in turns with the others
Batches = Iterator[Any]
SMALL: dict[str, Any] = FIELDS | {"obs": {"shape": 17}, "next_obs": {"shape": 17}}


class SmallLearner(Learner):
    """DQN with two layers of 256 units."""

    def __init__(self) -> None:
        self.network = nn.Sequential(
            nn.Linear(17, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, ACTIONS)
        )
        self.optimizer = torch.optim.Adam(self.network.parameters(), 1e-4)


def small(rows: int) -> ReplayBuffer:
    """A buffer of small steps."""
    rb = ReplayBuffer(rows, SMALL, seed=0)
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(2, rows, 17)).astype("f4")
    rb.add(**steps_but_images(rows), obs=obs[0], next_obs=obs[1])
    return rb


def steps_but_images(rows: int) -> dict[str, Any]:
    """Random steps without their observations."""
    rng = np.random.default_rng(1)
    return {
        "act": rng.integers(0, ACTIONS, rows),
        "rew": rng.random(rows, np.float32),
        "done": np.zeros(rows, np.float32),
    }


def by_hand(rb: ReplayBuffer, n: int) -> Batches:
    """``sample``, and a copy of each column."""
    while True:
        yield {name: torch.as_tensor(values).to(DEVICE) for name, values in rb.sample(n).items()}


def resident(rb: ReplayBuffer, n: int) -> Batches:
    """One batch that stays on the device."""
    batch = next(by_hand(rb, n))
    while True:
        yield batch


def theirs(rows: int, n: int) -> Batches:
    """Batches of Stable-Baselines3, moved by its own ``to_torch``."""
    for batch in of_stable_baselines3(rows, n, ExitStack()):
        yield {name: values.to(DEVICE) for name, values in batch.items()}


def contenders(rb: ReplayBuffer, n: int, stack: ExitStack, *, images: bool) -> dict[str, Batches]:
    """The ways to a batch on the device."""
    found: dict[str, Batches] = {"one batch on the device": resident(rb, n)}
    for ahead in (0, 1, 2):
        batches = stack.enter_context(rb.batches(n, to="torch", device=DEVICE, prefetch=ahead))
        found[f"batches, prefetch={ahead}"] = batches
    found["sample, copies by hand"] = by_hand(rb, n)
    if images and importlib.util.find_spec("stable_baselines3"):
        found["Stable-Baselines3"] = theirs(len(rb), n)
    return found


def rate(batches: Batches, learn: Callable[[Any], None]) -> float:
    """Steps a second."""
    for _ in range(5):
        learn(next(batches))
    torch.cuda.synchronize()
    count, start = 0, time.perf_counter()
    while time.perf_counter() < start + SECONDS:
        learn(next(batches))
        count += 1
    torch.cuda.synchronize()
    return count / (time.perf_counter() - start)


def copies(nbytes: int) -> float:
    """Bytes a second from pinned memory to the device, in copies of so many bytes."""
    pinned = torch.empty(nbytes, dtype=torch.uint8).pin_memory()
    place = torch.empty(nbytes, dtype=torch.uint8, device=DEVICE)
    for _ in range(3):
        place.copy_(pinned, non_blocking=True)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(50):
        place.copy_(pinned, non_blocking=True)
    torch.cuda.synchronize()
    return 50 * nbytes / (time.perf_counter() - start)


def measured(case: str, n: int, rows: int) -> dict[str, Any]:
    """Of one case and batch size: steps a second with a learner, and batches a second without."""
    images = case == "images"
    rb = ours(rows) if images else small(rows)
    learner = Learner() if images else SmallLearner()
    learner.network.to(DEVICE)
    nbytes = sum(values.nbytes for values in rb.sample(n).values())
    found: dict[str, Any] = {"case": case, "batch": n, "bytes": nbytes, "copies": copies(nbytes)}
    with ExitStack() as stack:
        ways = contenders(rb, n, stack, images=images)
        for what, learn in (("steps", learner.learn), ("batches", lambda _: None)):
            turns: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(TURNS):
                for name, batches in ways.items():
                    turns[name].append(rate(batches, learn))
            found[what] = {name: statistics.median(rates) for name, rates in turns.items()}
    return found


def main() -> None:
    """Measure, and print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    options = parser.parse_args()
    cases = [
        measured(case, n, options.rows)
        for case, n in (("images", 32), ("images", 256), ("small", 256))
    ]
    for found in cases:
        print(
            f"{found['case']}, batches of {found['batch']}: {found['bytes']:,} bytes,"
            f" copied at {found['copies'] / 1e9:.1f} GB/s from pinned memory"
        )
        for name, steps_a_second in found["steps"].items():
            share = steps_a_second / found["steps"]["one batch on the device"]
            print(
                f"  {name:26} {steps_a_second:8,.0f} steps/s  {share:5.2f} of the limit"
                f"  {found['batches'][name]:8,.0f} batches/s"
            )
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "shape": SHAPE}
    print(json.dumps({"about": about, "cases": cases}))


if __name__ == "__main__":
    main()
