"""``SharedRows``: draws with quotas by a value of the rows; and how shares become numbers of rows.

Not here: which values have which shares (``views.Share``), and the rows of a value (``_ruled``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from itertools import accumulate
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Floats, Slots
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.samplers._rows import Rows
from cpprb_like.samplers._ruled import LEAST, TRIES, RuledRows
from cpprb_like.samplers._tree_draws import cut


class SharedRows(Rows):
    """Rows with a mass, of which each value of a field has its share of a batch.

    Values without a row that can be drawn give their share to the others. The parts of a batch are
    in the order of the values.
    """

    def __init__(self, every: RuledRows) -> None:
        self.every, self._rules = every, every.rules
        # How many rows of which value are drawn, one after another; None: quotas by the shares.
        self.asked: Sequence[tuple[Any, int]] | None = None
        self._of: Callable[[int], RuledRows] = cache(every.of_value)
        self._tries = np.random.default_rng(0)  # for ``_has_rows``, which is no draw

    @property
    def ring(self) -> Any:
        """The ring, or the rings."""
        return self.every.ring

    @property
    def count(self) -> int:
        return self.every.count

    @property
    def cuts_only(self) -> bool:
        return False

    def tell(self, slots: Slots) -> NDArray[np.int8]:
        return self.every.tell(slots)

    def slots(self) -> Slots:
        return self.every.slots()

    def masses(self, slots: Slots) -> Floats:
        """The masses of rows of a ring."""
        every: Any = self.every
        masses: Floats = every.masses(slots)
        return masses

    def stats(self) -> dict[str, float]:
        """What rules count of the rows."""
        return self.every.stats()

    def over(self, rows: Any) -> Any:
        return self.every.over(rows)

    def weigh(self, rows: Any) -> float:
        return self.every.weigh(rows)

    def corrected(self, rows: Any, slots: Slots, weights: Floats) -> Floats:
        return self.every.corrected(rows, slots, weights)

    def refuse(self, distinct: int | None = None) -> NoReturn:
        self.every.refuse(distinct)

    def draw_parts(
        self, rows: Any, n: int, rng: np.random.Generator, stratified: bool
    ) -> tuple[Slots, Floats, Floats] | None:
        """See ``Rows.draw_parts``: where no window matters."""
        if self.asked is not None or not self.every.is_exact(rows):
            return None
        numbers, ends = self._rules.share.ends(self._rules.draws)
        drawn: tuple[Slots, Floats, Floats] | None
        drawn = rows.draw_parts(self.every.trees(numbers), ends, n, rng, stratified)
        return drawn

    def parts(
        self, rows: Any, n: int, rng: np.random.Generator
    ) -> list[tuple[Rows, Any, int, float]]:
        """See ``Rows.parts``: the values that have rows."""
        if not rows.total:  # reads which rows there are
            self.refuse()
        if self.asked is not None:
            return self._asked_parts(rows.weights, self.asked)
        found, weights, are_exact = [], rows.weights, self.every.is_exact(rows)
        for value, share in self._rules.share.shares(self._rules.draws):
            part = self._of(value)
            by = part.over(weights)
            if by.total > 0.0 and (are_exact or self._has_rows(part, by)):
                found.append((part, by, share))
        if not found:
            raise NotEnoughDataError(
                "cannot sample: no row that can be drawn has a value with a share above 0"
            )
        ends = ends_of(tuple([share for _, _, share in found]))
        places, parts = cut(n, ends, rng.random()), list[tuple[Rows, Any, int, float]]()
        for k, (part, by, _) in enumerate(found):
            count = places[k + 1] - places[k]
            if count or not n:
                parts.append((part, by, count, (ends[k + 1] - ends[k]) / ends[-1]))
        return parts

    def _asked_parts(
        self, weights: Any, asked: Sequence[tuple[Any, int]]
    ) -> list[tuple[Rows, Any, int, float]]:
        """The parts of a draw of ``asked``. Which share of many draws these are is not known."""
        share, parts = self._rules.share, dict[Any, tuple[Rows, Any]]()
        numbers = share.numbers
        for value, _ in asked:
            if value not in parts and value in numbers:
                part = self._of(numbers[value])
                parts[value] = part, part.over(weights)
            if value not in parts or not parts[value][1].total > 0.0:
                raise NotEnoughDataError(f"cannot sample: no row of {share.name(value)}")
        return [(*parts[value], count, 1.0) for value, count in asked]

    def by_value(self, rows: Any) -> dict[Any, tuple[float, int]]:
        """The mass of the rows of each value that has some, and how many, if draws are counted.

        ``rows`` is from ``over``. Cost: a look at all rows where windows matter.
        """
        if not rows.total:  # reads which rows there are
            return {}
        numbers, counts = self._rules.share.numbers, self._rules.counts
        if self.every.is_exact(rows):
            trees = {
                value: self._of(number).over(rows.weights) for value, number in numbers.items()
            }
            most = self.ring.stored if counts else 0
            found = {value: (float(one.total), one.count(most)) for value, one in trees.items()}
        else:
            slots = self.slots()
            of_rows, masses = self._rules.share.of_rows[slots], rows.get(slots)
            found = {}
            for value, number in numbers.items():
                own = masses[of_rows == number + 1]
                found[value] = float(own.sum()), counts * np.count_nonzero(own)
        return {value: one for value, one in found.items() if one[0] > 0.0}

    def _has_rows(self, part: RuledRows, by: Any) -> bool:
        """Whether any of these rows can be drawn by its weight, where windows matter."""
        for n in (LEAST, TRIES * LEAST):
            slots = by.draw(n, self._tries, True, False, False)[0]
            if (part.tell(slots) == 1).any():
                return True
        return bool(by.get(part.slots()).any())

    def draw(self, n: int, rng: np.random.Generator) -> Slots:
        rows = self.every._now()
        drawn = self.draw_parts(rows, n, rng, False)
        if drawn is not None:
            return drawn[0]
        parts = self.parts(rows, n, rng)
        return np.concatenate([part.draw(count, rng) for part, _, count, _ in parts])

    def draw_distinct(self, n: int, rng: np.random.Generator) -> Slots:
        parts = self.parts(self.every._now(), n, rng)
        return np.concatenate([part.draw_distinct(count, rng) for part, _, count, _ in parts])

    def check_distinct(self, n: int, tries: np.random.Generator) -> None:
        """See ``RuledRows.check_distinct``: for parts of n rows that are all rounded up."""
        for part, _, _, share in self.parts(self.every._now(), 0, tries):
            ruled: Any = part
            ruled.check_distinct(math.ceil(round(n * share, 6)), tries)


@lru_cache(maxsize=64)
def ends_of(shares: tuple[float, ...]) -> list[int]:
    """Cumulative shares from 0 on, as integers over a common denominator.

    So counts of rows have no rounding errors of sums of floats. A share has the value of its
    shortest decimal: 1/10 for 0.1.
    """
    from fractions import Fraction  # noqa: PLC0415 (imports decimal, and few programs need it)

    parts = [Fraction(repr(share)) for share in shares]
    unit = math.lcm(*(part.denominator for part in parts))
    return [0, *accumulate(part.numerator * (unit // part.denominator) for part in parts)]
