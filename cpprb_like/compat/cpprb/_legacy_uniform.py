"""cpprb's uniform draws, from NumPy's global state."""

from __future__ import annotations

import numpy as np

from cpprb_like._core import Ring
from cpprb_like._rows.row_handles import ordered_at
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.samplers._base import Extra, Sampler, Slots, expect_cuts
from cpprb_like.samplers._rows import Rows


class LegacyUniform(Sampler):
    """Uniform sampling with ``np.random.randint`` on NumPy's global state, as in cpprb.

    For exact reproduction of old runs: after the same ``np.random.seed`` the draws have the same
    slots as cpprb's. The sampler ignores the buffer's own generator.
    """

    _is_uniform = True

    def draw(
        self,
        ring: Ring,
        n: int,
        rng: np.random.Generator,  # noqa: ARG002
        *,
        replace: bool,
    ) -> tuple[Slots, Extra]:
        if n and len(ring) == 0:
            raise NotEnoughDataError("cannot sample: the buffer is empty")
        if not replace and n > len(ring):
            raise NotEnoughDataError(
                f"cannot sample {n} distinct rows: the buffer holds {len(ring)}"
            )
        return self._slots_at(ring, _places(len(ring), n, replace)), {}

    def _slots_at(self, ring: Ring, places: Slots) -> Slots:
        """The rows at these places, in the order of the slots that users see."""
        return ordered_at(ring, places)

    def draw_starts(
        self,
        starts: Rows,
        n: int,
        rng: np.random.Generator,  # noqa: ARG002
        *,
        replace: bool,
    ) -> tuple[Slots, Extra]:
        """See ``Sampler.draw_starts``. Cost: a look at all rows, as ``starts.slots``."""
        expect_cuts(self, starts)
        among = starts.slots()
        if n and n > len(among) * (n if replace else 1):
            starts.refuse(None if replace else n)
        return among[_places(len(among), n, replace)], {}

    def __repr__(self) -> str:
        return "LegacyUniform()"


def _places(among: int, n: int, replace: bool) -> Slots:
    """Draw n numbers below ``among`` in the way of cpprb."""
    if replace and n:
        return np.random.randint(0, among, n)
    return np.random.permutation(among)[:n]
