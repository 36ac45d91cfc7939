from collections.abc import Callable
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Bytes
from cpprb_like._rows.column import Column

@final
class ItemRing:
    axis: str
    room: int
    units: int
    entry: Column
    columns: tuple[Column, ...]
    names: tuple[str, ...]
    def __new__(
        cls,
        items: Any,
        columns: tuple[Column, ...],
        arena: Bytes,
        words: NDArray[np.int64],
        use: Callable[[int, int], None] | None = None,
    ) -> ItemRing: ...
    @property
    def left(self) -> int: ...
    def find_head(self) -> None: ...
    def find_moved(self, rows: NDArray[np.int64], entries: NDArray[Any]) -> None: ...
    def prepare(self, stop: int) -> None: ...
    def pack(
        self, number: int, places: NDArray[np.int64], counts: NDArray[np.int64], out: Bytes
    ) -> None: ...
    def load(self, n: int, left: int) -> None: ...
    def items(self, number: int) -> Bytes: ...
