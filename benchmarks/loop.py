"""A DQN that learns CartPole from the replay buffer of whoever is measured: all else is the same.

Network, environment, seeds, batch and schedule are those of every contender; NumPy and gymnasium
are all that the loop needs. It is measured as a whole, and the buffer's part of it by a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from itertools import pairwise
from time import perf_counter
from typing import Any, Protocol

import gymnasium
import numpy as np
from contender import Contender
from measure import Work, compiled
from numpy.typing import NDArray

__all__ = ["BATCH", "CAPACITY", "Loop", "Replay", "loop_cases"]

Array = NDArray[Any]

CAPACITY, BATCH, WARM_UP = 100_000, 64, 1_000  # steps held, steps drawn, steps before learning
LAYERS = (4, 64, 64, 2)  # observation, hidden, hidden, Q of both actions
LEARNING_RATE, TARGET_RATE = 1e-3, 0.01
CLOCKED = 256  # steps of a turn that is clocked, at most
GAMMA, EXPLORATION = 0.99, 0.1  # the same from the first step: so all steps are alike


class Replay(Protocol):
    """What the loop wants of a replay buffer, which may be as short as two calls."""

    def add(
        self, obs: Array, act: int, rew: float, next_obs: Array, done: bool, truncated: bool, /
    ) -> object:
        """Store a step. Where it is ``done`` nothing follows; where ``truncated``, time was up."""
        ...

    def sample(self, n: int, /) -> Mapping[str, Array]:
        """Arrays obs, act, rew, next_obs, done of so many random steps, the numbers' shape (n,)."""
        ...


class Network:
    """Q of both actions, by two hidden layers; it learns by Adam."""

    def __init__(self, rng: np.random.Generator) -> None:
        shapes = [(inputs + 1, outputs) for inputs, outputs in pairwise(LAYERS)]
        ends = np.cumsum([rows * columns for rows, columns in shapes])
        self.flat, self.slope, self.mean, self.square = np.zeros((4, ends[-1]), np.float32)
        self.layers, self.slopes = (
            [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
            for parts in (np.split(self.flat, ends[:-1]), np.split(self.slope, ends[:-1]))
        )
        for layer in self.layers:  # the last row is what is added to all: it begins with 0
            layer[:-1] = rng.normal(0.0, np.sqrt(2 / len(layer)), layer[:-1].shape)
        self.updates = 0

    def __call__(self, obs: Array) -> Array:
        """Q of both actions in each state, shape (n, 2)."""
        return self._through(obs)[-1]

    def _through(self, obs: Array) -> list[Array]:
        """What each layer is given, and what the last one gives."""
        values = [obs]
        *hidden, last = self.layers
        for layer in hidden:
            values.append(np.maximum(values[-1] @ layer[:-1] + layer[-1], 0))
        return [*values, values[-1] @ last[:-1] + last[-1]]

    def learn(self, obs: Array, act: Array, goal: Array) -> None:
        """One step towards a goal for Q of these actions, large errors clipped."""
        *given, q = self._through(obs)
        rows, error = np.arange(len(act)), np.zeros_like(q)
        error[rows, act] = np.clip(q[rows, act] - goal, -1, 1) / len(act)
        backwards = [*zip(self.layers, self.slopes, given, strict=True)][::-1]
        for layer, slope, values in backwards:
            slope[:-1] = values.T @ error
            slope[-1] = error.sum(0)
            error = (error @ layer[:-1].T) * (values > 0)
        self.updates += 1
        self.mean += 0.1 * (self.slope - self.mean)
        self.square += 0.001 * (self.slope**2 - self.square)
        rate = LEARNING_RATE * np.sqrt(1 - 0.999**self.updates) / (1 - 0.9**self.updates)
        self.flat -= np.float32(rate) * self.mean / (np.sqrt(self.square) + np.float32(1e-8))


class Loop:
    """A DQN and its buffer, past the warm-up; it goes on from where it was."""

    def __init__(self, buffer: Replay) -> None:
        self.buffer = buffer
        self.rng = np.random.default_rng(0)
        self.online, self.target = Network(self.rng), Network(self.rng)
        self.target.flat[:] = self.online.flat
        self.env = gymnasium.make("CartPole-v1")
        self.obs, _ = self.env.reset(seed=0)
        self.episodes = 0
        for _ in range(WARM_UP):
            self.act(buffer)

    def act(self, buffer: Replay) -> None:
        """One step of the environment, into the buffer."""
        best = int(self.online(self.obs[np.newaxis]).argmax())
        action = int(self.rng.integers(2)) if self.rng.random() < EXPLORATION else best
        following, reward, terminated, truncated, _ = self.env.step(action)
        buffer.add(self.obs, action, float(reward), following, terminated, truncated)
        self.obs = following
        if terminated or truncated:
            self.obs, _ = self.env.reset()
            self.episodes += 1

    def learn(self, buffer: Replay) -> None:
        """One update from a batch, and of the network that goals come from."""
        batch = buffer.sample(BATCH)
        best = self.target(batch["next_obs"]).max(1)
        goal = batch["rew"] + np.float32(GAMMA) * np.where(batch["done"], np.float32(0), best)
        self.online.learn(batch["obs"], batch["act"], goal)
        self.target.flat += np.float32(TARGET_RATE) * (self.online.flat - self.target.flat)

    def run(self, steps: int) -> None:
        """So many steps of the environment, an update after each."""
        self._run(steps, self.buffer)

    def in_buffer(self, steps: int) -> float:
        """The same; seconds that pass within the buffer's calls, found from some of the steps.

        They are a small part of the time that a turn would take if it went on for all of them.
        """
        some = min(steps, CLOCKED)
        clocked = Clocked(self.buffer)
        self._run(some, clocked)
        return clocked.seconds * steps / some

    def _run(self, steps: int, buffer: Replay) -> None:
        for _ in range(steps):
            self.act(buffer)
            self.learn(buffer)


class Clocked:
    """A buffer with a clock around its calls. Reading it counts, and is the same for all."""

    def __init__(self, buffer: Replay) -> None:
        self.buffer = buffer
        self.seconds = 0.0

    def add(
        self, obs: Array, act: int, rew: float, next_obs: Array, done: bool, truncated: bool
    ) -> None:
        """Store a step."""
        start = perf_counter()
        self.buffer.add(obs, act, rew, next_obs, done, truncated)
        self.seconds += perf_counter() - start

    def sample(self, n: int) -> Mapping[str, Array]:
        """Draw steps."""
        start = perf_counter()
        batch = self.buffer.sample(n)
        self.seconds += perf_counter() - start
        return batch


def loop_cases(contender: Contender, make: Callable[[int], Replay]) -> None:
    """The contender does both operations of the loop, with the buffer made for a capacity."""

    @cache
    def loop() -> Loop:
        return Loop(make(CAPACITY))

    @contender.does("loop_step")
    def loop_step() -> Work:
        """Seconds of an environment step, with the update after it."""
        return compiled(loop().run)

    @contender.does("loop_in_buffer")
    def loop_in_buffer() -> Work:
        """Seconds of them within the buffer."""
        return loop().in_buffer
