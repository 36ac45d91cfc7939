"""Dtypes in the byte order of the machine.

All values of a buffer have this byte order, so readers of columns need no other. Not here: casts of
values, which NumPy makes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["native"]


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in the machine's byte order, including all parts of a structure."""
    own = dtype.newbyteorder("=")
    return dtype if own == dtype else own  # ``isnative`` does not look into arrays in a structure
