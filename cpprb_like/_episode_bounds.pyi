from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from cpprb_like._core import Ring

FUTURE: Final[int]
FINAL: Final[int]
EPISODE: Final[int]
RANDOM: Final[int]

@final
class EpisodeBounds:
    ring: Ring
    def __new__(cls, ring: Ring) -> EpisodeBounds: ...
    @property
    def nbytes(self) -> int: ...
    def choose(
        self, slots: NDArray[np.intp], rng: np.random.Generator, strategy: int
    ) -> NDArray[np.intp]: ...
