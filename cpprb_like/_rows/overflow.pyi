from typing import final

import numpy as np
from numpy.typing import NDArray

@final
class Overflow:
    nbytes: int
    count: int
    wanted: int
    @property
    def total_nbytes(self) -> int: ...
    @property
    def last(self) -> int: ...
    def save(self) -> tuple[NDArray[np.int64], NDArray[np.uint8]]: ...
    def load(self, saved: tuple[NDArray[np.int64], NDArray[np.uint8]]) -> None: ...
    def part(self, first: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.uint8]]: ...

def follow_file(
    overflow: Overflow,
    keys: NDArray[np.int64],
    values: NDArray[np.uint8],
    base: int,
    oldest: int,
    stop: int,
) -> None: ...
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
