from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._core import Ring
from cpprb_like._rows.column import Column

def write(
    ring: Ring,
    indexes: NDArray[np.int64],
    columns: list[Column],
    arrays: list[NDArray[Any]],
) -> None: ...
