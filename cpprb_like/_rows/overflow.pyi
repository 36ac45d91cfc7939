from collections.abc import Callable
from typing import final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

@final
class Overflow:
    nbytes: int
    def __new__(
        cls,
        nbytes: int,
        lag: int,
        words: NDArray[np.int64],
        keys: NDArray[np.int64],
        values: NDArray[np.uint8],
        use: Callable[[int, int], None] | None = None,
    ) -> Self: ...
    @property
    def total_nbytes(self) -> int: ...
    @property
    def last(self) -> int: ...
    def prepare(self) -> None: ...
    def derive(self, base: int, written: int) -> None: ...
    def part(self, first: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.uint8]]: ...
    def load(self, base: int, ids: NDArray[np.int64], values: NDArray[np.uint8]) -> None: ...
