"""What the tests of prioritized replay share: buffers of numbered rows, and weights by formula."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt

from cpprb_like import PrioritizedReplayBuffer
from cpprb_like.samplers import Prioritized

Array = npt.NDArray[Any]

NUMBER: dict[str, Any] = {"x": {"shape": (), "dtype": "i8"}}
FIVE_SMALL: dict[str, Any] = {
    "obs": {"shape": 4},
    "act": {},
    "rew": {},
    "next_obs": {"shape": 4},
    "done": {"dtype": bool},
}


def prioritized(
    capacity: int,
    *args: Any,
    n_envs: int = 1,
    seed: int = 0,
    fields: dict[str, Any] | None = None,
    **options: Any,
) -> PrioritizedReplayBuffer:
    """An empty buffer of numbers (or other fields); all other options are those of the sampler.

    Its weights are float64, so that they can be compared with those of the formula.
    """
    sampler = Prioritized(*args, **{"weights_dtype": np.float64, **options})
    return PrioritizedReplayBuffer(
        capacity, fields or NUMBER, n_envs=n_envs, sampler=sampler, seed=seed
    )


def with_priorities(priorities: list[float], **options: Any) -> PrioritizedReplayBuffer:
    """A full buffer of rows 0, 1, 2, ... that weigh what their priorities say, exactly."""
    rb = prioritized(len(priorities), 1.0, eps=0.0, **options)
    rb.add(x=np.arange(len(priorities)), priorities=priorities)
    return rb


def sampler_of(rb: PrioritizedReplayBuffer) -> Prioritized:
    """The sampler that ``prioritized`` gave it."""
    return cast(Prioritized, rb.sampler)


def weights_of(rb: PrioritizedReplayBuffer) -> Array:
    """The weight of each slot."""
    return sampler_of(rb).rows.get(np.arange(rb.capacity))


def assert_nodes_are_sums(rb: PrioritizedReplayBuffer) -> None:
    """Nodes say what the leaves say, to the last bit, and only slots with a step have a weight."""
    rows = sampler_of(rb).rows
    leaves, total, least = weights_of(rb), rows.total, rows.least
    there = np.zeros(rb.capacity, bool)
    there[rb.ring.present_slots()] = True
    assert (leaves[~there] == 0).all()
    rows.tree.rebuild()
    assert (total, least) == (rows.total, rows.least)
    assert least == min(leaves[leaves > 0], default=np.inf)
