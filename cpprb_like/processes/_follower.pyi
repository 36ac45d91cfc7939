from collections.abc import Callable
from typing import final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from cpprb_like._core import Ring

def read_header(state: NDArray[np.int64]) -> NDArray[np.int64] | None: ...

@final
class Follower:
    ring: Ring
    def __new__(
        cls,
        ring: Ring,
        state: NDArray[np.int64],
        flags: NDArray[np.uint8],
        changes: NDArray[np.int64],
        reopen: Callable[[int, int, int], None],
    ) -> Self: ...
    @property
    def reopen(self) -> Callable[[int, int, int], None]: ...
    def sync(self) -> int: ...
    @property
    def written(self) -> int: ...
    @property
    def bound(self) -> int: ...
    @property
    def first(self) -> int: ...
    @property
    def is_busy(self) -> bool: ...
    def leave_out(self, row: int) -> None: ...
