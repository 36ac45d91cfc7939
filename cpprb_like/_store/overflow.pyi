from typing import final

import numpy as np
from numpy.typing import NDArray

@final
class Overflow:
    nbytes: int
    count: int
    wanted: int
    @property
    def last(self) -> int: ...
    def part(self, first: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.uint8]]: ...

def use_file(
    overflow: Overflow, keys: NDArray[np.int64], values: NDArray[np.uint8], base: int
) -> None: ...
def set_base(overflow: Overflow, base: int) -> None: ...
def grow(
    overflow: Overflow,
    keys: NDArray[np.int64],
    values: NDArray[np.uint8],
    complete: NDArray[np.int64],
) -> bool: ...
