import numpy as np
from numpy.typing import NDArray

from cpprb_like._core import Ring

def draw_uniform(
    ring: Ring,
    n: int,
    rng: np.random.Generator,
    replace: bool = True,
    newest: int | None = None,
) -> NDArray[np.intp]: ...
