"""``compat.keras_gym`` against the rules of keras-gym and coax, written plainly in NumPy."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from cases import Group
from measure import Effort, Row, interleave, statement
from numpy.typing import NDArray

from cpprb_like.compat.keras_gym import (
    ExperienceReplayBuffer,
    SimpleReplayBuffer,
    TransitionBatch,
)

__all__ = ["KERAS_GYM", "PlainExperienceReplay", "PlainTransitions", "keras_gym"]

Array = NDArray[Any]

BATCH = 32
FRAME = (84, 84)
DEPTH = 4
ACTIONS = 6
EPISODE = 200
TIMES = 5  # faster than the plain rule, where the copying of frames counts most
ADD = "target.add(s, 1, 1.0, False, 0)"


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


def keras_gym(effort: Effort, library: Path) -> Iterator[Row]:
    """Batches and steps of frames and of small states; and coax's batches."""
    del library
    frames = np.random.default_rng(0).integers(0, 256, (*FRAME, DEPTH), np.uint8)
    for what, s, depth, rows, times in (
        ("84x84 with 4 frames", frames, DEPTH, effort.image_pairs, TIMES),
        ("4 floats", np.zeros(4), 1, effort.rows, None),
    ):
        ours, plain = _filled(s, depth, rows)
        fast, slow = interleave(
            effort,
            statement("batch = target.sample()", target=ours),
            statement("batch = target.sample()", target=plain),
        )
        yield Row.faster(f"keras-gym: sample({BATCH}), {what}", fast, slow, times)
        fast, slow = interleave(
            effort, statement(ADD, target=ours, s=s), statement(ADD, target=plain, s=s)
        )
        yield Row.faster(f"keras-gym: add, {what}", fast, slow)
    yield _coax(effort)


def _filled(
    s: Array, depth: int, rows: int
) -> tuple[ExperienceReplayBuffer, PlainExperienceReplay]:
    """Two full buffers of the same steps."""
    env = SimpleNamespace(action_space=SimpleNamespace(n=ACTIONS), num_frames=depth)
    ours = ExperienceReplayBuffer(env, rows, BATCH, random_seed=0)
    plain = PlainExperienceReplay(rows, depth, ours.bootstrap_n, ours.gamma)
    for step in range(rows + ours.bootstrap_n):
        done, episode = step % EPISODE == EPISODE - 1, step // EPISODE
        for target in (ours, plain):
            target.add(s, step % ACTIONS, 1.0, done, episode)
    return ours, plain


def _coax(effort: Effort) -> Row:
    ours, plain = SimpleReplayBuffer(effort.leaves, 0), PlainTransitions(effort.leaves)
    n = min(effort.leaves, 10_000)
    zeros = np.zeros(n)
    batch = TransitionBatch(np.zeros((n, 4)), zeros.astype(int), zeros, zeros, zeros, zeros)
    for target in (ours, plain):
        target.add(batch)
    sample = f"batch = target.sample({BATCH})"
    fast, slow = interleave(effort, statement(sample, target=ours), statement(sample, target=plain))
    return Row.faster(f"coax: SimpleReplayBuffer.sample({BATCH})", fast, slow)


KERAS_GYM: dict[str, Group] = {"keras_gym": keras_gym}
