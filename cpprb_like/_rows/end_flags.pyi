import numpy as np
from numpy.typing import NDArray

def count_absent(
    arena: NDArray[np.uint8],
    offset: int,
    stride: int,
    n: int,
    fields: list[tuple[int, int, int, int, int]],
) -> int: ...
