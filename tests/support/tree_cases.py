"""What the tests of the segment trees share: trees over visible memory, arrays, targets."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
from reference_tree import Floats, ReferenceTree, least

from cpprb_like._segment_tree import MinTree, SumTree, min_tree_size, tree_size

Indexes = npt.NDArray[np.intp]


class Trees:
    """A sum tree and a min tree over memory that the tests can see."""

    def __init__(self, capacity: int, weights: Any = ()) -> None:
        self.nodes: Floats = np.zeros(tree_size(capacity))
        self.minima: Floats = np.zeros(min_tree_size(capacity))
        self.sum = SumTree(self.nodes, capacity)
        self.min = MinTree(self.minima, self.sum)
        self.sum.set_range(0, floats(weights))

    def bytes(self) -> bytes:
        """Everything that the trees know."""
        return self.nodes.tobytes() + self.minima.tobytes()


def floats(values: Any) -> Floats:
    """Weights or targets as the trees take them."""
    return np.array(values, np.float64)


def indexes(values: Any) -> Indexes:
    """Slots as the trees take them."""
    return np.array(values, np.intp)


def twin_of(weights: Any) -> ReferenceTree:
    """The twin with these weights."""
    twin = ReferenceTree(len(weights))
    twin.weights[:] = weights
    return twin


def assert_nodes_are_those_of(twin: ReferenceTree, trees: Trees) -> None:
    """Every sum is what the leaves say, to the last bit, and every bound holds."""
    assert trees.nodes.tobytes() == twin.sum_nodes().tobytes()
    exact = twin.bounds()
    assert len(trees.minima) == sum(map(len, exact))
    bounds = np.split(trees.minima, np.cumsum([len(level) for level in exact])[:-1])
    for bound, level in zip(bounds, exact, strict=True):
        np.testing.assert_array_equal(least(np.stack([bound, level], axis=1)), bound)
    for below, above in itertools.pairwise(bounds):
        children = least(below.reshape(-1, 8))
        np.testing.assert_array_equal(above[: len(children)], children)


def edge_targets(total: float) -> Floats:
    """Targets where rounding shows: both ends, and what lies next to them."""
    below = np.nextafter(total, 0)
    ends = [0.0, min(5e-324, total), total, below, np.nextafter(below, 0)]
    return np.concatenate([floats(ends), np.linspace(0, 1, 97) * total])


def chi_square_excess(counts: Indexes, weights: Floats) -> float:
    """Chi-square as a share of what it exceeds once in a million times (Wilson and Hilferty)."""
    expected = weights / weights.sum() * counts.sum()
    assert counts[weights == 0].sum() == 0
    counts, expected = counts[weights > 0], expected[weights > 0]
    freedom = len(counts) - 1
    spread = 2 / (9 * freedom)
    limit = freedom * (1 - spread + 4.75 * spread**0.5) ** 3
    return float((((counts - expected) ** 2 / expected).sum()) / limit)
