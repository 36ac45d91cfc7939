"""Schedules: numbers that change with time, such as an annealed importance-sampling exponent beta.

A schedule is any callable from a time to a number. What the time counts (draws, updates, steps of
the environment) is documented at each parameter that takes a schedule.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

from cpprb_like._arguments.checks import as_int

__all__ = ["Linear", "Piecewise", "Schedule"]


class Schedule(Protocol):
    """A function from a time to a number, such as the classes of this module.

    It always gives the same value for the same time. The schedules of a buffer are pickled with it;
    a ``lambda`` cannot be pickled.
    """

    def __call__(self, t: float, /) -> float:
        """The number at time ``t``, which is at least 0."""
        ...


@dataclass(frozen=True)
class Linear:
    """Linear annealing from ``start`` at time 0 to ``stop`` at time ``steps``, constant afterwards.

    Parameters
    ----------
    start, stop : float
        Finite.
    steps : int
        At least 1.

    Raises
    ------
    TypeError, ValueError
        A parameter is of a wrong type or value; the message names it.

    Examples
    --------
    >>> from cpprb_like.schedules import Linear
    >>> beta = Linear(0.4, 1.0, 100)
    >>> beta(0), beta(50), beta(100), beta(10**9)
    (0.4, 0.7, 1.0, 1.0)
    """

    start: float
    stop: float
    steps: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", _finite("start", self.start))
        object.__setattr__(self, "stop", _finite("stop", self.stop))
        object.__setattr__(self, "steps", as_int("steps", self.steps, 1))

    def __call__(self, t: float, /) -> float:
        """The number at time ``t``."""
        return _between(self.start, self.stop, t / self.steps)


@dataclass(frozen=True)
class Piecewise:
    """Piecewise linear schedule: straight lines from point to point, constant outside of these.

    Parameters
    ----------
    points : iterable of (int, float)
        Times, strictly ascending, and the number at each; at least one point.

    Raises
    ------
    TypeError, ValueError
        ``points`` is no iterable of such pairs, is empty, or its times do not ascend. The message
        names the point.

    Examples
    --------
    >>> from cpprb_like.schedules import Piecewise
    >>> epsilon = Piecewise([(0, 1.0), (100, 0.1), (1000, 0.01)])
    >>> epsilon(0), epsilon(50), epsilon(100), epsilon(5000)
    (1.0, 0.55, 0.1, 0.01)
    """

    points: tuple[tuple[int, float], ...]

    def __init__(self, points: Iterable[tuple[int, float]]) -> None:
        try:
            pairs = [(t, value) for t, value in points]
        except (TypeError, ValueError):
            raise TypeError(
                f"points: expected pairs of a time and a number, got {points!r}"
            ) from None
        if not pairs:
            raise ValueError("points: expected at least one, got none")
        read = tuple(
            (as_int(f"time of point {number}", t), _finite(f"value of point {number}", value))
            for number, (t, value) in enumerate(pairs)
        )
        for number, ((t0, _), (t1, _)) in enumerate(pairwise(read), 1):
            if t1 <= t0:
                raise ValueError(f"time of point {number}: expected more than {t0}, got {t1}")
        object.__setattr__(self, "points", read)

    def __call__(self, t: float, /) -> float:
        """The number at time ``t``."""
        for (t0, start), (t1, stop) in pairwise(self.points):
            if t < t1:
                return _between(start, stop, (t - t0) / (t1 - t0))
        return self.points[-1][1]


def check(
    name: str,
    value: float | Schedule,
    least: float = -math.inf,
    most: float = math.inf,
    *,
    above: bool = False,
) -> None:
    """Raise unless an argument is a number from ``least`` to ``most``, or a schedule.

    ``above`` excludes ``least`` itself. The values of a user's schedule are checked by
    ``value_at``.
    """
    known: list[Any] = [value]
    if isinstance(value, Linear):
        known = [value.start, value.stop]
    elif isinstance(value, Piecewise):
        known = [number for _, number in value.points]
    elif callable(value) and not isinstance(value, type):
        return
    for number in known:
        _in_range(name, number, least, most, above, value)


def value_at(
    value: float | Schedule,
    t: float,
    name: str = "schedule",
    least: float = -math.inf,
    most: float = math.inf,
    *,
    above: bool = False,
) -> float:
    """The number, or the schedule's value at time ``t``, in the range of ``check``; or an error."""
    number = value(t) if callable(value) else value
    return _in_range(name, number, least, most, above, value)


def _finite(name: str, value: object) -> float:
    """``value`` as a finite Python float, or an error."""
    return _in_range(name, value, -math.inf, math.inf, False, Schedule)


def _in_range(
    name: str, number: object, least: float, most: float, above: bool, source: object
) -> float:
    """``number`` as a float; raises unless it is within the bounds.

    ``source`` is the number itself, the schedule that returned it, or the class ``Schedule``.
    """
    # A look at the abstract class takes 4 us.
    is_number = type(number) is float or (
        isinstance(number, numbers.Real) and not isinstance(number, bool)
    )
    try:
        found = float(number) if is_number else math.nan  # type: ignore[arg-type]  # it is Real
    except OverflowError:
        found = math.inf
    if math.isfinite(found) and (found > least if above else found >= least) and found <= most:
        return found
    origin = f" from {source!r}" if callable(source) and source is not Schedule else ""
    if not is_number:
        kind = "a number" if callable(source) else "a number or a schedule"
        raise TypeError(f"{name}: expected {kind}, got {number!r}{origin}")
    if math.isinf(least) and math.isinf(most):
        expected = "a finite number"
    elif math.isinf(most):
        expected = f"{'more than' if above else 'at least'} {least}"
    elif above:
        expected = f"more than {least} and at most {most}"
    else:
        expected = f"{least} to {most}"
    raise ValueError(f"{name}: expected {expected}, got {number}{origin}")


def _between(start: float, stop: float, part: float) -> float:
    """Linear interpolation from ``start`` to ``stop``, clipped to the two."""
    if part <= 0:
        return start
    if part >= 1:
        return stop
    # Two products, as the difference of two finite numbers may be infinite.
    number = (1 - part) * start + part * stop
    return min(max(number, min(start, stop)), max(start, stop))
