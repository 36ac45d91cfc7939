"""``EnvUniform``: the draws of Stable-Baselines3's replay buffer.

In a separate module, so that a checkpoint can be read without Stable-Baselines3. Not here: batches
(``stable_baselines3``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cpprb_like.errors import NotEnoughDataError
from cpprb_like.samplers import Extra, LegacyUniform, Slots


class EnvUniform(LegacyUniform):
    """Uniform sampling of a time step, then of an environment, by ``np.random.randint``.

    After the same ``np.random.seed`` the sampler draws the same rows as Stable-Baselines3. With
    ``replace=False``, and in a buffer with n-step returns, it draws as ``LegacyUniform``.
    """

    def draw(
        self, ring: Any, n: int, rng: np.random.Generator, *, replace: bool
    ) -> tuple[Slots, Extra]:
        n_envs = ring.n_envs
        if not replace or ring.lookahead or len(ring) % n_envs:
            return super().draw(ring, n, rng, replace=replace)
        if n and len(ring) == 0:
            raise NotEnoughDataError(f"cannot sample {n} rows: the buffer is empty")
        times = np.random.randint(0, len(ring) // n_envs, size=n)
        envs = np.random.randint(0, n_envs, size=n)
        return self._slots_at(ring, times * n_envs + envs), {}

    def __repr__(self) -> str:
        return "EnvUniform()"
