"""Sources with numbered rows, whose batches tests compare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like.buffers import Mixture, Source
from cpprb_like.samplers import Recency
from cpprb_like.views import Hindsight, NStep, Sequences

FIELDS: dict[str, Any] = {
    "x": {"shape": (), "dtype": "i8"},
    "rew": {"shape": ()},
    "done": {"shape": (), "dtype": bool},
}


def filled(kind: type[ReplayBuffer] = ReplayBuffer, n: int = 40, **options: Any) -> Any:
    """A buffer of n numbered rows, in episodes of ten."""
    rb = kind(50, FIELDS, seed=3, **options)
    if n:
        rb.add(x=np.arange(n), rew=np.ones(n), done=np.arange(n) % 10 == 9)
    return rb


def mixture() -> Mixture:
    """A mixture of a plain and a prioritized buffer."""
    sources = {"a": filled(), "b": filled(PrioritizedReplayBuffer)}
    return Mixture(sources, {"a": 0.4, "b": 0.6}, seed=1)


SOURCES: dict[str, Callable[[], Source]] = {
    "plain": filled,
    "prioritized": lambda: filled(PrioritizedReplayBuffer, check_for_update=True),
    "recency": lambda: filled(sampler=Recency(least=3, updates=5)),
    "n-step": lambda: filled().view(NStep(3)),
    "sequences": lambda: filled(PrioritizedReplayBuffer, check_for_update=True).view(Sequences(4)),
    "mixture": mixture,
}


def listed(batch: dict[str, Any]) -> dict[str, Any]:
    """A batch that can be compared."""
    return {name: np.asarray(values).tolist() for name, values in batch.items()}


def goals(fail_at: int, error: BaseException) -> tuple[Source, list[int]]:
    """A view of 50 rows whose reward function raises in one of its calls, and the calls."""
    fields: dict[str, Any] = {
        name: {"shape": ()} for name in ("achieved_goal", "desired_goal", "rew", "done")
    }
    rb = ReplayBuffer(100, fields, next_of="achieved_goal", seed=0)
    at = np.arange(50.0)
    rb.add(achieved_goal=at, next_achieved_goal=at + 1, desired_goal=-at - 1, rew=at, done=at == 49)
    calls: list[int] = []

    def reward(achieved: Any, goal: Any, *_: Any) -> Any:
        calls.append(len(achieved))
        if len(calls) == fail_at:
            raise error
        return (achieved == goal).astype(np.float32)

    return rb.view(Hindsight(reward)), calls
