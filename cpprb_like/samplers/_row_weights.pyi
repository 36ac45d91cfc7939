from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from cpprb_like._core import Beside, DerivedState, Ring
from cpprb_like._segment_tree import MinTree, SumTree

_Floats: TypeAlias = NDArray[np.float64]
_Slots: TypeAlias = NDArray[np.intp]

@final
class NewWeights(Beside):
    rows: RowWeights
    priorities: _Floats
    weights: _Floats

@final
class RowWeights(DerivedState):
    tree: SumTree
    first: float
    drawn: int
    def __new__(cls, ring: Ring, tree: SumTree, minima: MinTree, first: float) -> RowWeights: ...
    def sync(self) -> None: ...
    def beside(self, priorities: _Floats, weights: _Floats) -> NewWeights: ...
    def set_new(self, first: int, clears: int, priorities: _Floats, weights: _Floats) -> None: ...
    def draw(
        self,
        n: int,
        rng: np.random.Generator,
        replace: bool,
        stratified: bool,
        as_handles: bool,
        without: _Slots | None = None,
    ) -> tuple[_Slots, NDArray[np.int64], _Floats, float, float]: ...
    @property
    def least(self) -> float: ...
    @property
    def total(self) -> float: ...
    @property
    def largest(self) -> float: ...
    def count(self, n: int) -> int: ...
    @property
    def largest_priority(self) -> float: ...
    def check_draw(self, n: int, replace: bool) -> None: ...
    def get(self, slots: _Slots) -> _Floats: ...
    def indexes(self, slots: _Slots, as_handles: bool) -> NDArray[np.int64]: ...
    given: int
    late: int
    def update(
        self, indexes: NDArray[np.int64], priorities: _Floats, weights: _Floats, as_handles: bool
    ) -> None: ...
    def keep_in(self, notes: _Floats, there: bool, positive: bool) -> None: ...
    def waiting(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]: ...
    def save(self) -> dict[str, Any]: ...
    def restore(self, saved: dict[str, Any], later: bool = False) -> None: ...

def notes_size(ring: Ring) -> int: ...
def sync_together(
    members: list[RowWeights], priority: float = 0.0, weight: float = 0.0
) -> None: ...
def draw_together(
    parts: list[tuple[int, RowWeights]],
    bits: int,
    n: int,
    rng: np.random.Generator,
    stratified: bool,
) -> tuple[_Slots, _Floats, float, float]: ...
def update_together(
    members: dict[int, RowWeights],
    bits: int,
    indexes: NDArray[np.int64],
    priorities: _Floats,
    weights: _Floats,
) -> int: ...
