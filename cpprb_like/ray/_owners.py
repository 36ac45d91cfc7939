"""The hosts that draw the items of a request, by their masses; where values have shares, by value.

Not here: when a request is made, and its answers (``_ahead``), and draws at a host (``_drawing``).
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Floats
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.processes import Mass
from cpprb_like.samplers._rules import Rules
from cpprb_like.samplers._shares import ends_of
from cpprb_like.samplers._tree_draws import cut

LEAST = 1e-250  # mass of a host with rows: a time by this rate is finite


class Quotas:
    """The values of the items of batches of n items, each in the order of the values.

    ``share`` says the shares of values after ``time`` batches; ``masses`` are those of the hosts,
    and ``factors`` of ``factors_of``. There are fewer batches than ``most`` if a later one has no
    shares, or no rows. Shares become numbers of items as on one buffer.
    """

    def __init__(
        self,
        share: Any,
        time: int,
        masses: list[Mass],
        factors: Floats,
        most: int,
        n: int,
        rng: np.random.Generator,
    ) -> None:
        self._share, self._masses = share, masses
        self._values = values = sorted(values_of(masses))
        numbers = {value: number for number, value in enumerate(values)}
        of_items: list[NDArray[np.intp]] = []
        shares: list[Floats] = []
        for k in range(most):
            try:
                found = share.shares_of(numbers, time + k)
            except (TypeError, ValueError):
                if k == 0:
                    raise
                break
            if not found:
                break
            ends = ends_of(tuple([one for _, one in found]))
            own = [numbers[value] for value, _ in found]
            of_items.append(np.repeat(own, np.diff(cut(n, ends, rng.random()))))
            shares.append(np.zeros(len(values)))
            shares[-1][own] = [(stop - start) / ends[-1] for start, stop in pairwise(ends)]
        # The number of the value of each item, shape ``(batches, n)``.
        self.of_items = np.stack(of_items)
        # The share of each value, shape ``(batches, values)``.
        self._shares = np.stack(shares)
        # The mass of each value at each host, shape ``(hosts, values)``; and the items left there.
        self._totals = compared(self._of_hosts(0), factors[:, None])
        self._left = self._of_hosts(1)

    def _of_hosts(self, which: int) -> Floats:
        return np.array(
            [[of_value(mass, one)[which] for one in self._values] for mass in self._masses]
        )

    def owners(self, rng: np.random.Generator, *, counts: bool) -> NDArray[np.intp]:
        """The place of the host of each item, by the masses of its value, as ``of_items``.

        With ``counts`` the items of the only batch are distinct. Raises ``NotEnoughDataError`` if
        a value has fewer.
        """
        found = np.empty(self.of_items.shape, np.intp)
        for number in np.unique(self.of_items).tolist():
            is_own = self.of_items == number
            n = int(is_own.sum())
            if counts:
                found[is_own] = self._distinct(number, n, rng)
            else:
                found[is_own] = owners_of(self._totals[:, number], n, rng)
        return found

    def _distinct(self, number: int, n: int, rng: np.random.Generator) -> NDArray[np.intp]:
        left = self._left[:, number].astype(np.int64)
        if left.sum() < n:
            raise NotEnoughDataError(
                f"cannot sample {n} distinct items of {self._share.name(self._values[number])}: "
                f"the hosts have {left.sum()} to draw by Share"
            )
        return distinct_owners(self._totals[:, number], left, n, rng)

    def asked_of(self, place: int, owners: NDArray[np.intp]) -> list[tuple[Any, int]]:
        """The values and the numbers of the items of a host, in their order."""
        return [
            (self._values[number], count)
            for one, at in zip(self.of_items, owners == place, strict=True)
            for number, count in Counter(one[at].tolist()).items()
        ]

    def scales(self, place: int, mass: Mass) -> Floats:
        """By how much each value had more mass at the time of the request than now, at a host."""
        now = np.array([of_value(mass, value)[0] for value in self._values])
        then = self._totals[place]
        found: Floats = np.divide(then, now, out=np.ones(len(now)), where=now > 0.0)
        return found

    def chances(self, batch: int) -> Floats:
        """The probability of an item of mass 1 of each value, in a batch."""
        found: Floats = self._shares[batch] / self._totals.sum(axis=0)
        return found


def factors_of(rules: Rules | None, masses: list[Mass]) -> Floats:
    """By what masses of hosts are multiplied to be relative to the same references."""
    found = np.ones(len(masses))
    references = zip(*[mass.references for mass in masses], strict=True)
    for rule, one in zip(() if rules is None else rules.relative, references, strict=True):
        found *= rule.factors(one)
    return found


def compared(totals: Floats, factors: Floats) -> Floats:
    """Masses times factors; more than 0 where there are rows, so that all of these can be drawn."""
    return np.where(totals > 0.0, np.maximum(totals * factors, LEAST), 0.0)


def owners_of(
    totals: Floats, shape: int | tuple[int, ...], rng: np.random.Generator
) -> NDArray[np.intp]:
    """The hosts of independent items, each in proportion to the masses of the hosts."""
    places = np.flatnonzero(totals)
    bounds = totals[places].cumsum()
    targets = rng.random(shape) * bounds[-1]
    found: NDArray[np.intp] = places[bounds[:-1].searchsorted(targets, side="right")]
    return found


def distinct_owners(
    totals: NDArray[np.float64], left: NDArray[np.int64], n: int, rng: np.random.Generator
) -> NDArray[np.intp]:
    """The hosts of n distinct items, of which each host has so many left.

    As if the items of a host had equal masses: each is drawn at an exponential time of this rate,
    and the first n of all are taken.
    """
    owners, times = [], []
    for place, (total, most) in enumerate(zip(totals.tolist(), left.tolist(), strict=True)):
        remaining = most - np.arange(min(n, most))
        owners.append(np.full(len(remaining), place))
        rates = total * remaining / max(most, 1)
        times.append((rng.exponential(size=len(remaining)) / rates).cumsum())
    first = np.argsort(np.concatenate(times), kind="stable")[:n]
    return np.concatenate(owners)[first]


def values_of(masses: list[Mass]) -> set[Any]:
    """The values of which any host has rows."""
    return {value for mass in masses for value in mass.values}


def of_value(mass: Mass, value: Any) -> tuple[float, int]:
    """Mass and items left of the rows of a value at a host."""
    return mass.values.get(value, (0.0, 0))
