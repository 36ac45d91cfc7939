"""ReAgent's ``SumTree`` over the compiled tree of the engine.

Not here: which slots of a buffer can be drawn (``_rows``).
"""

from __future__ import annotations

import operator
import random
from typing import Any, SupportsIndex

import numpy as np

from cpprb_like._arguments.arrays import Floats, Slots
from cpprb_like.compat.reagent._elements import InputError
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.samplers import new_sum_tree

__all__ = ["SumTree"]


class SumTree:
    """Priorities of a number of slots, and draws in proportion to them.

    Parameters
    ----------
    capacity : int
        Slots, at least 1.

    Attributes
    ----------
    capacity : int
        As given.
    max_recorded_priority : float
        The greatest priority that was ever set, at least 1.0.

    Raises
    ------
    InputError
        ``capacity`` is no integer of at least 1. It is a ``ValueError`` and an ``AssertionError``.
    MemoryError
        The machine has not enough memory now.

    Notes
    -----
    Random numbers come from Python's module ``random``, so ``random.seed`` repeats draws. Unlike in
    ReAgent, each sum is computed from its parts and does not drift, a slot of priority 0 is never
    drawn, and what is no slot or no priority is refused.

    Source: Schaul et al. (2016), "Prioritized Experience Replay", appendix B.2.1.

    Examples
    --------
    >>> from cpprb_like.compat.reagent import SumTree
    >>> tree = SumTree(capacity=4)
    >>> tree.set(2, 1.0)
    >>> tree.set(3, 3.0)
    >>> tree.sample(query_value=0.1), tree.sample(query_value=1.0)
    (2, 3)
    >>> [level.tolist() for level in tree.nodes]
    [[4.0], [0.0, 4.0], [0.0, 0.0, 1.0, 3.0]]
    """

    def __init__(self, capacity: SupportsIndex) -> None:
        try:
            self.capacity = operator.index(capacity)
        except TypeError:
            raise InputError(f"capacity: expected an integer, got {capacity!r}") from None
        if self.capacity <= 0:
            raise InputError(f"capacity: expected at least 1, got {capacity}")
        self.max_recorded_priority = 1.0
        self._open()

    def _open(self) -> None:
        self._tree = new_sum_tree(self.capacity)

    # ------------------------------------------------------------------ one by one

    def set(self, node_index: SupportsIndex, value: float) -> None:
        """Set the priority of a slot.

        Raises
        ------
        IndexError
            There is no such slot; negative numbers do not count from the end.
        ValueError
            The priority is negative, infinite or NaN. Whatever is raised, nothing has changed.
        """
        self.set_many(self._slot(node_index), np.array([value], np.float64))

    def get(self, node_index: SupportsIndex) -> float:
        """The priority of a slot, 0.0 if it was never set; ``IndexError`` if there is none."""
        return float(self.get_many(self._slot(node_index))[0])

    def sample(self, query_value: float | np.floating[Any] | None = None) -> int:
        """Draw a slot.

        Parameters
        ----------
        query_value : float, optional
            In place of the random number: from 0 to 1, how far along all priorities laid end to end
            the slot lies. 1 is the last slot that has a priority.

        Raises
        ------
        NotEnoughDataError
            All priorities are 0. It is a ``RuntimeError``.
        ValueError
            ``query_value`` is not from 0 to 1.
        """
        self._require_weight()
        if query_value is None:
            query_value = random.random()
        elif not 0.0 <= query_value <= 1.0:
            raise ValueError(f"query_value: expected a number from 0 to 1, got {query_value!r}")
        return int(self.find(np.array([float(query_value) * self._tree.total]))[0])

    def stratified_sample(self, batch_size: SupportsIndex) -> list[int]:
        """Draw a slot from each of ``batch_size`` equal parts of the sum of all priorities.

        Parameters
        ----------
        batch_size : int
            Slots to draw, at least 0.

        Returns
        -------
        list of int
            Slots, in ascending order.

        Raises
        ------
        NotEnoughDataError
            All priorities are 0. It is a ``RuntimeError``.
        ValueError
            ``batch_size`` is negative.

        Examples
        --------
        >>> from cpprb_like.compat.reagent import SumTree
        >>> tree = SumTree(8)
        >>> for slot in range(8):
        ...     tree.set(slot, 1)
        >>> tree.stratified_sample(8)
        [0, 1, 2, 3, 4, 5, 6, 7]
        """
        found: list[int] = self.draw_stratified(operator.index(batch_size)).tolist()
        return found

    @property
    def nodes(self) -> list[Floats]:
        """The sums as a binary tree: a list of levels, root first, leaves last; copies.

        Cost: proportional to the capacity, as the tree has other levels inside.
        """
        leaves = np.zeros(1 << (self.capacity - 1).bit_length())
        leaves[: self.capacity] = self.get_many(np.arange(self.capacity, dtype=np.intp))
        levels = [leaves]
        while len(levels[0]) > 1:
            levels.insert(0, levels[0].reshape(-1, 2).sum(axis=1))
        for level in levels:
            level.flags.writeable = False
        return levels

    @property
    def largest(self) -> float:
        """The greatest priority that a slot may have: no sum overflows."""
        return self._tree.largest

    def _total_priority(self) -> float:
        return self._tree.total

    # ------------------------------------------------------------------ many at once

    def set_many(self, node_indices: Slots, values: Floats) -> None:
        """``set`` for each slot of a dense array, in one compiled call; the last duplicate wins."""
        self._tree.set(node_indices, values)
        if len(values):
            self.max_recorded_priority = max(float(values.max()), self.max_recorded_priority)

    def get_many(self, node_indices: Slots) -> Floats:
        """``get`` for each slot of a dense array, in one compiled call."""
        return self._tree.get(node_indices)

    def find(self, targets: Floats) -> Slots:
        """The slots at these distances, from 0 to the sum, along all priorities laid end to end."""
        return self._tree.find(targets)

    def draw_stratified(self, n: int) -> Slots:
        """``stratified_sample`` as an array."""
        self._require_weight()
        if n < 0:
            raise ValueError(f"batch_size: expected at least 0, got {n}")
        bits = np.frombuffer(random.randbytes(8 * n), "<u8") >> 11  # of as many doubles below 1
        return self.find((np.arange(n) + bits * 2.0**-53) * (self._tree.total / max(n, 1)))

    def _require_weight(self) -> None:
        if self._tree.total == 0.0:
            raise NotEnoughDataError("cannot sample: all priorities are 0")

    def _slot(self, node_index: SupportsIndex) -> Slots:
        return np.array([operator.index(node_index)], np.intp)

    # ------------------------------------------------------------------ pickling

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name != "_tree"}
        return state | {"leaves": self.get_many(np.arange(self.capacity, dtype=np.intp))}

    def __setstate__(self, state: dict[str, Any]) -> None:
        leaves = state.pop("leaves")
        self.__dict__.update(state)
        self._open()
        self._tree.set_range(0, leaves)

    def __repr__(self) -> str:
        return f"SumTree(capacity={self.capacity}, total={self._tree.total:g})"
