"""This package's buffer in a training loop."""

from __future__ import annotations

from typing import Any

from data import Batch
from loop import loop_cases

from cpprb_like import ReplayBuffer

from .uniform import env_dict, ours

__all__ = ["Replay"]


class Replay:
    """A ReplayBuffer as the loop wants it."""

    def __init__(self, capacity: int) -> None:
        self.rb = ReplayBuffer(capacity, env_dict("small"), seed=0)

    def add(
        self, obs: Any, act: int, rew: float, next_obs: Any, done: bool, truncated: bool
    ) -> None:
        """One call. That time was up need not be known: next observations are stored."""
        del truncated
        self.rb.add(obs=obs, act=act, rew=rew, next_obs=next_obs, done=done)

    def sample(self, n: int) -> Batch:
        """The batch as it comes."""
        return self.rb.sample(n)


loop_cases(ours, Replay)
