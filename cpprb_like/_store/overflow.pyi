from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

_Saved: TypeAlias = tuple[NDArray[np.int64], NDArray[np.uint8]]

@final
class Overflow:
    nbytes: int
    count: int
    def __new__(cls, nbytes: int) -> Overflow: ...
    @property
    def total_nbytes(self) -> int: ...
    def save(self) -> _Saved: ...
    def load(self, saved: _Saved) -> None: ...
