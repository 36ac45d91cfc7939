"""Arrays that callers give, for the fronts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["as_numbers"]


def as_numbers(name: str, value: ArrayLike) -> NDArray[Any]:
    """Convert a value to an array; the dtype is ``object`` only if the value has a dtype already.

    Raises ``ValueError`` for rows of different lengths, ``TypeError`` for other Python objects.
    """
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if array.dtype.hasobject and not hasattr(value, "dtype"):
        raise TypeError(f"{name}: expected an array, got {type(value).__name__}")
    return array
