"""Random histories: each batch of a ``JaxReplay`` is that of a ``ReplayBuffer`` with the rows."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from device_cases import (
    Front,
    Step,
    declaration_of,
    play,
    random_fields,
    random_layers,
    random_twin,
)
from optional import need
from scale import HISTORIES

from cpprb_like.views import Layer

jax = need("jax")
from cpprb_like.device import JaxReplay

SHAPES = 2 if HISTORIES < 1000 else 12  # twins, which are compiled, and have many histories each
READINGS = 3  # of each twin


@cache
def compiled(shape: int, prioritized: bool) -> tuple[Any, ...]:
    """A replay, its readings, and its compiled functions, which all histories of a shape share."""
    rng = np.random.default_rng(shape)
    twin = random_twin(rng, prioritized)
    readings = [(random_layers(rng, twin.steps), random_fields(rng, twin)) for _ in range(READINGS)]
    size, fields, options = declaration_of(twin)
    replay = JaxReplay(size, fields, **options)

    def sampler(layers: tuple[Layer, ...], names: Any) -> Any:
        source = replay.view(*layers) if layers else replay
        return jax.jit(lambda state, key: source.sample(state, key, 9, fields=names))

    return (
        replay,
        readings,
        {repr(reading): sampler(*reading) for reading in readings},
        jax.jit(lambda state, step, final: replay.add(state, step, final=final)),
        jax.jit(lambda state, indexes, act: replay.update(state, indexes, act=act)),
        jax.jit(replay.update_priorities),
    )


class JaxFront(Front):
    """A ``JaxReplay`` and its state with the calls of a history."""

    def __init__(self, seed: int, prioritized: bool) -> None:
        made = compiled(seed % SHAPES, prioritized)
        self.replay, self.readings, self._samplers, self._add, self._update, self._weigh = made
        self.rows, self.state, self.counts = self.replay._rows, self.replay.init(), (2,)
        self.key = jax.random.key(seed)

    def add(self, step: Step, final: Any) -> None:
        known = (
            np.ones(step["rew"].shape, np.bool_)
            if final is True
            else final.reshape(step["rew"].shape)
        )
        self.state = self._add(self.state, step, known)

    def clear(self) -> None:
        self.state = self.replay.clear(self.state)

    def end_episodes(self) -> None:
        self.state = self.replay.on_episode_end(self.state)

    def sample(self, layers: tuple[Layer, ...], n: int, fields: Any) -> Step | None:
        self.key, key = jax.random.split(self.key)
        batch = self._samplers[repr((layers, fields))](self.state, key)
        batch = {name: np.asarray(values) for name, values in batch.items()}
        if (batch["indexes"] < 0).any():
            floats = [values for values in batch.values() if values.dtype.kind == "f"]
            assert all(np.isnan(values).all() for values in floats)
            return None
        assert len(batch["indexes"]) == n
        return batch

    def update(self, indexes: Any, act: Any) -> None:
        self.state = self._update(self.state, indexes, act)

    def update_priorities(self, indexes: Any, priorities: Any) -> None:
        self.state = self._weigh(self.state, indexes, priorities)


def play_one(seed: int) -> int:
    """Play a random history; shapes of an odd number have priorities."""
    shape = seed % SHAPES
    twin = random_twin(np.random.default_rng(shape), bool(shape % 2))
    return play(np.random.default_rng(seed), twin, JaxFront(seed, bool(shape % 2)))


@pytest.mark.parametrize("shape", range(SHAPES))
def test_batches_are_those_of_the_host(shape: int) -> None:
    """Rows, n-step returns, stacks, sequences and weights are equal; only sound rows are drawn."""
    for seed in range(shape, HISTORIES // 4, SHAPES):
        play_one(seed)
