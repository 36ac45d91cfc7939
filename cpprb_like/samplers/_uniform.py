"""Uniform experience replay, with the generator of the buffer."""

from __future__ import annotations

import numpy as np

from cpprb_like._core import Ring
from cpprb_like.samplers._base import Extra, Sampler, Slots
from cpprb_like.samplers._rows import Rows
from cpprb_like.samplers._uniform_draws import draw_uniform


class Uniform(Sampler):
    """Uniform sampling, the default of ``ReplayBuffer``: every row has the same probability.

    Draws are with or without replacement. Cost: proportional to the batch size.
    """

    _is_uniform = True

    def draw(
        self, ring: Ring, n: int, rng: np.random.Generator, *, replace: bool
    ) -> tuple[Slots, Extra]:
        return draw_uniform(ring, n, rng, replace), {}

    def draw_starts(
        self, starts: Rows, n: int, rng: np.random.Generator, *, replace: bool
    ) -> tuple[Slots, Extra]:
        """See ``Sampler.draw_starts``: each start with the same probability."""
        return starts.draw(n, rng) if replace else starts.draw_distinct(n, rng), {}

    def __repr__(self) -> str:
        return "Uniform()"
