from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._column import Column
from cpprb_like._core import Ring

def can_sum(column: Column) -> bool: ...
def take_ahead(
    ring: Ring,
    slots: NDArray[np.intp],
    written: int,
    revision: int,
    arrays: list[NDArray[Any]] | None,
    rewards: frozenset[str],
    there: frozenset[str],
    steps: NDArray[np.intp],
    powers: NDArray[np.float64],
) -> (
    tuple[dict[str, NDArray[Any]], NDArray[np.intp], NDArray[np.uint8], NDArray[np.intp]] | None
): ...
