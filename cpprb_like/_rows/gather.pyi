from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._core import Ring
from cpprb_like._rows.chained import Chain
from cpprb_like._rows.column import Column
from cpprb_like._rows.rings import Rings

def take(
    ring: Ring | Rings,
    slots: NDArray[np.intp],
    arrays: list[NDArray[Any]] | None = None,
    columns: tuple[Column, ...] | None = None,
) -> dict[str, NDArray[Any]]: ...
def take_chain(
    ring: Ring | Rings, chain: Chain, slots: NDArray[np.intp], out: NDArray[Any]
) -> None: ...
def new_array(ring: Ring | Rings, column: Column, n: int) -> NDArray[Any]: ...
def write(
    ring: Ring,
    indexes: NDArray[np.int64],
    columns: list[Column],
    arrays: list[NDArray[Any]],
    items: tuple[tuple[Column, NDArray[Any], NDArray[np.int64]], ...] = (),
) -> None: ...
