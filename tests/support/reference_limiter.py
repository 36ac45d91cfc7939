"""The slow, obvious twin of the rate limiters: Reverb's formulas, over exact fractions."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass
class ReferenceLimiter:
    """A limiter by its four numbers; an infinite one is None."""

    samples_per_insert: Fraction
    min_size: int
    min_diff: Fraction | None
    max_diff: Fraction | None
    i: int = 0
    s: int = 0
    d: int = 0

    def can_insert(self, n: int) -> bool:
        """Whether n rows may be inserted."""
        after = (self.i + n) * self.samples_per_insert - self.s
        enough_room = self.max_diff is None or after <= self.max_diff
        return self.i + n - self.d <= self.min_size or enough_room

    def can_sample(self, n: int) -> bool:
        """Whether n items may be sampled."""
        after = self.i * self.samples_per_insert - self.s - n
        return self.i - self.d >= self.min_size and (
            self.min_diff is None or after >= self.min_diff
        )
