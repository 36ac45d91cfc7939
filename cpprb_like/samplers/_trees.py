"""Segment trees in memory of their own, for samplers and programs that draw by weight.

Not here: the trees (``_segment_tree``), and the trees of samplers, whose memory counts as part of
a buffer (``_prioritized``).
"""

from __future__ import annotations

import sys

from cpprb_like._arguments.checks import as_int
from cpprb_like._files.arenas import allocate_floats
from cpprb_like._machine import machine_memory
from cpprb_like._segment_tree import SumTree, tree_size

__all__ = ["SumTree", "new_sum_tree"]

MOST_SLOTS = sys.maxsize // 16  # of a tree whose bytes can be counted


def new_sum_tree(capacity: int) -> SumTree:
    """A tree of weights for the slots 0 to ``capacity - 1``, all zero.

    Parameters
    ----------
    capacity : int
        Slots, at least 1. The tree takes 8/7 times 8 bytes for each.

    Returns
    -------
    SumTree

    Raises
    ------
    TypeError, ValueError
        ``capacity`` is no integer of at least 1, or has no size in bytes.
    MemoryError
        The machine has not so much memory now.

    Examples
    --------
    >>> import numpy as np
    >>> from cpprb_like.samplers import new_sum_tree
    >>> tree = new_sum_tree(4)
    >>> tree.set(np.array([1, 3]), np.array([0.5, 1.5]))
    >>> tree.total, tree.find(np.array([0.4, 0.6])).tolist()
    (2.0, [1, 3])
    """
    capacity = as_int("capacity", capacity, 1, MOST_SLOTS)
    nodes = tree_size(capacity)
    machine_memory.require(8 * nodes, f"a tree of {capacity} weights")
    return SumTree(allocate_floats(nodes), capacity)
