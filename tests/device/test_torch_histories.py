"""Random histories: batches of a ``DeviceReplay`` are those of a ``ReplayBuffer``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from device_cases import (
    Front,
    Step,
    Twin,
    assert_same_rows,
    declaration_of,
    make_rows_absent,
    play,
    random_twin,
    returned,
)
from hypothesis import given
from hypothesis import strategies as st
from optional import need
from scale import HISTORIES

from cpprb_like.errors import NotEnoughDataError
from cpprb_like.views import Layer

torch = need("torch")
from cpprb_like.device import DeviceReplay

GROUPS = 30


class TorchFront(Front):
    """A ``DeviceReplay`` with the calls of a history."""

    def __init__(self, replay: DeviceReplay) -> None:
        self.replay = replay
        self.rows, self.state = self.replay._rows, self.replay._state

    def add(self, step: Step, final: Any) -> None:
        tensors = {name: torch.from_numpy(values.copy()) for name, values in step.items()}
        self.replay.add(**tensors, final=final if final is True else torch.from_numpy(final.copy()))

    def clear(self) -> None:
        self.replay.clear()

    def end_episodes(self) -> None:
        self.replay.on_episode_end()

    def sample(self, layers: tuple[Layer, ...], n: int, fields: Any) -> Step | None:
        source = self.replay.view(*layers) if layers else self.replay
        try:
            batch = source.sample(n, fields=fields, indexes=True)
        except NotEnoughDataError:
            return None
        except RuntimeError as error:
            assert "no row can be drawn" in str(error)  # noqa: PT017
            return None
        return {name: values.numpy() for name, values in batch.items()}

    def update(self, indexes: Any, act: Any) -> None:
        self.replay.update(torch.from_numpy(indexes), act=torch.from_numpy(act))

    def update_priorities(self, indexes: Any, priorities: Any) -> None:
        self.replay.update_priorities(torch.from_numpy(indexes), torch.from_numpy(priorities))


def replay_of(twin: Twin, seed: int) -> DeviceReplay:
    """A replay without rows with the declaration of a twin."""
    size, fields, options = declaration_of(twin)
    return DeviceReplay(size, fields, seed=seed, **options)


def play_one(seed: int, prioritized: bool) -> None:
    """Play a random history."""
    rng = np.random.default_rng(seed)
    twin = random_twin(rng, prioritized)
    play(rng, twin, TorchFront(replay_of(twin, seed)))


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("group", range(GROUPS))
def test_batches_are_those_of_the_host(group: int, prioritized: bool) -> None:
    """Rows, n-step returns, stacks, sequences and weights are equal; only sound rows are drawn."""
    for seed in range(group, HISTORIES // 2, GROUPS):
        play_one(seed, prioritized)


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_rows_of_the_host_come_back(seed: int, prioritized: bool) -> None:
    """Where environments lack rows, each has those of its own; then the history goes on.

    Rows of several environments were refused if one was absent, as ``to_host`` makes rows whose
    next values are unknown.
    """
    rng = np.random.default_rng(seed)
    twin = random_twin(rng, prioritized)
    front = TorchFront(replay_of(twin, seed))
    play(rng, twin, front, 6)
    host = front.replay.to_host(seed=0)
    make_rows_absent(rng, twin, host)
    twin.finals = twin.size  # all next values have room
    back = DeviceReplay.from_host(host, finals=twin.finals)
    if rng.random() < 0.5:  # by a state, which has to say that rows are absent
        state, back = back.state_dict(), replay_of(twin, seed)
        back.load_state_dict(state)
    again = back.to_host(seed=0)
    assert len(back) == len(host) == len(again)
    assert_same_rows(host, again)
    play(rng, returned(twin, again), TorchFront(back), 6)
