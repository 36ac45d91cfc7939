"""Spaces and steps for the buffers of Stable-Baselines3."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from gymnasium import spaces

BOX = spaces.Box(-1, 1, (3,), np.float32)
OBSERVATIONS: dict[str, Any] = {
    "float32": BOX,
    "float64": spaces.Box(-1, 1, (2, 3), np.float64),
    "image": spaces.Box(0, 255, (4, 36, 36), np.uint8),
    "discrete": spaces.Discrete(7),
    "multi-discrete": spaces.MultiDiscrete([3, 4]),
    "multi-binary": spaces.MultiBinary(5),
    "dict": spaces.Dict(
        {"at": BOX, "id": spaces.Discrete(4), "seen": spaces.Box(0, 255, (36, 36, 1), np.uint8)}
    ),
}
ACTIONS = {
    "discrete": spaces.Discrete(3),
    "float64": spaces.Box(-1, 1, (2,), np.float64),
    "multi-discrete": spaces.MultiDiscrete([3, 4]),
}


def draw(space: Any, n: int) -> Any:
    """A value of the space for each environment."""
    if isinstance(space, spaces.Dict):
        return {key: draw(inner, n) for key, inner in space.spaces.items()}
    return np.stack([space.sample() for _ in range(n)])


class Steps:
    """Steps of several environments as an algorithm of Stable-Baselines3 adds them."""

    def __init__(self, obs: Any, act: Any, n_envs: int, seed: int = 0) -> None:
        self.obs, self.act, self.n_envs = obs, act, n_envs
        obs.seed(seed)
        act.seed(seed)
        self.rng = np.random.default_rng(seed)
        self.now = draw(obs, n_envs)

    def __call__(self) -> tuple[Any, ...]:
        n = self.n_envs
        new = draw(self.obs, n)
        last = copy.deepcopy(new)
        done = self.rng.random(n) < 0.2
        infos: list[dict[str, Any]] = []
        final = draw(self.obs, n)
        for env in range(n):
            infos.append({"TimeLimit.truncated": bool(done[env] and self.rng.random() < 0.5)})
            if not done[env]:
                continue
            if isinstance(last, dict):
                for key in last:
                    last[key][env] = final[key][env]
            else:
                last[env] = final[env]
        step = (self.now, last, draw(self.act, n), self.rng.normal(size=n), done, infos)
        self.now = new
        return step
