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
    following: ItemRing | None
    is_next: bool
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
        following: ItemRing | None = None,
    ) -> ItemRing: ...
    @property
    def left(self) -> int: ...
    def pack(
        self, number: int, places: NDArray[np.int64], counts: NDArray[np.int64], out: Bytes
    ) -> None: ...

def make_usable(items: ItemRing, stop: int) -> None: ...
def place_from_start(items: ItemRing, n: int, left: int) -> None: ...
def memory_of(items: ItemRing, number: int) -> Bytes: ...
def unpacked(
    entries: NDArray[Any],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]: ...
def placed_items(
    rows: NDArray[np.int64], entries: NDArray[Any], nexts: NDArray[Any], lag: int
) -> tuple[NDArray[np.int64], NDArray[Any]]: ...
