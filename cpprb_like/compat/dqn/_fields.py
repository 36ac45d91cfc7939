"""Fields of Berkeley's buffer as its users know them: something to index by slot.

Not here: how frames and their effects are stored (``dqn``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cpprb_like._arguments.arrays import Array

__all__ = ["StoredField"]

Ints = NDArray[np.intp]


class StoredField:
    """What a ``ReplayBuffer`` holds of one field, read when it is indexed.

    Its first axis are the slots, of which one index chooses some as it would of an array; slots
    that were never used are 0. What comes is a copy; ``numpy.asarray`` copies all of it.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], read: Callable[[Ints], Array]
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.ndim = len(shape)
        self._read = read

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, (int, np.integer)) and -len(self) <= index < len(self):
            slots = np.asarray(index % len(self))
        else:
            slots = np.asarray(np.arange(len(self))[index])
        values = self._read(slots.reshape(-1))
        return values.reshape((*slots.shape, *self.shape[1:]))[()]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("copy: the values have to be copied")
        values: Array = self[:]
        return values if dtype is None else values.astype(dtype)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype})"
