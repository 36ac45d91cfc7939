"""``compat.dqn`` and ``ReplayMemory`` against the rules that they stand for, written plainly.

The plain rules are those of Berkeley's course code and of Géron's notebook, in NumPy and Python as
such programs have them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from cases import Group
from measure import Effort, Row, interleave, statement
from numpy.typing import NDArray

from cpprb_like import ReplayMemory
from cpprb_like.compat.dqn import ReplayBuffer

__all__ = ["FRONTS_DQN", "PlainFrames", "PlainMemory", "frames", "objects"]

Array = NDArray[Any]

BATCH = 32
SHAPE = (84, 84, 1)
DEPTH = 4
EPISODE = 200
DRAWN = 5  # objects, as the notebook measures it
APPENDED = 1000  # objects, one by one in a loop

# What the loop of a training program does at each step of the environment.
STEP = (
    "idx = rb.store_frame(frame)\n"
    "view = rb.encode_recent_observation()\n"
    "rb.store_effect(idx, 1, 0.0, False)"
)


class PlainFrames:
    """The rule of the course: a view at a time, and the joining of frames by NumPy.

    Two things are left out that cost it nothing here: its draws reach the last two slots as well,
    and the newest slots of a full ring are not left out.
    """

    def __init__(self, size: int, depth: int) -> None:
        self.size, self.depth = size, depth
        self.next_idx = self.stored = 0
        self.obs = np.empty((size, *SHAPE), np.uint8)
        self.action = np.empty(size, np.int32)
        self.reward = np.empty(size, np.float32)
        self.done = np.zeros(size, np.bool_)

    def store_frame(self, frame: Array) -> int:
        """Write the newest frame."""
        idx = self.next_idx
        self.obs[idx] = frame
        self.next_idx = (idx + 1) % self.size
        self.stored = min(self.size, self.stored + 1)
        return idx

    def store_effect(self, idx: int, action: int, reward: float, done: bool) -> None:
        """Write what came after it."""
        self.action[idx] = action
        self.reward[idx] = reward
        self.done[idx] = done

    def encode_recent_observation(self) -> Array:
        """The newest view: of plain frames it is no copy, but a look into the ring."""
        return self._view((self.next_idx - 1) % self.size)

    def sample(self, batch_size: int) -> tuple[Array, ...]:
        """Different transitions, found by trial."""
        chosen: list[int] = []
        while len(chosen) < batch_size:
            idx = int(np.random.randint(0, self.stored - 1))
            if idx not in chosen:
                chosen.append(idx)
        obs = np.concatenate([self._view(idx)[np.newaxis] for idx in chosen])
        following = np.concatenate([self._view(idx + 1)[np.newaxis] for idx in chosen])
        mask = np.array([1.0 if self.done[idx] else 0.0 for idx in chosen], np.float32)
        return obs, self.action[chosen], self.reward[chosen], following, mask

    def _view(self, idx: int) -> Array:
        first = idx + 1 - self.depth
        if first < 0 and self.stored != self.size:
            first = 0
        for k in range(first, idx):
            if self.done[k % self.size]:
                first = k + 1
        missing = self.depth - (idx + 1 - first)
        if first < 0 or missing > 0:
            parts = [np.zeros_like(self.obs[0]) for _ in range(missing)]
            parts += [self.obs[k % self.size] for k in range(first, idx + 1)]
            return np.concatenate(parts, 2)
        return self.obs[first : idx + 1].transpose(1, 2, 0, 3).reshape(*SHAPE[:2], -1)


class PlainMemory:
    """The rule of the notebook: an array of objects, and places from NumPy."""

    def __init__(self, max_size: int) -> None:
        self.buffer = np.empty(max_size, dtype=object)
        self.max_size = max_size
        self.index = self.size = 0

    def append(self, obj: Any) -> None:
        """Put an object into the next place."""
        self.buffer[self.index] = obj
        self.size = min(self.size + 1, self.max_size)
        self.index = (self.index + 1) % self.max_size

    def sample(self, batch_size: int) -> Array:
        """Objects at random."""
        drawn: Array = self.buffer[np.random.randint(self.size, size=batch_size)]
        return drawn


def frames(effort: Effort, library: Path) -> Iterator[Row]:
    """Batches of stacked frames, and a step of a program that stores them."""
    del library
    rng = np.random.default_rng(0)
    recorded = rng.integers(0, 256, (EPISODE, *SHAPE), np.uint8)
    size = DEPTH * BATCH + effort.image_pairs
    ours, plain = ReplayBuffer(size, DEPTH), PlainFrames(size, DEPTH)
    for number in range(size):
        for rb in (ours, plain):
            idx = rb.store_frame(recorded[number % EPISODE])
            rb.store_effect(idx, number % 6, 0.0, number % EPISODE == EPISODE - 1)
    sample = f"batch = rb.sample({BATCH})"
    fast, slow = interleave(effort, statement(sample, rb=ours), statement(sample, rb=plain))
    yield Row.faster(f"compat.dqn: sample({BATCH}) of {DEPTH} frames", fast, slow, 5)
    frame = recorded[0]
    fast, slow = interleave(
        effort, statement(STEP, rb=ours, frame=frame), statement(STEP, rb=plain, frame=frame)
    )
    yield Row.faster("compat.dqn: store a step, view of the newest", fast, slow)


def objects(effort: Effort, library: Path) -> Iterator[Row]:
    """Appends and draws of transitions, against the notebook's two ways to keep them."""
    del library
    rng = np.random.default_rng(0)
    ours, plain = ReplayMemory(effort.rows), PlainMemory(effort.rows)
    queue = deque[Any](maxlen=effort.rows)
    state = rng.random(4)
    for number in range(effort.rows):
        following = rng.random(4)
        transition = (state, number % 2, 1.0, following, number % EPISODE == 0)
        for target in (ours, plain, queue):
            target.append(transition)
        state = following
    what = f"ReplayMemory: sample({DRAWN}) of {effort.rows:.0e}"
    sample = f"batch = target.sample({DRAWN})"
    by_index = f"batch = [target[i] for i in np.random.randint(len(target), size={DRAWN})]"
    fast, slow, walking = interleave(
        effort,
        statement(sample, target=ours),
        statement(sample, target=plain),
        statement(by_index, target=queue, np=np),
    )
    yield Row.faster(f"{what}, against NumPy", fast, slow, 5)
    yield Row.faster(f"{what}, against a deque", fast, walking, 100)
    fresh = list(queue)[:APPENDED]
    append = "for transition in fresh:\n    target.append(transition)"
    times = interleave(
        effort,
        *(statement(append, target=target, fresh=fresh) for target in (ours, queue, plain)),
    )
    fast, in_c, slow = [time / APPENDED for time in times]
    yield Row.faster("ReplayMemory: append, against a deque", fast, in_c, 1)
    yield Row.faster("ReplayMemory: append, against NumPy", fast, slow)


FRONTS_DQN: dict[str, Group] = {"frames": frames, "objects": objects}
