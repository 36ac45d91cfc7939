"""Priorities out of the pickle that ReAgent writes for its sum tree, without running what is in it.

A pickle is a program. Of what such programs may call, only what makes NumPy arrays and numbers is
let through; the tree itself becomes an object without any methods.
"""

from __future__ import annotations

import pickle
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from cpprb_like.compat.reagent._errors import InputError

__all__ = ["read_sum_tree"]

HARMLESS = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    *(
        (f"numpy.{core}.multiarray", name)
        for core in ("core", "_core")
        for name in ("_reconstruct", "scalar")
    ),
    *((f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")),
}


class _Reader(pickle.Unpickler):
    """An unpickler that knows numbers, lists, dicts, arrays, and a tree that does nothing."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self._tree = type("SumTree", (), {})  # of this call only: a pickle may write to a class

    def find_class(self, module: str, name: str) -> Any:
        if name == "SumTree" and module.rpartition(".")[2] == "sum_tree":
            return self._tree
        if (module, name) in HARMLESS:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no sum tree needs")


def read_sum_tree(file: Any, capacity: int) -> tuple[NDArray[np.float64], float]:
    """The priorities of all slots, and the greatest one that was ever set.

    Raises ``InputError`` if it is not the pickle of a sum tree for so many slots.
    """
    try:
        tree = _Reader(file).load()
        leaves = np.asarray(tree.nodes[-1])
        greatest = float(tree.max_recorded_priority)
    except Exception as error:  # a damaged pickle raises anything
        raise InputError(f"sum_tree: no pickle of a sum tree: {error}") from error
    if leaves.dtype != np.float64 or leaves.shape != (1 << (capacity - 1).bit_length(),):
        raise InputError(
            f"sum_tree: expected priorities of {capacity} slots, got {leaves.dtype} of shape "
            f"{leaves.shape}"
        )
    return leaves[:capacity].copy(), greatest
