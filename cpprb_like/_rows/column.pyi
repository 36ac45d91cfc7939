from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

@final
class Column:
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    axis: str
    is_entry: bool
    objects: NDArray[Any] | None
    offset: int
    stride: int
    nbytes: int
    def __new__(
        cls,
        name: str,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        capacity: int,
        offset: int,
        stride: int,
        *,
        axis: str = "",
        is_entry: bool = False,
    ) -> Self: ...
    def cast(self, value: Any, n_envs: int = 1) -> NDArray[Any] | None: ...

def load_objects(column: Column, values: NDArray[Any]) -> None: ...
