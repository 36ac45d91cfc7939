from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import disjoint_base

from cpprb_like._core import DerivedState
from cpprb_like._segment_tree import SumTree

_Floats: TypeAlias = NDArray[np.float64]
_Slots: TypeAlias = NDArray[np.intp]

@disjoint_base
class TreeDraws(DerivedState):
    tree: SumTree
    drawn: int
    def draw(
        self,
        n: int,
        rng: np.random.Generator,
        replace: bool,
        stratified: bool,
        as_handles: bool,
        without: _Slots | None = None,
    ) -> tuple[_Slots, NDArray[np.int64], _Floats, float, float]: ...
    def draw_parts(
        self,
        trees: list[TreeDraws],
        ends: list[int],
        n: int,
        rng: np.random.Generator,
        stratified: bool,
    ) -> tuple[_Slots, _Floats, _Floats] | None: ...
    @property
    def least(self) -> float: ...
    @property
    def total(self) -> float: ...
    @property
    def largest(self) -> float: ...
    def count(self, n: int) -> int: ...
    def check_draw(self, n: int, replace: bool) -> None: ...
    def get(self, slots: _Slots) -> _Floats: ...
    def indexes(self, slots: _Slots, as_handles: bool) -> NDArray[np.int64]: ...

def cut(n: int, ends: list[int], number: float) -> list[int]: ...
def draw_together(
    parts: Sequence[tuple[int, TreeDraws]],
    bits: int,
    n: int,
    rng: np.random.Generator,
    stratified: bool,
) -> tuple[_Slots, _Floats, float, float]: ...
