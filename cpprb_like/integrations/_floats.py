"""The dtype in which a buffer stores the floating-point values of an environment.

Environments often compute in float64, networks in float32, and PyTorch refuses to mix the two.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

FloatType: TypeAlias = npt.DTypeLike | None


def read_float_type(float_type: FloatType, keep: str) -> np.dtype[Any] | None:
    """The dtype that floating-point values are stored as; None, for the word ``keep``, as they are.

    Raises ``TypeError`` for what is no dtype, and ``ValueError`` for one that is no float.
    """
    if isinstance(float_type, str) and float_type == keep:
        return None
    try:
        dtype = np.dtype(np.float32 if float_type is None else float_type)
    except TypeError as error:
        raise TypeError(f"float_type: expected a dtype or {keep!r}, got {float_type!r}") from error
    if dtype.kind != "f":
        raise ValueError(f"float_type: expected a floating-point dtype or {keep!r}, got {dtype}")
    return dtype


def stored_dtype(dtype: np.dtype[Any], float_type: np.dtype[Any] | None) -> np.dtype[Any]:
    """The dtype of a field for values of a dtype."""
    return dtype if float_type is None or dtype.kind != "f" else float_type
