from typing import final

import numpy as np
from numpy.typing import NDArray

from cpprb_like._core import Ring

@final
class Epoch:
    def __new__(cls, ring: Ring, rng: np.random.Generator | None = None) -> Epoch: ...
    def take(self, n: int) -> NDArray[np.intp]: ...
