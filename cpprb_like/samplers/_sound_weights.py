"""Checks of the weights of rows that a prioritized sampler stores: its ``check_rows``.

Whatever is known twice is compared. Not here: the rows themselves (``buffers._checking``), and
whether a sampler keeps its promises (``testing``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.checks import expect
from cpprb_like._files.arenas import allocate_floats
from cpprb_like._segment_tree import MinTree, SumTree, min_tree_size, tree_size
from cpprb_like.samplers._base import Slots
from cpprb_like.samplers._ranks import Ranks
from cpprb_like.samplers._row_weights import RowWeights

__all__ = ["check_weights"]


def check_weights(rows: RowWeights, capacity: int, slots: Slots) -> None:
    """Slots without a step weigh nothing, and searches find each row by its share of the sum.

    ``slots`` are those that hold a step. Raises ``AssertionError``.
    """
    total, least = rows.total, rows.least  # brings all up to date
    weights = rows.tree.get(np.arange(capacity, dtype=np.intp))
    holds_step = np.zeros(capacity, np.bool_)
    holds_step[slots] = True
    sound = (weights >= 0.0) & (weights < np.inf) & (holds_step | (weights == 0.0))
    if not sound.all():
        slot = int(np.flatnonzero(~sound)[0])
        right = "a finite number of at least 0" if holds_step[slot] else "0: it holds no step"
        expect(False, f"weight of slot {slot}", right, weights[slot])
    waiting, awaited = rows.waiting()
    ids = f"ids of rows whose weights wait, up to {rows.ring.written - 1}"
    is_known = set(awaited) <= set(waiting) and max(waiting, default=0) <= rows.ring.written
    expect(is_known, ids, awaited, waiting)
    if rows.ranks is not None:
        _check_ranks(rows.ranks, weights)
    fresh = SumTree(allocate_floats(tree_size(capacity)), capacity)
    minima = MinTree(allocate_floats(min_tree_size(capacity)), fresh)
    fresh.set_range(0, weights)
    expect(total == fresh.total, "sum of all weights", fresh.total, total)
    expect(least == minima.min, "least weight", minima.min, least)
    if total > 0.0:
        targets = np.minimum(np.cumsum(weights) - weights / 2, np.nextafter(total, 0.0))
        expected, found = fresh.find(targets), rows.tree.find(targets)
        wrong = np.flatnonzero(expected != found)
        if wrong.size:
            k = int(wrong[0])
            expect(False, f"slot with {targets[k]} before it", int(expected[k]), int(found[k]))


def _check_ranks(ranks: Ranks, weights: NDArray[np.float64]) -> None:
    """The slots that weigh something have a priority, and each is counted in its group."""
    priorities = ranks.priorities
    ranked = ~np.isnan(priorities)
    wrong = np.flatnonzero(ranked != (weights > 0.0))
    if wrong.size:
        slot = int(wrong[0])
        right = "a number" if weights[slot] > 0.0 else "NaN: it weighs nothing"
        expect(False, f"priority of slot {slot}", right, priorities[slot])
    bottoms = ranks.group_bottoms
    groups = np.searchsorted(-bottoms, -priorities[ranked])
    expected, found = np.bincount(groups, minlength=len(bottoms)), ranks.group_counts
    expect(np.array_equal(expected, found), "slots of each group of ranks", expected, found)
    expect(len(ranks) == found.sum(), "slots with a rank", found.sum(), len(ranks))
