from typing import Final, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from cpprb_like._core import Ring
from cpprb_like._rows.rings import Rings

WORDS: Final[int]
QUANTILES: Final[tuple[tuple[str, float], ...]]

@final
class Undrawn:
    ring: Ring
    def __new__(cls, ring: Ring) -> Self: ...

@final
class DrawCounts:
    memory: NDArray[np.int64]
    undrawn: list[Undrawn | None]
    def __new__(cls, memory: NDArray[np.int64], is_uniform: bool, width: int = 1) -> Self: ...
    def note_of(self, rings: Rings, rows: NDArray[np.intp], of_all: bool) -> None: ...
    def stats(self) -> dict[str, float]: ...

def stats_of(memories: list[NDArray[np.int64]]) -> dict[str, float]: ...
