from typing import final

import numpy as np
from numpy.typing import NDArray

@final
class Overflow:
    nbytes: int
    count: int
    @property
    def last(self) -> int: ...
    def part(self, first: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.uint8]]: ...
