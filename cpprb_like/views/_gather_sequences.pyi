from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from cpprb_like._rows.column import Column
from cpprb_like.samplers._starts import Starts

def take_sequences(
    starts: Starts,
    slots: NDArray[np.intp],
    single: frozenset[str],
    columns: tuple[Column, ...] | None = None,
    arrays: dict[str, NDArray[Any]] | None = None,
    located: bool = False,
) -> tuple[dict[str, NDArray[Any]], NDArray[np.bool_], NDArray[np.intp] | None] | None: ...

@final
class Sequences: ...
