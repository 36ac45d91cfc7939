"""Dtypes in the byte order of the machine.

All values of a buffer are in it, so nothing that reads a column knows of another one. Not here: the
values, which NumPy casts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["native"]


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of the same values in the machine's byte order, with all parts of a structure."""
    own = dtype.newbyteorder("=")
    return dtype if own == dtype else own  # ``isnative`` does not look into arrays in a structure
