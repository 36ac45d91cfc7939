from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Slots
from cpprb_like._core import Ring
from cpprb_like._rows.column import Column
from cpprb_like._rows.rings import Rings

def counts_of(ring: Ring | Rings, axis: str, entries: NDArray[Any]) -> NDArray[np.int64]: ...
def bounds_of(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], int, int]: ...
def take_items(
    ring: Ring | Rings,
    slots: Slots,
    entries: NDArray[Any],
    column: Column,
    out: NDArray[Any],
    starts: NDArray[np.int64],
    row_stride: int,
    outer_stride: int,
    shifts: NDArray[np.int64] | None = None,
    blank: NDArray[Any] | None = None,
) -> None: ...
def fill_mask(
    starts: NDArray[np.int64], counts: NDArray[np.int64], mask: NDArray[np.bool_]
) -> None: ...
def fill_positions(offsets: NDArray[Any], out: NDArray[Any]) -> None: ...
def fill_segments(offsets: NDArray[Any], out: NDArray[Any]) -> None: ...
