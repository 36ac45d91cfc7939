"""Rate limiters with the semantics of Reverb: which inserts and which draws are allowed.

Rate limiters are values, without counters (``_counters``) and waits (``_gates``).
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, field
from typing import NamedTuple

from cpprb_like._arguments.checks import as_int

TIMEOUT = 60.0  # seconds


class Bounds(NamedTuple):
    """The four numbers that define a limiter: see ``RateLimiter``."""

    samples_per_insert: float
    min_size: float
    min_diff: float
    max_diff: float


class RateLimiter:
    """Base class of rate limiters: ``MinSize``, ``SampleToInsertRatio``, ``Backlog``.

    ``inserts``, ``samples`` and ``deletes`` are counts so far. Then n items may be sampled if ::

        inserts - deletes >= min_size
        inserts * samples_per_insert - samples - n >= min_diff

    and n rows may be inserted if one of these holds ::

        inserts + n - deletes <= min_size
        (inserts + n) * samples_per_insert - samples <= max_diff

    Attributes
    ----------
    bounds : Bounds
        The numbers of these formulas.
    timeout : float or None
        Seconds that a call waits before it raises ``RateLimitTimeoutError``. With None it waits
        without end.

    Raises
    ------
    TypeError, ValueError
        An argument has a wrong type or value. The message names the argument.

    Notes
    -----
    Source: Cassirer et al. (2021), "Reverb: A Framework for Experience Replay", section 3.3, and
    the formulas of Reverb's implementation. Unlike Reverb, the default time-out is finite.
    """

    timeout: float | None

    @property
    def bounds(self) -> Bounds:
        """The numbers of the formulas."""
        raise NotImplementedError

    def _check_capacity(self, capacity: int) -> None:
        """Raise ``ValueError`` if ``min_size`` is greater than the capacity of the replay."""
        if self.bounds.min_size > capacity:
            raise ValueError(
                f"limiter: {self} wants {self.bounds.min_size:g} rows, of a capacity of {capacity}"
            )


def _as_number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name}: expected a number, got {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{name}: expected a finite number, got {value}")
    return float(value)


def _check_timeout(timeout: object) -> None:
    if timeout is not None and _as_number("timeout", timeout) < 0:
        raise ValueError(f"timeout: expected at least 0 seconds, or None, got {timeout}")


@dataclass(frozen=True)
class MinSize(RateLimiter):
    """Draws wait until the replay holds ``min_size`` rows; after that neither side waits.

    Parameters
    ----------
    min_size : int
        Number of rows needed before the first draw, at least 1.
    timeout : float or None
        See ``RateLimiter``.

    Examples
    --------
    >>> from cpprb_like.limiters import MinSize
    >>> MinSize(1000).bounds
    Bounds(samples_per_insert=1.0, min_size=1000, min_diff=-inf, max_diff=inf)
    """

    min_size: int
    timeout: float | None = field(default=TIMEOUT, kw_only=True)

    def __post_init__(self) -> None:
        as_int("min_size", self.min_size, 1)
        _check_timeout(self.timeout)

    @property
    def bounds(self) -> Bounds:
        """The numbers of the formulas."""
        return Bounds(1.0, self.min_size, -math.inf, math.inf)


@dataclass(frozen=True)
class SampleToInsertRatio(RateLimiter):
    """Each inserted row is drawn ``samples_per_insert`` times on average.

    Until the replay holds ``min_size_to_sample`` rows, inserts do not wait and draws do. After that
    the limiter bounds the balance ``inserts * samples_per_insert - samples``. The balance stays
    within ``error_buffer`` of ``min_size_to_sample * samples_per_insert``. Actors wait if the
    learner lags, and the learner waits if the actors lag.

    Parameters
    ----------
    samples_per_insert : float
        Items drawn for each inserted row, above 0. Usual values: 0.5 for DQN (a batch of 32 every
        64 frames), 1 for IMPALA, 4 for R2D2, 32 for D4PG, 256 for SAC and TD3.
    min_size_to_sample : int
        Number of rows needed before the first draw, at least 1.
    error_buffer : float or (float, float)
        Allowed deviation of the balance in samples, at least ``max(1, samples_per_insert)``. Or the
        least and the greatest allowed balance. A batch counts as all its items at once, so allow
        for several batches.
    timeout : float or None
        See ``RateLimiter``.

    Raises
    ------
    TypeError, ValueError
        As for ``RateLimiter``. Or neither side could continue with ``min_size_to_sample`` rows.

    Examples
    --------
    >>> from cpprb_like.limiters import SampleToInsertRatio
    >>> SampleToInsertRatio(4, 100, error_buffer=64).bounds
    Bounds(samples_per_insert=4.0, min_size=100, min_diff=336.0, max_diff=464.0)
    """

    samples_per_insert: float
    min_size_to_sample: int
    error_buffer: float | tuple[float, float]
    timeout: float | None = field(default=TIMEOUT, kw_only=True)

    def __post_init__(self) -> None:
        ratio = _as_number("samples_per_insert", self.samples_per_insert)
        if ratio <= 0:
            raise ValueError(f"samples_per_insert: expected above 0, got {ratio}")
        as_int("min_size_to_sample", self.min_size_to_sample, 1)
        if isinstance(self.error_buffer, tuple | list):
            if len(self.error_buffer) != 2:
                raise ValueError(f"error_buffer: expected two numbers, got {self.error_buffer}")
            low, high = (_as_number("error_buffer", value) for value in self.error_buffer)
            object.__setattr__(self, "error_buffer", (low, high))
        else:
            _as_number("error_buffer", self.error_buffer)
        _check_timeout(self.timeout)
        _, _, low, high = self.bounds
        least, start = 2 * max(1.0, ratio), ratio * self.min_size_to_sample
        if high - low < least:
            raise ValueError(
                f"error_buffer: expected a range of at least {least:g}, twice the greater of 1 and "
                f"samples_per_insert, or neither side could go on; got {high - low:g}"
            )
        if low > start:
            raise ValueError(
                f"error_buffer: expected a least difference of at most {start:g}, "
                f"samples_per_insert * min_size_to_sample, or nothing could be drawn; got {low:g}"
            )

    @property
    def bounds(self) -> Bounds:
        """The numbers of the formulas."""
        start = float(self.samples_per_insert) * self.min_size_to_sample
        if isinstance(self.error_buffer, tuple):
            low, high = self.error_buffer
        else:
            low, high = start - self.error_buffer, start + self.error_buffer
        return Bounds(float(self.samples_per_insert), self.min_size_to_sample, low, high)


@dataclass(frozen=True)
class Backlog(RateLimiter):
    """One item is drawn for each inserted row, and inserts are at most ``size`` rows ahead.

    Reverb's ``Queue`` has the same bounds, and also draws each row once, first in, first out. This
    class limits only the number of draws; the sampler chooses the rows. On-policy methods such as
    IMPALA need recent rows: use ``Recency``, or a capacity near ``size``.

    Parameters
    ----------
    size : int
        Greatest number of inserted rows that are not drawn yet, at least 1.
    timeout : float or None
        See ``RateLimiter``.

    Examples
    --------
    >>> from cpprb_like.limiters import Backlog
    >>> Backlog(8).bounds
    Bounds(samples_per_insert=1.0, min_size=1, min_diff=0.0, max_diff=8)
    """

    size: int
    timeout: float | None = field(default=TIMEOUT, kw_only=True)

    def __post_init__(self) -> None:
        as_int("size", self.size, 1)
        _check_timeout(self.timeout)

    @property
    def bounds(self) -> Bounds:
        """The numbers of the formulas."""
        return Bounds(1.0, 1, 0.0, self.size)
