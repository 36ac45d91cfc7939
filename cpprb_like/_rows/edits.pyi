from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

REWINDING: Final[int]

@final
class Tracker:
    capacity: int
    def __new__(cls, capacity: int) -> Self: ...
    def mark(self, slots: NDArray[np.intp]) -> None: ...
    def slots(self) -> NDArray[np.intp]: ...

@final
class Undo:
    chunks: Any
    lens: NDArray[np.int64]
    wanted: int
    def __new__(
        cls,
        arena: NDArray[np.uint8],
        lens: NDArray[np.int64],
        log: NDArray[np.uint8],
        added_at: NDArray[np.int64] | None = None,
        times: NDArray[np.int64] | None = None,
        chunks: Any = None,
    ) -> Self: ...

def clock() -> int: ...
def fence() -> None: ...
