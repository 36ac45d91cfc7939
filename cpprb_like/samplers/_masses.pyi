from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from cpprb_like._core import Ring
from cpprb_like._segment_tree import SumTree
from cpprb_like.samplers._row_weights import RowWeights
from cpprb_like.samplers._tree_draws import TreeDraws

_Slots: TypeAlias = NDArray[np.intp]
_Moment: TypeAlias = tuple[int, int, int, int, int, bool]

@final
class Masses(TreeDraws):
    weights: RowWeights | None
    n_rows: int
    @property
    def cuts_only(self) -> bool: ...
    def __new__(cls, ring: Ring, tree: SumTree, weights: RowWeights | None) -> Self: ...
    def stale(self) -> tuple[_Slots, _Slots, _Moment] | None: ...
    def put(self, slots: _Slots, masses: NDArray[np.float64], moment: _Moment | None) -> bool: ...
    def forget(self) -> None: ...
    def at(self, slots: _Slots) -> NDArray[np.float64]: ...

def put_by_value(
    trees: list[Masses],
    known: NDArray[np.int8],
    of_rows: NDArray[np.int8],
    bits: int,
    ring: int,
    slots: _Slots,
    masses: NDArray[np.float64],
    lost: _Slots,
    moment: _Moment | None,
) -> None: ...
def members_of(nexts: _Slots, leaders: _Slots, k: int) -> _Slots: ...
