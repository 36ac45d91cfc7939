"""``Rows``: the rows of a ring that a draw chooses from, and ``AllRows``, all that can be drawn.

Not here: rows around which others are there (``_starts``), and rows with a condition (``_where``).
"""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Floats, Slots
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.samplers._uniform_draws import draw_uniform


class Rows(Protocol):
    """Rows of a ring that a draw chooses from: see ``Sampler.draw_starts``.

    ``ring`` is the ring, or the rings of a learner, whose slots are numbers of rows.
    """

    @property
    def ring(self) -> Any: ...

    @property
    def count(self) -> int:
        """Number of these rows."""

    def tell(self, slots: Slots) -> NDArray[np.int8]:
        """State of each of the slots, which are in use: 1 for these rows, 0 or -1 for others."""

    def slots(self) -> Slots:
        """The slots of all of these rows."""

    def over(self, rows: Any) -> Any:
        """What draws these rows by the weights of all rows: by default these weights.

        What it draws may be other rows, which ``tell`` leaves out.
        """
        return rows

    def parts(
        self,
        rows: Any,
        n: int,
        rng: np.random.Generator,  # noqa: ARG002 (for subclasses)
    ) -> list[tuple[Rows, Any, int, float]]:
        """The parts of a draw of n rows, by what ``over`` returned.

        Of each its rows, what draws these, their number, and their share of many draws.
        """
        return [(self, rows, n, 1.0)]

    def draw_parts(
        self,
        rows: Any,  # noqa: ARG002 (for subclasses)
        n: int,  # noqa: ARG002
        rng: np.random.Generator,  # noqa: ARG002
        stratified: bool,  # noqa: ARG002
    ) -> tuple[Slots, Floats, Floats] | None:
        """Slots of n rows of all ``parts``, with replacement: one call, by what ``over`` returned.

        Their weights; then what weights are divided by for probabilities. None if each part needs a
        call of its own.
        """
        return None

    def is_exact(self, rows: Any) -> bool:  # noqa: ARG002 (for subclasses)
        """Whether ``rows``, from ``over``, draws these rows and no others, and there are some."""
        return False

    def corrected(self, rows: Any, slots: Slots, weights: Floats) -> Floats:  # noqa: ARG002
        """What importance-sampling weights correct, of slots that ``rows`` drew."""
        return weights

    @property
    def cuts_only(self) -> bool:
        """Whether these rows have no masses but 0 and 1."""
        return True

    def weigh(self, rows: Any) -> float:
        """The sum of the weights of these rows; ``rows`` is from ``over``."""

    def draw(self, n: int, rng: np.random.Generator) -> Slots:
        """Draw n slots, each with the same probability, with replacement.

        Raises ``NotEnoughDataError`` if there are no rows.
        """

    def draw_distinct(self, n: int, rng: np.random.Generator) -> Slots:
        """Draw n different slots, each with the same probability.

        Raises ``NotEnoughDataError`` if there are fewer rows.
        """

    def refuse(self, distinct: int | None = None) -> NoReturn:
        """Raise ``NotEnoughDataError``: no row, or fewer than ``distinct``, can be drawn."""


class AllRows(Rows):
    """All rows of a ring that can be drawn."""

    def __init__(self, ring: Any) -> None:
        self._ring = ring

    @property
    def ring(self) -> Any:
        """The ring."""
        return self._ring

    @property
    def count(self) -> int:
        return len(self._ring)

    def tell(self, slots: Slots) -> NDArray[np.int8]:
        states: NDArray[np.int8] = 1 - self._ring.absent_at(slots).astype(np.int8)
        return states

    def slots(self) -> Slots:
        slots: Slots = self._ring.present_slots()
        return slots

    def weigh(self, rows: Any) -> float:
        return float(rows.total)

    def draw(self, n: int, rng: np.random.Generator) -> Slots:
        return draw_uniform(self._ring, n, rng, True)

    def draw_distinct(self, n: int, rng: np.random.Generator) -> Slots:
        return draw_uniform(self._ring, n, rng, False)

    def in_ring(self, number: int, ring: Any) -> AllRows:  # noqa: ARG002
        """Of the rows of several rings, those of the ring of this number."""
        return AllRows(ring)

    def refuse(self, distinct: int | None = None) -> NoReturn:
        wanted = "" if distinct is None else f" {distinct} distinct rows"
        raise NotEnoughDataError(f"cannot sample{wanted}: the buffer holds {self.count} rows")
