from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from cpprb_like._rows.column import Column
from cpprb_like._rows.item_ring import ItemRing

@final
class NewItems:
    def __new__(
        cls, fields: tuple[Any, ...], columns: tuple[Column, ...], rings: tuple[ItemRing, ...]
    ) -> NewItems: ...
    def load(
        self, n: int, counts: list[NDArray[np.int64]], items: dict[int, NDArray[Any]]
    ) -> None: ...
