"""Arrays that callers give, for the fronts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["as_numbers"]


def as_numbers(name: str, value: ArrayLike) -> NDArray[Any]:
    """An array of numbers; of Python objects only where it is one already.

    Raises ``ValueError`` for rows of several lengths, ``TypeError`` for what is no array.
    """
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if array.dtype.hasobject and not hasattr(value, "dtype"):
        raise TypeError(f"{name}: expected an array, got {type(value).__name__}")
    return array
