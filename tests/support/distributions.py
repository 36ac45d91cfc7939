"""Statistics of draws: chi-square, and what it may be."""

from __future__ import annotations

from strategies import Array


def chi_square_limit(freedom: int) -> float:
    """What chi-square exceeds once in a million times (Wilson and Hilferty's approximation)."""
    spread = 2 / (9 * freedom)
    return float(freedom * (1 - spread + 4.75 * spread**0.5) ** 3)


def chi_square(counts: Array, expected: float | Array) -> float:
    """The statistic for counts and their expectations, which are nowhere 0."""
    return float(((counts - expected) ** 2 / expected).sum())
