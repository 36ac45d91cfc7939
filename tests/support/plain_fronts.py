"""The rules of two older systems for one step, in NumPy and Python as those systems have them.

Fronts are timed beside them. Not here: what the fronts must return, which their own tests hold.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["PlainExperienceReplay", "PlainFrames"]

Array = NDArray[Any]


class PlainFrames:
    """Berkeley's course: frames in a ring, and the stack of the newest ones as a view."""

    def __init__(self, size: int, depth: int, shape: tuple[int, ...]) -> None:
        self.size, self.depth, self.shape = size, depth, shape
        self.next_idx = self.stored = 0
        self.obs = np.empty((size, *shape), np.uint8)
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
        """Write what followed the frame."""
        self.action[idx] = action
        self.reward[idx] = reward
        self.done[idx] = done

    def encode_recent_observation(self) -> Array:
        """The newest stack; a view of the ring unless frames are missing."""
        idx = (self.next_idx - 1) % self.size
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
        return self.obs[first : idx + 1].transpose(1, 2, 0, 3).reshape(*self.shape[:2], -1)


class PlainExperienceReplay:
    """keras-gym: one array for each part of a step, actions one-hot, frames without their stack."""

    def __init__(self, slots: int, frames: int, actions: int) -> None:
        self.slots, self.frames, self.actions = slots, frames, actions
        self.count = 0

    def add(self, s: Array, a: int, r: float, done: bool, episode_id: int) -> None:
        """Write the newest frame and the rest of the step."""
        frame = s if self.frames == 1 else s[..., -1]
        if self.count == 0:
            self.s = np.zeros((self.slots, *frame.shape), frame.dtype)
            self.a = np.zeros((self.slots, self.actions))
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
