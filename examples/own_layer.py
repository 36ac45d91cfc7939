"""Two layers of your own for views: returns-to-go, and advantages by GAE.

    python examples/own_layer.py

Both are computed from the rows that follow a drawn row in its episode, when a batch is drawn. So
they cost no memory, and follow what ``update`` writes into the fields that they read. They combine
with every sampler, with ``NStep``, ``Sequences`` and ``FrameStacks``, with mixtures, and with
learners of several processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like import ReplayBuffer
from cpprb_like.samplers import Prioritized
from cpprb_like.testing import check_layer
from cpprb_like.views import Layer, Sequences, Windows

Array = NDArray[Any]


class ReturnsToGo(Layer):
    """Discounted sum of the rewards from a row to the end of its episode, or of ``horizon`` rows.

    Parameters
    ----------
    gamma : float
        Discount factor.
    horizon : int
        The most rows of a sum. A row can be drawn when so many follow, or its episode has ended.
    reward : str
        Reward field, of one number.
    """

    def __init__(self, gamma: float = 0.99, horizon: int = 1000, reward: str = "rew") -> None:
        self.gamma = gamma
        self.horizon = horizon
        self.reward = reward

    def around(self, fields: Mapping[str, Any]) -> tuple[int, int]:
        """Rows before and behind a row that it needs."""
        return 0, self.horizon - 1

    def reads(self, fields: Mapping[str, Any]) -> list[str]:
        """Fields that it reads."""
        return [self.reward]

    def columns(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Columns that it makes: dtype, and shape of a row."""
        return {"return_to_go": (np.float32, ())}

    def fill(self, windows: Windows, wanted: Mapping[str, Any]) -> dict[str, Array]:
        """The columns of the rows of a batch."""
        rewards = windows.read(self.reward).astype(np.float64)  # zero behind the episode
        sums = rewards @ self.gamma ** np.arange(self.horizon)
        return {"return_to_go": sums.astype(np.float32)}


class Advantages(Layer):
    """Generalised advantage estimates (GAE), and the lambda-returns that go with them.

    Fields: a reward, the value of the observation, the value of the next observation, and whether
    the step terminated the episode.

    Parameters
    ----------
    gamma, lambda_ : float
        Discount factor, and the weight of longer returns: 0 is one step, 1 the whole return.
    horizon : int
        The most rows of a sum; the last ones weigh ``(gamma * lambda_) ** horizon``.

    Notes
    -----
    Source: Schulman, Moritz, Levine, Jordan and Abbeel (2016), "High-Dimensional Continuous Control
    Using Generalized Advantage Estimation", equation 16.
    """

    def __init__(self, gamma: float = 0.99, lambda_: float = 0.95, horizon: int = 128) -> None:
        self.gamma = gamma
        self.lambda_ = lambda_
        self.horizon = horizon

    def around(self, fields: Mapping[str, Any]) -> tuple[int, int]:
        """Rows before and behind a row that it needs."""
        return 0, self.horizon - 1

    def reads(self, fields: Mapping[str, Any]) -> list[str]:
        """Fields that it reads."""
        return ["rew", "value", "next_value", "terminated"]

    def columns(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Columns that it makes: dtype, and shape of a row."""
        return {"advantage": (np.float32, ()), "lambda_return": (np.float32, ())}

    def fill(self, windows: Windows, wanted: Mapping[str, Any]) -> dict[str, Array]:
        """The columns of the rows of a batch."""
        value = windows.read("value").astype(np.float64)
        goes_on = ~windows.read("terminated").astype(bool)
        following = windows.read("next_value") * goes_on
        errors = (windows.read("rew") + self.gamma * following - value) * windows.there
        advantage = errors @ (self.gamma * self.lambda_) ** np.arange(self.horizon)
        return {
            "advantage": advantage.astype(np.float32),
            "lambda_return": (advantage + value[:, 0]).astype(np.float32),
        }


FIELDS: dict[str, Any] = {
    "obs": {"shape": (3,)},
    "rew": {"shape": ()},
    "value": {"shape": ()},
    "next_value": {"shape": ()},
    "terminated": {"shape": (), "dtype": bool},
}


def main() -> None:
    """Check both layers, and draw from them."""
    check_layer(lambda: ReturnsToGo(0.9, 4), FIELDS)
    check_layer(lambda: Advantages(0.9, 0.8, 3), FIELDS)

    rb = ReplayBuffer(10_000, FIELDS, sampler=Prioritized(), seed=0)
    for t in range(1000):
        rb.add(
            obs=np.full(3, t),
            rew=1.0,
            value=0.5,
            next_value=0.5,
            terminated=t % 50 == 49,
        )
    view = rb.view(ReturnsToGo(0.99, 50), Advantages())
    batch = view.sample(256)
    left = 50 - batch["obs"][:, 0] % 50
    expected = (1 - 0.99**left) / (1 - 0.99)
    assert np.allclose(batch["return_to_go"], expected, rtol=1e-4)
    view.update_priorities(batch["indexes"], np.abs(batch["advantage"]))
    sequences = rb.view(Sequences(16), ReturnsToGo(0.99, 50)).sample(8)
    print({name: values.shape for name, values in batch.items()})
    print("sequences:", sequences["return_to_go"].shape)


if __name__ == "__main__":
    main()
