"""Type aliases of arrays, for type checkers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Batch", "Bytes", "Flags", "Floats", "Slots"]

Array = NDArray[Any]
Batch = dict[str, Array]  # by column; the first axis counts draws
Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]
Slots = NDArray[np.intp]
