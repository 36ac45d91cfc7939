from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from cpprb_like._core import Ring
from cpprb_like._rows.rings import Rings

_Slots: TypeAlias = NDArray[np.intp]

def without_row(ring: Ring, indexes: NDArray[np.int64], as_handles: bool) -> _Slots: ...
def handles(ring: Ring | Rings, slots: _Slots) -> NDArray[np.int64]: ...
def find_rows(ring: Ring, indexes: NDArray[np.int64]) -> tuple[_Slots, _Slots]: ...
