"""A DQN that learns CartPole from the replay buffer of a contender.

All contenders share the network, the environment, seeds, batch and schedule, which need NumPy and
gymnasium alone. The loop is measured as a whole, and the calls of the buffer by a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from itertools import pairwise
from time import perf_counter
from typing import Any

import gymnasium
import numpy as np
from contender import Contender
from measure import Work, compiled
from numpy.typing import NDArray

Array = NDArray[Any]
Add = Callable[[dict[str, Any], bool], object]  # a step with ``done``, and whether time was up
Sample = Callable[[int], Mapping[str, Array]]  # so many steps, numbers of shape (n,)
Replay = Callable[[int], tuple[Add, Sample]]  # both calls of a new buffer of this capacity

CAPACITY, BATCH, WARM_UP = 100_000, 64, 1_000  # steps held, steps drawn, steps before learning
LAYERS = (4, 64, 64, 2)  # observation, hidden, hidden, Q of both actions
LEARNING_RATE, TARGET_RATE = 1e-3, 0.01
CLOCKED = 256  # steps of a turn that is clocked, at most
GAMMA, EXPLORATION = 0.99, 0.1  # the same from the first step: so all steps are alike


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
    """A DQN and both calls of its buffer, past the warm-up; each run continues the last."""

    def __init__(self, add: Add, sample: Sample) -> None:
        self.calls = add, sample
        self.rng = np.random.default_rng(0)
        self.online, self.target = Network(self.rng), Network(self.rng)
        self.target.flat[:] = self.online.flat
        self.env = gymnasium.make("CartPole-v1")
        self.obs, _ = self.env.reset(seed=0)
        self.episodes = 0
        for _ in range(WARM_UP):
            self.act(add)

    def act(self, add: Add) -> None:
        """One step of the environment, into the buffer."""
        best = int(self.online(self.obs[np.newaxis]).argmax())
        action = int(self.rng.integers(2)) if self.rng.random() < EXPLORATION else best
        following, reward, terminated, truncated, _ = self.env.step(action)
        step = {"obs": self.obs, "act": action, "rew": float(reward)}
        add(step | {"next_obs": following, "done": terminated}, truncated)
        self.obs = following
        if terminated or truncated:
            self.obs, _ = self.env.reset()
            self.episodes += 1

    def learn(self, sample: Sample) -> None:
        """One update from a batch, and of the network that goals come from."""
        batch = sample(BATCH)
        best = self.target(batch["next_obs"]).max(1)
        goal = batch["rew"] + np.float32(GAMMA) * np.where(batch["done"], np.float32(0), best)
        self.online.learn(batch["obs"], batch["act"], goal)
        self.target.flat += np.float32(TARGET_RATE) * (self.online.flat - self.target.flat)

    def run(self, steps: int) -> None:
        """So many steps of the environment, an update after each."""
        self._run(steps, *self.calls)

    def in_buffer(self, steps: int) -> float:
        """The same; returns the seconds within the buffer's calls, measured on some of the steps.

        A turn of all steps would take far longer, as these calls are a small part of a step.
        """
        some, seconds = min(steps, CLOCKED), 0.0

        def clocked(call: Callable[..., Any]) -> Callable[..., Any]:
            def timed(*arguments: Any) -> Any:
                nonlocal seconds
                start = perf_counter()
                result = call(*arguments)
                seconds += perf_counter() - start
                return result

            return timed

        add, sample = self.calls
        self._run(some, clocked(add), clocked(sample))
        return seconds * steps / some

    def _run(self, steps: int, add: Add, sample: Sample) -> None:
        for _ in range(steps):
            self.act(add)
            self.learn(sample)


def loop_cases(contender: Contender, replay: Replay) -> None:
    """The contender does both operations of the loop."""

    @cache
    def loop() -> Loop:
        return Loop(*replay(CAPACITY))

    @contender.does("loop_step")
    def loop_step() -> Work:
        """Seconds of an environment step, with the update after it."""
        return compiled(loop().run)

    @contender.does("loop_in_buffer")
    def loop_in_buffer() -> Work:
        """Seconds of them within the buffer."""
        return loop().in_buffer
