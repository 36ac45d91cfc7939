from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._core import Ring
from cpprb_like._rows.column import Column

COPIED_AT_ONCE: int

def take_stacks(
    ring: Ring,
    column: Column,
    slots: NDArray[np.intp],
    axis: int,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]: ...
def newest_frame(stack: NDArray[Any]) -> NDArray[Any]: ...
