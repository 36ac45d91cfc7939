"""``compat.dqn`` and ``ReplayMemory`` against the rules that they stand for, written plainly.

The plain rules are those of Berkeley's course code and of Géron's notebook, in NumPy and Python as
such programs have them.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from contender import Contender
from data import DEPTH, FRAME
from measure import Work, statement
from numpy.typing import NDArray

from cpprb_like import ReplayMemory
from cpprb_like.compat.dqn import ReplayBuffer

from .originals import original, side_by_side
from .uniform import ours, shelf

__all__ = ["PlainFrames", "PlainMemory", "in_deque"]

Array = NDArray[Any]

BATCH = 32
SHAPE = (*FRAME, 1)
EPISODE = 200
DRAWN = 5  # objects, as the notebook measures it
APPENDED = 1000  # objects, one by one in a loop

# What the loop of a training program does at each step of the environment.
STEP = (
    "idx = rb.store_frame(frame)\n"
    "view = rb.encode_recent_observation()\n"
    "rb.store_effect(idx, 1, 0.0, False)"
)
APPEND = "for transition in fresh:\n    target.append(transition)"
SAMPLES = (
    *2 * (f"batch = target.sample({DRAWN})",),
    f"batch = [target[i] for i in np.random.randint(len(target), size={DRAWN})]",
)

in_deque = Contender("deque", "Objects in a deque of limited length, drawn by their places.")


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


def frames(rows: int) -> tuple[ReplayBuffer, PlainFrames]:
    """The front and the plain rule, full of the same frames."""
    recorded = np.random.default_rng(0).integers(0, 256, (EPISODE, *SHAPE), np.uint8)
    both = ReplayBuffer(rows, DEPTH), PlainFrames(rows, DEPTH)
    for number in range(rows):
        for rb in both:
            idx = rb.store_frame(recorded[number % EPISODE])
            rb.store_effect(idx, number % 6, 0.0, number % EPISODE == EPISODE - 1)
    return both


@side_by_side("dqn_sample", ours, original)
def dqn_sample(place: int, rows: int) -> Work:
    """Different transitions, each of two views."""
    return statement(f"batch = rb.sample({BATCH})", rb=shelf.get(frames, rows)[place])


@side_by_side("dqn_store", ours, original)
def dqn_store(place: int, rows: int) -> Work:
    """The calls of a training program at a step of the environment."""
    frame = np.zeros(SHAPE, np.uint8)
    return statement(STEP, rb=shelf.get(frames, rows)[place], frame=frame)


def objects(rows: int) -> tuple[ReplayMemory, PlainMemory, deque[Any]]:
    """The front, the notebook's way and the one that it measures it against, full of the same."""
    rng = np.random.default_rng(0)
    targets = ReplayMemory(rows), PlainMemory(rows), deque[Any](maxlen=rows)
    state = rng.random(4)
    for number in range(rows):
        following = rng.random(4)
        transition = (state, number % 2, 1.0, following, number % EPISODE == 0)
        for target in targets:
            target.append(transition)
        state = following
    return targets


@side_by_side("memory_sample", ours, original, in_deque)
def memory_sample(place: int, rows: int) -> Work:
    """Some objects of many."""
    return statement(SAMPLES[place], target=shelf.get(objects, rows)[place], np=np)


@side_by_side("memory_append", ours, original, in_deque)
def memory_append(place: int, rows: int) -> Work:
    """An object in a loop over some, to a memory that is full of them: so none has to be freed."""
    target = shelf.get(objects, rows)[place]
    fresh = [(np.zeros(4), number % 2, 1.0, np.ones(4), False) for number in range(APPENDED)]
    loop = statement(APPEND, target=target, fresh=fresh)
    loop(-(-rows // APPENDED))

    def work(calls: int) -> float:
        loops = -(-calls // APPENDED)  # whole ones, and of these the share of the calls
        return loop(loops) * calls / (loops * APPENDED)

    return work
