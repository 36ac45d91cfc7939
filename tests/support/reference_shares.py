"""The slow twin of ``Share``: the probability of each row, by a loop over all rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from strategies import Array


def probabilities(
    values: Sequence[float], weights: Sequence[float], shares: Mapping[float, float]
) -> Array:
    """The probability of each row; ``weights`` are 0 for rows that cannot be drawn."""
    totals = dict.fromkeys(shares, 0.0)
    for value, weight in zip(values, weights, strict=True):
        if value in totals:
            totals[value] += weight
    unit = sum(share for value, share in shares.items() if totals[value] > 0)
    found = np.zeros(len(values))
    for k, (value, weight) in enumerate(zip(values, weights, strict=True)):
        if weight > 0 and value in shares:
            found[k] = shares[value] / unit * weight / totals[value]
    return found


def equal(values: Sequence[float]) -> dict[float, float]:
    """The shares of ``"equal"``."""
    return dict.fromkeys(sorted(set(values)), 1.0)
