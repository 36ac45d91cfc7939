"""``compat.keras_gym`` against the rules of keras-gym and coax, written plainly in NumPy."""

from __future__ import annotations

import random
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
from data import FRAME
from measure import Work, statement
from numpy.typing import NDArray

from cpprb_like.compat.keras_gym import (
    ExperienceReplayBuffer,
    SimpleReplayBuffer,
    TransitionBatch,
)

from .originals import original, side_by_side
from .uniform import ours, shelf

__all__ = ["PlainExperienceReplay", "PlainTransitions"]

Array = NDArray[Any]

BATCH = 32
ACTIONS = 6
EPISODE = 200
COAX_BATCH = 256
COAX_STEPS = 10_000  # held at most: coax keeps each in seven arrays of its own


class PlainExperienceReplay:
    """keras-gym's rule, a transition at a time: each draw looks at its rows by fancy indexing."""

    def __init__(self, capacity: int, frames: int, n: int, gamma: float) -> None:
        self.slots = capacity + n
        self.frames, self.n, self.gamma = frames, n, gamma
        self.random = np.random.RandomState(0)
        self.count = 0

    def add(self, s: Array, a: int, r: float, done: bool, episode_id: int) -> None:
        """Write the newest frame and the rest of the step."""
        frame = s if self.frames == 1 else s[..., -1]
        if self.count == 0:
            self.s = np.zeros((self.slots, *frame.shape), frame.dtype)
            self.a = np.zeros((self.slots, ACTIONS))
            self.r = np.zeros(self.slots)
            self.done = np.zeros(self.slots, bool)
            self.episode = np.zeros(self.slots, np.int32)
        slot = self.count % self.slots
        self.s[slot] = frame
        self.a[slot] = 0
        self.a[slot, a] = 1
        self.r[slot] = r
        self.done[slot] = done
        self.episode[slot] = episode_id
        self.count += 1

    def sample(self) -> tuple[Array, ...]:
        """Draw until the batch is full."""
        found: list[tuple[Any, ...]] = []
        while len(found) < BATCH:
            j = self.random.randint(min(self.count, self.slots))
            transition = self.at(j)
            if transition is not None:
                found.append(transition)
        return tuple(np.array(column) for column in zip(*found, strict=True))

    def at(self, j: int) -> tuple[Any, ...] | None:
        """The transition from a slot, if there is one."""
        back = np.arange(1 - self.frames, 1)
        here, after = (j + back) % self.slots, (j + self.n + back) % self.slots
        episode = self.episode[j]
        if (self.episode[here] > episode).any():
            return None
        reward, factor = 0.0, self.gamma**self.n
        for k in range(self.n):
            slot = (j + k) % self.slots
            reward += self.gamma**k * self.r[slot]
            if self.done[slot]:
                factor = 0.0
                break
        if factor and (self.episode[after] > episode).any():
            return None
        for slots in (here, after):
            for i in range(self.frames - 2, -1, -1):
                if self.episode[slots[i]] < episode:
                    slots[i] = slots[i + 1]
        return (
            self.state(here),
            self.a[j],
            reward,
            factor,
            self.state(after),
            self.a[after[-1]],
        )

    def state(self, slots: NDArray[np.intp]) -> Array:
        """A stack of frames, or the only one."""
        return self.s[slots[0]] if self.frames == 1 else self.s[slots].transpose(1, 2, 0)


class PlainTransitions:
    """coax's rule: single transitions in a deque, joined part by part."""

    def __init__(self, capacity: int) -> None:
        self.random = random.Random(0)
        self.kept: deque[TransitionBatch] = deque(maxlen=capacity)

    def add(self, batch: TransitionBatch) -> None:
        """Keep each transition of a batch."""
        self.kept.extend(batch.to_singles())

    def sample(self, n: int) -> TransitionBatch:
        """Draw without replacement."""
        drawn = self.random.sample(self.kept, n)
        parts = zip(*drawn, strict=True)
        return TransitionBatch(
            *(None if part[0] is None else np.concatenate(part) for part in parts)
        )


def state(depth: int) -> Array:
    """What a step brings: a stack of so many frames, or a few numbers."""
    if depth == 1:
        return np.zeros(4)
    return np.random.default_rng(0).integers(0, 256, (*FRAME, depth), np.uint8)


def filled(depth: int, rows: int) -> tuple[ExperienceReplayBuffer, PlainExperienceReplay]:
    """The front and the plain rule, full of the same steps, added one by one."""
    env = SimpleNamespace(action_space=SimpleNamespace(n=ACTIONS), num_frames=depth)
    front = ExperienceReplayBuffer(env, rows, BATCH, random_seed=0)
    plain = PlainExperienceReplay(rows, depth, front.bootstrap_n, front.gamma)
    s = state(depth)
    for step in range(rows + front.bootstrap_n):
        done, episode = step % EPISODE == EPISODE - 1, step // EPISODE
        for target in (front, plain):
            target.add(s, step % ACTIONS, 1.0, done, episode)
    return front, plain


@side_by_side("keras_gym_sample", ours, original)
def keras_gym_sample(place: int, depth: int, rows: int) -> Work:
    """A batch of the declared size."""
    return statement("batch = target.sample()", target=shelf.get(filled, depth, rows)[place])


@side_by_side("keras_gym_add", ours, original)
def keras_gym_add(place: int, depth: int, rows: int) -> Work:
    """One step of a further episode, which goes on and on."""
    target = shelf.get(filled, depth, rows)[place]
    add = f"target.add(s, 1, 1.0, False, {rows // EPISODE + 1})"
    return statement(add, target=target, s=state(depth))


def transitions(rows: int) -> tuple[SimpleReplayBuffer, PlainTransitions]:
    """The front for coax and the plain rule, with the same steps, not full."""
    n = min(rows, COAX_STEPS)
    zeros = np.zeros(n)
    batch = TransitionBatch(np.zeros((n, 4)), zeros.astype(int), zeros, zeros, zeros, zeros)
    both = SimpleReplayBuffer(rows, 0), PlainTransitions(rows)
    for target in both:
        target.add(batch)
    return both


@side_by_side("coax_sample", ours, original)
def coax_sample(place: int, rows: int) -> Work:
    """Different steps of 10 000."""
    target = shelf.get(transitions, rows)[place]
    return statement(f"batch = target.sample({COAX_BATCH})", target=target)
