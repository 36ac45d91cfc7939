"""Emphasizing Recent Experience (ERE; Wang and Ross, 2019)."""

from __future__ import annotations

from typing import Any

import numpy as np

from cpprb_like._arguments.checks import as_int
from cpprb_like._core import Ring
from cpprb_like.samplers._base import Extra, Sampler, Slots, expect_cuts
from cpprb_like.samplers._rows import Rows
from cpprb_like.samplers._uniform_draws import draw_uniform
from cpprb_like.schedules import Schedule, check, value_at

TRIES = 64  # most tries for each start, before all of the newest rows are checked
SPARE_TRIES = 32


class Recency(Sampler):
    """Emphasizing Recent Experience (ERE; Wang and Ross, 2019).

    Draws come in rounds of ``updates``, K for short. The k-th draw of a round is uniform over the
    ``max(N * eta ** (1000 * k / K), least)`` newest rows, where N is the number of rows that can be
    drawn. So the first draws are from all rows, later draws from ever newer rows. Then the next
    round starts; ``begin`` starts a round of another length.

    Parameters
    ----------
    eta : float or schedule
        Emphasis of recent rows, above 0 and at most 1. 1 is uniform; a smaller value is more
        emphasis. The time of a schedule is the number of draws so far, in all rounds.
    updates : int
        Draws of a round, at least 1: K in the paper.
    least : int
        Least number of newest rows to draw from (all rows, if there are fewer), at least 1: c_min
        in the paper.

    Attributes
    ----------
    eta, updates, least
        As given. ``begin`` also sets ``updates``.
    k : int
        Draws made in this round, below ``updates``.
    draws : int
        Draws made in all rounds.

    Raises
    ------
    TypeError, ValueError
        A parameter has a wrong type or value; the message names it. ``draw`` raises them if the
        value of a schedule is out of range.

    Notes
    -----
    In the paper a round has one update for each step of the last episode. Without replacement, a
    batch of n rows comes from at least n newest rows. Two threads that draw at the same time may
    count as one draw.

    Cost: as for ``Uniform``; times the logarithm of the rows stored, if there are absent rows.

    Source: Wang and Ross (2019), "Boosting Soft Actor-Critic: Emphasizing Recent Experience without
    Forgetting the Past".

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
        """Start a round of ``updates`` draws, such as after the end of an episode.

        Batches that were drawn ahead belong to the previous round. So does a save while they wait.

        Raises ``TypeError`` or ``ValueError`` if ``updates`` is not an integer of at least 1.
        """
        self.updates = as_int("updates", updates, 1)
        self.k = 0

    def draw(
        self, ring: Ring, n: int, rng: np.random.Generator, *, replace: bool
    ) -> tuple[Slots, Extra]:
        newest = self._newest(ring)
        slots = draw_uniform(ring, n, rng, replace, newest if replace else max(newest, n))
        self._count()
        return slots, {}

    def draw_state(self) -> dict[str, Any]:
        """See ``Sampler.draw_state``: the length of the round, ``k`` and ``draws``."""
        return {"updates": self.updates, "k": self.k, "draws": self.draws}

    def draw_starts(
        self, starts: Rows, n: int, rng: np.random.Generator, *, replace: bool
    ) -> tuple[Slots, Extra]:
        """See ``Sampler.draw_starts``: starts among the newest rows.

        If the newest rows have no start, the newest start is drawn. Without replacement, the n
        newest starts are drawn if the newest rows have fewer. Cost: proportional to n; if the
        newest rows have few starts, proportional to the rows back to the last needed start.
        """
        ring = starts.ring
        expect_cuts(self, starts)
        newest = self._newest(ring)
        slots: Slots = np.empty(0, np.intp)
        for tries in (2 * n + SPARE_TRIES, TRIES * (n + SPARE_TRIES)) if n and len(ring) else ():
            count = tries if replace else min(tries, newest, len(ring))
            slots = draw_uniform(ring, count, rng, replace, newest)
            slots = slots[starts.tell(slots) == 1][:n]
            if len(slots) == n:
                break
        if len(slots) < n:
            slots = rng.choice(self._among(starts, newest, 1 if replace else n), n, replace=replace)
        self._count()
        return slots, {}

    @staticmethod
    def _among(starts: Rows, newest: int, least: int) -> Slots:
        """The starts among the ``newest`` rows; the ``least`` newest starts if there are fewer."""
        ring = starts.ring
        rows = max(newest, least)
        while True:
            slots = ring.newest_slots(min(rows, len(ring)))
            are_starts = starts.tell(slots) == 1
            if are_starts.sum() >= least or rows >= len(ring):
                break
            rows *= 4
        eligible: Slots = slots[-newest:][are_starts[-newest:]]
        if len(eligible) < least:
            eligible = slots[are_starts][-least:]
        if len(eligible) < least:
            starts.refuse(None if least == 1 else least)
        return eligible

    def _newest(self, ring: Ring) -> int:
        """Number of newest rows that the next draw chooses from."""
        eta = value_at(self.eta, self.draws, "eta", 0, 1, above=True)
        return int(max(len(ring) * eta ** (1000 * (self.k + 1) / self.updates), self.least))

    def _count(self) -> None:
        """Count a draw."""
        self.k = (self.k + 1) % self.updates
        self.draws += 1

    def __repr__(self) -> str:
        return f"Recency({self.eta!r}, updates={self.updates}, least={self.least})"
