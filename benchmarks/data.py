"""What all contenders store and draw: the same steps, made from the same seeds.

NumPy alone is needed, so that every contender's environment can make them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Batch = dict[str, Array]

ALPHA, BETA, EPS = 0.6, 0.4, 1e-4  # priorities to weights, and weights to importance
GAMMA = 0.99
FRAME, DEPTH = (84, 84), 4
GAME = 1000  # steps of an episode of frames, and of one that sequences are read from
TOUCHED = 1 << 16  # leaves that one round of inputs touches: more than the second cache holds


@dataclass(frozen=True)
class Kind:
    """A step of five fields: obs, act, rew, next_obs, done."""

    obs_shape: tuple[int, ...]
    obs_dtype: str
    act_shape: tuple[int, ...]
    act_dtype: str

    @property
    def fields(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and dtype of each field."""
        return {
            "obs": (self.obs_shape, self.obs_dtype),
            "act": (self.act_shape, self.act_dtype),
            "rew": ((), "float32"),
            "next_obs": (self.obs_shape, self.obs_dtype),
            "done": ((), "bool"),
        }

    @property
    def nbytes(self) -> int:
        """Bytes of a step."""
        return sum(
            np.dtype(dtype).itemsize * int(np.prod(shape)) for shape, dtype in self.fields.values()
        )


KINDS = {
    "small": Kind((4,), "float32", (), "int64"),  # CartPole: 45 bytes
    "wide": Kind((376,), "float32", (17,), "float32"),  # a humanoid: 3 kB
    "images": Kind((*FRAME, DEPTH), "uint8", (), "int64"),  # Atari, all stored: 56 kB
}


def random_steps(n: int, kind: str = "small") -> Batch:
    """Steps with random values; episodes of 50 steps on average."""
    rng = np.random.default_rng(0)
    steps = {name: _random(rng, (n, *shape), d) for name, (shape, d) in KINDS[kind].fields.items()}
    steps["done"] = rng.random(n) < 0.02
    return steps


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    if dtype == "float32":
        return rng.random(shape, np.float32)
    if dtype == "uint8":
        return rng.integers(0, 256, shape, np.uint8)
    return rng.integers(0, 4, shape).astype(dtype)


def filling(rows: int, kind: str) -> Batch:
    """Random steps to fill a buffer with, again and again."""
    return random_steps(min(rows, 100_000 if kind == "small" else 1000), kind)


def one_step(kind: str) -> dict[str, Any]:
    """A step as an agent has it: its numbers are Python's."""
    firsts = {name: column[0] for name, column in random_steps(1, kind).items()}
    return {name: first if first.ndim else first.item() for name, first in firsts.items()}


def long_episode() -> Batch:
    """Random small steps of one episode that is much longer than sequences."""
    return random_steps(GAME) | {"done": np.arange(GAME) == GAME - 1}


def frames_of_episode() -> Batch:
    """Random single frames of one such episode."""
    frames = np.random.default_rng(0).integers(0, 256, (GAME, *FRAME), np.uint8)
    return {"obs": frames, "done": np.arange(GAME) == GAME - 1}


def trajectory(n: int, kind: str) -> Batch:
    """Steps of one episode, of which each begins where the one before has led."""
    if kind == "images":
        return game(np.random.default_rng(0), n)
    steps = random_steps(n + 1, kind)
    steps["next_obs"] = steps["obs"][1:]
    steps["done"] = np.arange(n) == n - 1
    return {name: column[:n] for name, column in steps.items()}


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


def taking_turns(*inputs: Iterable[Any]) -> Any:
    """A function that returns the rows of an array, or of several in a tuple, one after another."""
    rows = list(inputs[0]) if len(inputs) == 1 else list(zip(*inputs, strict=True))
    return cycle(rows).__next__


class TreeInputs:
    """Weights for all leaves; and slots, weights and targets, a row for each call."""

    def __init__(self, leaves: int, n: int) -> None:
        rng = np.random.default_rng(n)
        sets = max(1, TOUCHED // n)
        self.weights = rng.random(leaves) + 0.01
        self.slots = rng.integers(0, leaves, (sets, n), np.intp)
        self.values = rng.random((sets, n)) + 0.01
        self.targets = rng.random((sets, n)) * (self.weights.sum() * (1 - 1e-9))


class CycleInputs:
    """Priorities for all rows, and those of the batches to come."""

    def __init__(self, rows: int, n: int = 256) -> None:
        rng = np.random.default_rng(1)
        self.first = rng.random(rows)
        self.fresh = rng.random((TOUCHED // n, n))

    @property
    def weights(self) -> NDArray[np.float64]:
        """What the first priorities become."""
        return np.asarray((self.first + EPS) ** ALPHA)
