from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from cpprb_like._core import Ring
from cpprb_like._rows.column import Column
from cpprb_like._rows.rings import Rings

@final
class Walker:
    def __new__(
        cls,
        ring: Ring | Rings,
        *,
        size: int,
        gamma: float,
        summed: Column | None,
        last_fields: frozenset[str],
        discount_shape: tuple[int, ...] | None,
        before: int,
        after: int,
        gives_windows: bool,
    ) -> Self: ...
    def take(
        self,
        slots: NDArray[np.intp],
        arrays: list[NDArray[Any]] | None = None,
        steps: NDArray[np.intp] | None = None,
        columns: tuple[Column, ...] | None = None,
    ) -> tuple[dict[str, NDArray[Any]], Any, Any, NDArray[np.intp]]: ...
    def read(
        self,
        slots: NDArray[np.intp],
        arrays: list[NDArray[Any]] | None = None,
        steps: NDArray[np.intp] | None = None,
        columns: tuple[Column, ...] | None = None,
    ) -> dict[str, NDArray[Any]]: ...
