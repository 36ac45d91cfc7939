"""``Mass``: how much of a draw from several learners one learner has.

A program that draws from several learners draws the learner of each item first, by its mass. Not
here: the masses of shards within one learner (``_draws``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cpprb_like.processes._followed import FollowedShards
from cpprb_like.processes._followers import consistently
from cpprb_like.samplers._rows import Rows
from cpprb_like.samplers._ruled import RuledRows
from cpprb_like.samplers._shares import SharedRows
from cpprb_like.samplers._whole_rows import NONE


@dataclass(frozen=True)
class Mass:
    """The mass of a learner, or of its view, in draws from several: ``Learner.mass``.

    Attributes
    ----------
    rows : int
        Rows that can be drawn.
    total : float
        The sum of the masses of all items that can be drawn: their number, or their weights.
    least : float
        The least mass of an item above 0; infinity if there is none, and for a view.
    largest : float
        The greatest priority that a row was given.
    moment : float
        Time of these values, by ``time.monotonic``.
    left : int
        Of a view whose rules count draws, as ``AtMost`` does: items or groups that a batch without
        repetition can have. Else 0.
    values : dict
        Of a view with ``Share``, in a cluster: ``total`` and ``left`` of the rows of each value
        that has a share, by the value. Else empty.
    references : tuple
        Of a view with ``Newest(half_life=)``: the version relative to which the masses are.
    """

    rows: int
    total: float
    least: float
    largest: float
    moment: float
    left: int = 0
    values: Mapping[Any, tuple[float, int]] = field(default_factory=dict)
    references: tuple[Any, ...] = ()


def mass_of(shards: FollowedShards, starts: Rows | None, *, by_value: bool = False) -> Mass:
    """The present mass of all rows, or of the rows at which the items of a view can start.

    ``by_value``: of a view with ``Share``, for a caller that draws by the masses of the values.
    """
    with shards.lock:
        mass: Mass
        _, mass = consistently(
            shards.group, shards, lambda: (NONE, _mass_now(shards, starts, by_value))
        )
    return mass


def _mass_now(shards: FollowedShards, starts: Rows | None, by_value: bool) -> Mass:
    """``mass_of`` of the rows that were followed."""
    rows, weights = len(shards.group), shards.weights
    masses = None if starts is None else starts.over(weights)
    total, least, greatest, left = float(rows), 1.0, 1.0, 0
    shared = starts if by_value and isinstance(starts, SharedRows) else None
    values = dict[Any, tuple[float, int]]()
    if weights is not None:
        greatest = weights.largest_priority
        if starts is not None:
            if not (starts if shared is None else shared.every).cuts_only:
                raise ValueError(
                    "view: expected masses of 0 and 1, as of Among, got others: where several "
                    "learners draw as one by priorities, importance-sampling weights would "
                    "correct the masses too"
                )
            least = math.inf
        else:
            total, least = weights.total, weights.least
    if shared is not None:
        values = shared.by_value(masses)
        total = sum(one for one, _ in values.values())
        left = sum(one for _, one in values.values())
    elif starts is not None:
        total = float(starts.count) if masses is None else starts.weigh(masses)
    if masses is not None and isinstance(starts, RuledRows) and starts.rules.counts:
        is_exact = starts.is_exact(masses)
        if is_exact and weights is None and starts.cuts_only:
            left = int(total)
        elif is_exact:
            left = masses.count(rows)
        else:
            left = int(np.count_nonzero(masses.get(starts.slots())))
    ruled = starts if shared is None else shared.every
    relative = ruled.rules.relative if isinstance(ruled, RuledRows) else ()
    references = tuple(rule.reference for rule in relative)
    return Mass(rows, total, least, greatest, time.monotonic(), left, values, references)
