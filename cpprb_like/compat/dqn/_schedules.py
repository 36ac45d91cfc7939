"""The schedules of Berkeley's DQN course code; public as names of ``dqn``."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from cpprb_like.schedules import Linear, check


class OutsideScheduleError(ValueError, AssertionError):
    """Error for a time without a value; the original raises ``AssertionError``."""


def linear_interpolation(left: float, right: float, alpha: float) -> float:
    """The number at fraction ``alpha``, from 0 to 1, of the way from ``left`` to ``right``."""
    return Linear(left, right, 1)(alpha)


class LinearSchedule:
    """A linear schedule from ``initial_p`` at time 0 to ``final_p``, constant afterwards.

    ``schedule_timesteps`` is above 0. ``cpprb_like.schedules.Linear`` is the same schedule, called
    like a function.

    Examples
    --------
    >>> from cpprb_like.compat.dqn import LinearSchedule
    >>> exploration = LinearSchedule(1e6, 0.1)
    >>> exploration.value(0), exploration.value(500_000), exploration.value(2_000_000)
    (1.0, 0.55, 0.1)
    """

    def __init__(self, schedule_timesteps: float, final_p: float, initial_p: float = 1.0) -> None:
        check("schedule_timesteps", schedule_timesteps, 0, above=True)
        check("final_p", final_p)
        check("initial_p", initial_p)
        self.schedule_timesteps = schedule_timesteps
        self.final_p = final_p
        self.initial_p = initial_p

    def value(self, t: float) -> float:
        """The value at time ``t``."""
        return linear_interpolation(self.initial_p, self.final_p, t / self.schedule_timesteps)

    __call__ = value


class PiecewiseSchedule:
    """A schedule that interpolates between values at given times.

    Parameters
    ----------
    endpoints : iterable of (float, value)
        Ascending times, each with its value. Between two points at the same time the value jumps.
    interpolation : callable
        ``interpolation(left, right, alpha)`` returns the value between two points. ``alpha`` is the
        fraction of the way, from 0 to below 1. By default linear interpolation.
    outside_value : optional
        Value before the first point, at the last point and after it.

    Raises
    ------
    TypeError, ValueError
        ``endpoints`` is not such an iterable. The message names the bad point.

    Examples
    --------
    >>> from cpprb_like.compat.dqn import PiecewiseSchedule
    >>> rate = PiecewiseSchedule([(0, 1.0), (1e6, 0.1), (5e6, 0.01)], outside_value=0.01)
    >>> rate.value(500_000), rate.value(1_000_000), rate.value(6_000_000)
    (0.55, 0.1, 0.01)
    """

    def __init__(
        self,
        endpoints: Iterable[tuple[float, Any]],
        interpolation: Callable[[Any, Any, float], Any] = linear_interpolation,
        outside_value: Any = None,
    ) -> None:
        if not callable(interpolation):
            raise TypeError(f"interpolation: expected a function, got {interpolation!r}")
        try:
            points = [(t, value) for t, value in endpoints]
        except (TypeError, ValueError):
            raise TypeError(
                f"endpoints: expected pairs of a time and a value, got {endpoints!r}"
            ) from None
        self._times = [t for t, _ in points]
        self._values = [value for _, value in points]
        for number, t in enumerate(self._times):
            check(f"time of point {number}", t, self._times[number - 1] if number else -np.inf)
        if interpolation is linear_interpolation:
            for number, value in enumerate(self._values):
                check(f"value of point {number}", value)
        self._interpolation = interpolation
        self._outside_value = outside_value

    def value(self, t: float) -> Any:
        """The value at time ``t``.

        Raises ``OutsideScheduleError``, an ``AssertionError`` and a ``ValueError``, if ``t`` lies
        outside the points and there is no ``outside_value``.
        """
        after = bisect_right(self._times, t)
        if 0 < after < len(self._times):
            start, stop = self._times[after - 1 : after + 1]
            left, right = self._values[after - 1 : after + 1]
            return self._interpolation(left, right, float(t - start) / (stop - start))
        if self._outside_value is None:
            raise OutsideScheduleError(f"t: there is no value at time {t}, nor an outside_value")
        return self._outside_value

    __call__ = value
