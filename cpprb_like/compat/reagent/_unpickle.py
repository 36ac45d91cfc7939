"""Priorities out of the pickle that ReAgent writes for its sum tree, without running what is in it.

A pickle is a program. Nothing of NumPy is let through, whose arrays and dtypes believe whatever
state a pickle gives them, addresses included: classes of this module stand for what makes arrays
and numbers, and the tree becomes an object without any methods.
"""

from __future__ import annotations

import pickle
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from cpprb_like.compat.reagent._errors import InputError

__all__ = ["read_sum_tree"]


class _Dtype:
    """Stands for ``numpy.dtype``: of numbers only."""

    def __init__(self, code: str, *_: object) -> None:
        self.numbers = np.dtype(str(code))
        if self.numbers.kind not in "biuf":
            raise pickle.UnpicklingError(f"it has values of {code}, which no sum tree needs")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.numbers = self.numbers.newbyteorder(state[1])


class _Array:
    """Stands for an array that is filled when it is there."""

    def __init__(self, *_: object) -> None:
        self.values: NDArray[Any] = np.empty(0)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, is_fortran, data = state
        self._fill(data, dtype, shape, "F" if is_fortran else "C")

    def _fill(self, data: bytes, dtype: _Dtype, shape: tuple[int, ...], order: Any) -> None:
        self.values = np.frombuffer(data, dtype.numbers).reshape(shape, order=order)


class _Buffer(_Array):
    """Stands for an array that is made of its bytes."""

    def __init__(
        self, data: bytes, dtype: _Dtype, shape: tuple[int, ...], order: str, *_: object
    ) -> None:
        self._fill(data, dtype, shape, order)


class _Scalar(_Array):
    """Stands for a number of NumPy."""

    def __init__(self, dtype: _Dtype, data: bytes) -> None:
        self._fill(data, dtype, (), "C")


STAND_INS: dict[tuple[str, str], type[Any]] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
}
for _core in ("numpy.core", "numpy._core"):
    STAND_INS |= {
        (f"{_core}.multiarray", "_reconstruct"): _Array,
        (f"{_core}.multiarray", "scalar"): _Scalar,
        (f"{_core}.numeric", "_frombuffer"): _Buffer,
    }


class _Reader(pickle.Unpickler):
    """An unpickler that knows numbers, lists, dicts, arrays, and a tree that does nothing."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self._tree = type("SumTree", (), {})  # of this call only: a pickle may write to a class

    def find_class(self, module: str, name: str) -> Any:
        if name == "SumTree" and module.rpartition(".")[2] == "sum_tree":
            return self._tree
        if (module, name) in STAND_INS:
            return STAND_INS[module, name]
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no sum tree needs")


def _plain(value: Any) -> Any:
    return value.values if isinstance(value, _Array) else value


def read_sum_tree(file: Any, capacity: int) -> tuple[NDArray[np.float64], float]:
    """The priorities of all slots, and the greatest one that was ever set.

    Raises ``InputError`` if it is not the pickle of a sum tree for so many slots.
    """
    try:
        tree = _Reader(file).load()
        leaves = np.asarray(_plain(tree.nodes[-1]))
        greatest = float(_plain(tree.max_recorded_priority))
    except Exception as error:  # a damaged pickle raises anything
        raise InputError(f"sum_tree: no pickle of a sum tree: {error}") from error
    if leaves.dtype != np.float64 or leaves.shape != (1 << (capacity - 1).bit_length(),):
        raise InputError(
            f"sum_tree: expected priorities of {capacity} slots, got {leaves.dtype} of shape "
            f"{leaves.shape}"
        )
    return leaves[:capacity].astype(np.float64), greatest
