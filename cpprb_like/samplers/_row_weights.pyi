from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from cpprb_like._core import Ring
from cpprb_like._segment_tree import MaxTree, MinTree, SumTree
from cpprb_like.samplers._ranks import Ranks

_Floats: TypeAlias = NDArray[np.float64]
_Slots: TypeAlias = NDArray[np.intp]

@final
class RowWeights:
    ring: Ring
    tree: SumTree
    first: float
    ranks: Ranks | None
    def __new__(
        cls,
        ring: Ring,
        tree: SumTree,
        minima: MinTree,
        maxima: MaxTree | None,
        first: float,
        ranks: Ranks | None = None,
    ) -> RowWeights: ...
    def sync(self) -> None: ...
    def set_new(self, first: int, clears: int, priorities: _Floats, weights: _Floats) -> None: ...
    def draw(
        self, n: int, rng: np.random.Generator, replace: bool, stratified: bool, as_handles: bool
    ) -> tuple[_Slots, NDArray[np.int64], _Floats, float, float]: ...
    @property
    def least(self) -> float: ...
    @property
    def total(self) -> float: ...
    @property
    def newest(self) -> float: ...
    @property
    def largest_priority(self) -> float: ...
    def check_draw(self, n: int, replace: bool) -> None: ...
    def get(self, slots: _Slots) -> _Floats: ...
    def indexes(self, slots: _Slots, as_handles: bool) -> NDArray[np.int64]: ...
    def update(
        self, indexes: NDArray[np.int64], priorities: _Floats, weights: _Floats, as_handles: bool
    ) -> None: ...
    def save(self) -> tuple[Any, ...]: ...
    def load(self, saved: tuple[Any, ...]) -> None: ...
