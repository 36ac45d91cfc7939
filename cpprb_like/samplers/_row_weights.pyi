from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from cpprb_like._core import Beside, Ring
from cpprb_like._segment_tree import MinTree, SumTree
from cpprb_like.samplers._tree_draws import TreeDraws

_Floats: TypeAlias = NDArray[np.float64]

@final
class NewWeights(Beside):
    rows: RowWeights
    priorities: _Floats
    weights: _Floats

@final
class RowWeights(TreeDraws):
    first: float
    def __new__(cls, ring: Ring, tree: SumTree, minima: MinTree, first: float) -> RowWeights: ...
    def sync(self) -> None: ...
    def beside(self, priorities: _Floats, weights: _Floats) -> NewWeights: ...
    def set_new(self, first: int, clears: int, priorities: _Floats, weights: _Floats) -> None: ...
    @property
    def largest_priority(self) -> float: ...
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
def update_together(
    members: dict[int, RowWeights],
    bits: int,
    indexes: NDArray[np.int64],
    priorities: _Floats,
    weights: _Floats,
) -> int: ...
