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
        """The nodes of a ``SumTree``, leaves first; there are three levels at least."""
        levels = [_padded(self.weights)]
        while len(levels) < 3 or levels[-1].size > 1:
            c = levels[-1].reshape(-1, 8).T
            sums = (((c[0] + c[1]) + (c[2] + c[3])) + (c[4] + c[5])) + (c[6] + c[7])
            levels.append(_padded(sums) if sums.size > 1 or len(levels) < 2 else sums)
        return np.concatenate(levels)

    def bounds(self) -> list[Floats]:
        """The levels of a ``MinTree`` if all nodes are exact, the root last."""
        levels = [least(_padded(self.weights, 64).reshape(-1, 64))]
        while levels[-1].size > 1:
            levels[-1] = _padded(levels[-1])
            levels.append(least(levels[-1].reshape(-1, 8)))
        return levels


def least(rows: Floats) -> Floats:
    """The least weight of each row that is not zero, or zero."""
    found: Floats = np.where(rows > 0, rows, np.inf).min(axis=1)
    found[np.isinf(found)] = 0
    return found


def _padded(nodes: Floats, width: int = 8) -> Floats:
    return np.concatenate([nodes, np.zeros(-len(nodes) % width)])
