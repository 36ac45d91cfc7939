"""ReAgent's ``SumTree``, an adapter of the compiled tree of the engine.

Not here: which slots of a buffer can be drawn (``_rows``).
"""

from __future__ import annotations

import operator
import random
from typing import Any, SupportsIndex

import numpy as np

from cpprb_like._arguments.arrays import Floats, Slots
from cpprb_like._arguments.checks import as_int
from cpprb_like.compat.reagent._elements import InputError
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.samplers import new_sum_tree


class SumTree:
    """A sum tree of priorities by slot, with draws in proportion to them, as in the original.

    Parameters
    ----------
    capacity : int
        Number of slots, at least 1. Other values raise ``InputError``, a ``ValueError`` and an
        ``AssertionError``.

    Attributes
    ----------
    capacity : int
        As given.
    max_recorded_priority : float
        Greatest priority that was ever set, at least 1.0.

    Notes
    -----
    Random numbers come from Python's module ``random``, so ``random.seed`` repeats draws. There are
    three differences from ReAgent. Each sum is computed from its parts and does not drift. A slot
    of priority 0 is never drawn. Bad slots and priorities are refused.

    Source: Schaul et al. (2016), "Prioritized Experience Replay", appendix B.2.1.

    Examples
    --------
    >>> from cpprb_like.compat.reagent import SumTree
    >>> tree = SumTree(capacity=4)
    >>> tree.set(2, 1.0)
    >>> tree.set(3, 3.0)
    >>> tree.sample(query_value=0.1), tree.sample(query_value=1.0), tree.stratified_sample(4)
    (2, 3, [2, 3, 3, 3])
    >>> [level.tolist() for level in tree.nodes]
    [[4.0], [0.0, 4.0], [0.0, 0.0, 1.0, 3.0]]
    """

    def __init__(self, capacity: SupportsIndex) -> None:
        try:
            self.capacity = as_int("capacity", capacity, 1)
        except (TypeError, ValueError) as error:
            raise InputError(str(error)) from None
        self.max_recorded_priority = 1.0
        self._tree = new_sum_tree(self.capacity)

    def set(self, node_index: SupportsIndex, value: float) -> None:
        """Set the priority of a slot.

        Raises ``IndexError`` if there is no such slot, and ``ValueError`` if the priority is
        negative, infinite or NaN. After any error nothing has changed.
        """
        self.set_many(self._slot(node_index), np.array([value], np.float64))

    def get(self, node_index: SupportsIndex) -> float:
        """The priority of a slot, 0.0 if never set; ``IndexError`` if there is no such slot."""
        return float(self.get_many(self._slot(node_index))[0])

    def set_many(self, node_indices: Slots, values: Floats) -> None:
        """``set`` for each slot of a dense array, in one compiled call; the last duplicate wins."""
        self._tree.set(node_indices, values)
        self.max_recorded_priority = max([*values.tolist(), self.max_recorded_priority])

    def get_many(self, node_indices: Slots) -> Floats:
        """``get`` for each slot of a dense array, in one compiled call."""
        return self._tree.get(node_indices)

    def sample(self, query_value: float | np.floating[Any] | None = None) -> int:
        """Draw a slot.

        Parameters
        ----------
        query_value : float, optional
            Number from 0 to 1 in place of the random number. It is the position of the slot along
            all priorities laid end to end. 1 is the last slot that has a priority.

        Raises
        ------
        NotEnoughDataError
            All priorities are 0. This error is a ``RuntimeError``.
        ValueError
            ``query_value`` is not from 0 to 1.
        """
        total = self._weight()
        if query_value is None:
            query_value = random.random()
        elif not 0.0 <= query_value <= 1.0:
            raise ValueError(f"query_value: expected a number from 0 to 1, got {query_value!r}")
        return int(self._tree.find(np.array([float(query_value) * total]))[0])

    def stratified_sample(self, batch_size: SupportsIndex) -> list[int]:
        """Draw a slot from each of ``batch_size`` equal parts of the sum of all priorities.

        Raises ``NotEnoughDataError``, a ``RuntimeError``, if all priorities are 0, and
        ``ValueError`` if ``batch_size`` is negative.
        """
        n, total = as_int("batch_size", batch_size, 0), self._weight()
        bits = np.frombuffer(random.randbytes(8 * n), "<u8") >> 11  # 53 bits for each double
        targets = (np.arange(n) + bits * 2.0**-53) * (total / max(n, 1))
        found: list[int] = self._tree.find(targets).tolist()
        return found

    @property
    def nodes(self) -> list[Floats]:
        """Copies of the sums as a binary tree: a list of levels, root first and leaves last.

        Cost: proportional to the capacity, because the compiled tree has other levels.
        """
        leaves = np.zeros(1 << (self.capacity - 1).bit_length())
        leaves[: self.capacity] = self.get_many(np.arange(self.capacity, dtype=np.intp))
        levels = [leaves]
        while len(levels[0]) > 1:
            levels.insert(0, levels[0].reshape(-1, 2).sum(axis=1))
        for level in levels:
            level.flags.writeable = False
        return levels

    def _total_priority(self) -> float:
        return self._tree.total

    def _weight(self) -> float:
        """The sum of all priorities. Raises ``NotEnoughDataError`` if it is 0."""
        total = self._tree.total
        if total == 0.0:
            raise NotEnoughDataError("cannot sample: all priorities are 0")
        return total

    def _slot(self, node_index: SupportsIndex) -> Slots:
        return np.array([operator.index(node_index)], np.intp)

    def __reduce__(self) -> tuple[Any, ...]:
        leaves = self.get_many(np.arange(self.capacity, dtype=np.intp))
        return _tree_of, (leaves, self.max_recorded_priority)

    def __repr__(self) -> str:
        return f"SumTree(capacity={self.capacity}, total={self._tree.total:g})"


def _tree_of(leaves: Floats, greatest: float) -> SumTree:
    """Rebuild a tree that was pickled or copied."""
    tree = SumTree(len(leaves))
    tree.set_many(np.arange(len(leaves)), leaves)
    tree.max_recorded_priority = greatest
    return tree
