"""``Recency``: draws from the newest rows only, from fewer of them as a round goes on."""

from __future__ import annotations

from typing import Any

import numpy as np

from cpprb_like._c.checks import as_int
from cpprb_like._core import Ring
from cpprb_like.samplers._base import Extra, Sampler, Slots
from cpprb_like.samplers._uniform_draws import draw_uniform
from cpprb_like.schedules import Schedule, check, value_at

__all__ = ["Recency"]


class Recency(Sampler):
    """Emphasizing Recent Experience: the more draws of a round are over, the newer the rows.

    In the k-th of ``updates`` draws each of the ``max(N * eta ** (1000 * k / updates), least)``
    newest rows has the same probability, where N is the number of rows that can be drawn. After the
    last of them the round starts over; ``begin`` starts one of another length.

    Parameters
    ----------
    eta : float or schedule
        How fast old rows fall out, above 0 and at most 1, where nothing falls out. The time of a
        schedule is the number of draws made so far, of all rounds.
    updates : int
        Draws of a round, at least 1.
    least : int
        Newest rows that are always drawn from, at least 1; all rows where there are fewer.

    Attributes
    ----------
    eta, updates, least
        As given, ``updates`` also by ``begin``.
    k : int
        Draws made in this round, below ``updates``.
    draws : int
        Draws made in all.

    Raises
    ------
    TypeError, ValueError
        A parameter is of a wrong type or value; the message names it. ``draw`` raises them if a
        schedule gives a number that is not in the range.

    Notes
    -----
    Cost of a draw: as of ``Uniform``; times the logarithm of the rows stored, if there are absent
    rows. Without replacement at least ``n`` newest rows are drawn from. Of threads that draw
    at the same time two may count as one.

    Source: Wang and Ross (2019), "Boosting Soft Actor-Critic: Emphasizing Recent Experience without
    Forgetting the Past". There a round is the updates after one episode, one for each of its steps.

    Examples
    --------
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.samplers import Recency
    >>> rb = ReplayBuffer(100, {"x": {"shape": ()}}, sampler=Recency(0.996, least=5), seed=0)
    >>> rb.add(x=range(100))
    0
    >>> rb.sampler.begin(updates=2)
    >>> all(x >= 87 for x in rb.sample(1000)["x"])
    True
    >>> all(x >= 95 for x in rb.sample(1000)["x"])
    True
    """

    def __init__(
        self, eta: float | Schedule = 0.996, *, updates: int = 1000, least: int = 5000
    ) -> None:
        check("eta", eta, 0, 1, above=True)
        self.eta = eta
        self.updates = as_int("updates", updates, 1)
        self.least = as_int("least", least, 1)
        self.k = 0
        self.draws = 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        check("eta", state["eta"], 0, 1, above=True)
        as_int("least", state["least"], 1)
        as_int("draws", state["draws"], 0)
        if not 0 <= as_int("k", state["k"], 0) < as_int("updates", state["updates"], 1):
            raise ValueError(f"k: expected less than {state['updates']}, got {state['k']}")
        self.__dict__.update(state)

    def begin(self, updates: int) -> None:
        """Start a round of ``updates`` draws: when an episode ended and so many updates follow.

        Raises ``TypeError`` or ``ValueError`` if it is no integer of at least 1.
        """
        self.updates = as_int("updates", updates, 1)
        self.k = 0

    def draw(
        self, ring: Ring, n: int, rng: np.random.Generator, *, replace: bool
    ) -> tuple[Slots, Extra]:
        """See ``Sampler.draw``."""
        eta = value_at(self.eta, self.draws, "eta", 0, 1, above=True)
        k = self.k + 1
        newest = int(max(len(ring) * eta ** (1000 * k / self.updates), self.least))
        slots = draw_uniform(ring, n, rng, replace, newest if replace else max(newest, n))
        self.k = k % self.updates
        self.draws += 1
        return slots, {}

    def __repr__(self) -> str:
        return f"Recency({self.eta!r}, updates={self.updates}, least={self.least})"
