"""The formulas of ``RateLimiter`` over counts of inserted and sampled items.

Gates and the ledger of a cluster use them. Not here: the test of a single call, which every step
makes and is compiled (``_counters``).
"""

from __future__ import annotations

import math

from cpprb_like.limiters._policies import Bounds, RateLimiter

NO_LIMIT = 2**62  # rows


def balance_of(bounds: Bounds, inserts: int, samples: int) -> float:
    """The balance: inserts, in items that may be sampled for them, less the samples."""
    return inserts * bounds.samples_per_insert - samples


def room_for_samples(bounds: Bounds, inserts: int, samples: int) -> float:
    """The number of items that may be sampled now, from a replay with ``min_size`` rows."""
    return balance_of(bounds, inserts, samples) - bounds.min_diff


def most_inserts(bounds: Bounds, samples: int, deletes: int) -> int:
    """The number of rows that may be inserted in all."""
    ratio, min_size, _, high = bounds
    if math.isinf(high):
        return NO_LIMIT
    return max(int(min_size) + deletes, math.floor((high + samples) / ratio))


def samples_to_begin(bounds: Bounds, inserts: int) -> int | None:
    """The samples with which the balance is in the middle of its range; None without a range."""
    ratio, _, low, high = bounds
    if not (inserts and math.isfinite(low) and math.isfinite(high)):
        return None
    return max(0, round(inserts * ratio - (low + high) / 2))


def check_add(limiter: RateLimiter, n: int, balance: float = math.inf) -> None:
    """Raise ``ValueError`` if n rows are more than the limiter can ever allow at once.

    ``balance`` is the present one. The balance can be lower later, down to ``min_diff``.
    """
    ratio, min_size, low, high = limiter.bounds
    if n > min_size and n * ratio + min(low, balance) > high:
        raise _impossible(limiter, f"add of {n} rows", "add fewer at once")


def check_sample(limiter: RateLimiter, n: int, balance: float = -math.inf) -> None:
    """Raise ``ValueError`` if n items are more than the limiter can ever allow at once."""
    ratio, min_size, low, high = limiter.bounds
    if n > max(high, min_size * ratio, balance) - low:
        raise _impossible(limiter, f"sample of {n} items", "draw smaller batches")


def _impossible(limiter: RateLimiter, call: str, advice: str) -> ValueError:
    return ValueError(
        f"{call} in one call: {limiter} can never allow that; {advice}, or take a greater "
        "error_buffer or size"
    )
