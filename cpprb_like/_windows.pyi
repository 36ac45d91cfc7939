from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from cpprb_like._episodes import Starts

def take_sequences(
    starts: Starts, slots: NDArray[np.intp], single: frozenset[str]
) -> tuple[dict[str, NDArray[Any]], NDArray[np.bool_]] | None: ...

@final
class Sequences: ...
