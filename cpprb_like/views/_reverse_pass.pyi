from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from cpprb_like._core import Ring
from cpprb_like._rows.column import Column

_Numbers: TypeAlias = Column | NDArray[np.float64] | None

def reverse_pass(
    ring: Ring,
    stop: int,
    advantages: NDArray[np.float32],
    returns: NDArray[np.float32],
    *,
    rewards: _Numbers,
    values: _Numbers,
    following: _Numbers,
    follows_all: bool,
    ratios: _Numbers,
    gamma: float,
    lam: float,
    rho_bar: float,
    c_bar: float,
) -> bool: ...
