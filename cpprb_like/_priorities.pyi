from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]

def as_priorities(values: object) -> Floats | None: ...
def weigh(priorities: Floats, eps: float, alpha: float) -> tuple[Floats, float]: ...
def importance(
    weights: Floats, least: float, beta: float, single: bool
) -> NDArray[np.floating[Any]]: ...
