from typing import final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from cpprb_like._core import Ring

@final
class Shuffle:
    def __new__(cls, n: int, most: int) -> Self: ...

def draw_uniform(
    ring: Ring,
    n: int,
    rng: np.random.Generator,
    replace: bool = True,
    newest: int | None = None,
) -> NDArray[np.intp]: ...

@final
class Epoch:
    def __new__(cls, ring: Ring, rng: np.random.Generator | None = None) -> Epoch: ...
    def take(self, n: int) -> NDArray[np.intp]: ...
