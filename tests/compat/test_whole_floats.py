"""Sizes that are floats, such as ``1e3``, where the replaced system takes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cpprb_like import LaBERmean, ReplayBuffer, ReverseReplayBuffer
from cpprb_like.compat.cpprb import HindsightReplayBuffer, SelectiveReplayBuffer
from cpprb_like.compat.keras_gym import ExperienceReplayBuffer, NStepCache
from cpprb_like.typing import FieldSpec

ENV = SimpleNamespace(action_space=SimpleNamespace(n=2))
FIELDS: dict[str, FieldSpec] = {"obs": {"shape": 2}, "act": {}, "next_obs": {"shape": 2}}
NSTEP: dict[str, FieldSpec] = {"rew": {}, "done": {}}


def replay(name: str, value: Any) -> Any:
    """A size of keras-gym's buffer."""
    sizes: dict[str, Any] = {"capacity": 9, name: value}
    return getattr(ExperienceReplayBuffer(ENV, **sizes), name)


def hindsight(name: str, value: Any) -> Any:
    """A size of cpprb's hindsight buffer."""
    sizes: dict[str, Any] = {"max_episode_len": 9, name: value}
    rb = HindsightReplayBuffer(100, FIELDS, reward_func=lambda *_: np.zeros(1), **sizes)
    return getattr(rb, name)


def episodes(name: str, value: Any) -> Any:
    """The capacity of cpprb's buffer of episodes, where one of its sizes is 3."""
    sizes: dict[str, Any] = {"episode_len": 1, name: value}
    return SelectiveReplayBuffer(**sizes).get_buffer_size() / (1 if name == "Nepisodes" else 10)


def steps(value: Any) -> Any:
    """The steps of an n-step return."""
    rb = ReplayBuffer(9, NSTEP, Nstep={"size": value})
    return sum(rb.add(rew=1, done=0) is None for _ in range(9)) + 1


CASES: list[Callable[[Any], Any]] = [
    *(partial(replay, name) for name in ("capacity", "batch_size", "bootstrap_n")),
    *(partial(hindsight, name) for name in ("max_episode_len", "additional_goals")),
    *(partial(episodes, name) for name in ("episode_len", "Nepisodes")),
    steps,
    lambda n: NStepCache(ENV, n, 0.9).n,
    lambda n: LaBERmean(n).batch_size,
    lambda n: LaBERmean(32, n).m,
    lambda n: ReverseReplayBuffer(9, FIELDS, stride=n).sampler.stride,  # type: ignore[attr-defined]
]


@pytest.mark.parametrize("size_of", CASES)
def test_a_float_of_integral_value_is_its_integer(size_of: Callable[[Any], Any]) -> None:
    """keras-gym calls ``int`` on its sizes, and cpprb's compiled code does the same."""
    for value in (3, 3.0, np.float32(3), np.int8(3)):
        size = size_of(value)
        assert size == 3
    for wrong in (2.5, True, "3", np.nan, None):
        with pytest.raises(TypeError, match="expected an integer"):
            size_of(wrong)


def test_a_batch_size_may_be_set_to_a_whole_float() -> None:
    """``batch_size`` is an attribute that programs set."""
    buffer = ExperienceReplayBuffer(ENV, 9, batch_size=2.0)  # type: ignore[arg-type]
    for t in range(9):
        buffer.add(np.float32(t), 0, 1.0, t == 8, 0)
    assert len(buffer.sample()[0]) == 2
    buffer.batch_size = 3.0  # type: ignore[assignment]
    assert len(buffer.sample()[0]) == 3
