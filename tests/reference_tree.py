"""The slow, obvious twin of the segment trees: an array of weights, and exact fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class ReferenceTree:
    """Weights of ``capacity`` slots; everything is computed from them when it is asked for."""

    def __init__(self, capacity: int) -> None:
        self.weights: Floats = np.zeros(capacity)

    def set(self, indexes: list[int], values: list[float]) -> None:
        """Set weights one after another."""
        for index, value in zip(indexes, values, strict=True):
            self.weights[index] = value

    @property
    def min(self) -> float:
        """The least weight that is not zero."""
        return float(min(self.weights[self.weights > 0], default=np.inf))

    @property
    def max(self) -> float:
        """The greatest weight."""
        return float(max(self.weights))

    def sum(self, start: int, stop: int) -> Fraction:
        """The exact sum of some weights."""
        return sum(map(Fraction, self.weights[start:stop].tolist()), Fraction(0))

    def find(self, target: float) -> int:
        """The first slot whose exact running sum exceeds the target, or the last with a weight."""
        running = Fraction(0)
        for slot, weight in enumerate(self.weights.tolist()):
            running += Fraction(weight)
            if Fraction(target) < running:
                return slot
        return int(np.flatnonzero(self.weights)[-1])

    def draw_distinct(self, n: int, rng: np.random.Generator) -> list[int]:
        """Independent draws in rounds; a slot that has been drawn weighs nothing in the next."""
        left, drawn, most = ReferenceTree(len(self.weights)), list[int](), n
        left.weights[:] = self.weights
        while len(drawn) < n:
            total = float(left.sum(0, len(left.weights)))
            targets = rng.random(min(n - len(drawn), most)) * total
            fresh = list(dict.fromkeys(map(left.find, targets.tolist())))
            left.weights[fresh] = 0
            drawn += fresh
            most = max(2 * len(fresh), 64)
        return drawn

    def distance(self, slot: int, target: float) -> Fraction:
        """How far a target lies outside the interval of a slot."""
        before = self.sum(0, slot)
        after = before + Fraction(float(self.weights[slot]))
        return max(before - Fraction(target), Fraction(target) - after, Fraction(0))

    def sum_nodes(self) -> Floats:
        """The nodes of a ``SumTree``, leaves first."""
        levels = [_padded(self.weights)]
        while levels[-1].size > 1:
            c = levels[-1].reshape(-1, 8).T
            sums = (((c[0] + c[1]) + (c[2] + c[3])) + (c[4] + c[5])) + (c[6] + c[7])
            levels.append(_padded(sums) if sums.size > 1 else sums)
        return np.concatenate(levels)

    def min_nodes(self) -> Floats:
        """The nodes of a ``MinTree``: the least of eight that is not zero, or zero."""
        levels = [_padded(self.weights)]
        while levels[-1].size > 1:
            children = levels[-1].reshape(-1, 8)
            least = np.where(children > 0, children, np.inf).min(axis=1)
            least[np.isinf(least)] = 0
            levels.append(_padded(least) if least.size > 1 else least)
        return np.concatenate(levels[1:])

    def max_nodes(self) -> Floats:
        """The nodes of a ``MaxTree``: the greatest of eight."""
        levels = [_padded(self.weights)]
        while levels[-1].size > 1:
            greatest = levels[-1].reshape(-1, 8).max(axis=1)
            levels.append(_padded(greatest) if greatest.size > 1 else greatest)
        return np.concatenate(levels[1:])


def _padded(nodes: Floats) -> Floats:
    return np.concatenate([nodes, np.zeros(-len(nodes) % 8)])
