from typing import Any

import numpy as np
from numpy.typing import NDArray

class Column:
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    objects: NDArray[Any] | None
    offset: int
    stride: int
    nbytes: int
    def __init__(
        self,
        name: str,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        capacity: int,
        offset: int,
        stride: int,
    ) -> None: ...
