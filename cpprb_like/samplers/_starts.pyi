from typing import Final, NoReturn, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from cpprb_like._core import DerivedState
from cpprb_like._rows.episode_index import EpisodeIndex
from cpprb_like.samplers._rows import Rows
from cpprb_like.samplers._tree_draws import TreeDraws

FUTURE: Final[int]
FINAL: Final[int]
EPISODE: Final[int]
RANDOM: Final[int]

def choose_rows(
    index: EpisodeIndex, slots: NDArray[np.intp], rng: np.random.Generator, strategy: int
) -> NDArray[np.intp]: ...
def choose(n: int, among: int, rng: np.random.Generator) -> NDArray[np.intp]: ...

@final
class Starts(DerivedState):
    rows: int
    least: int
    across: bool
    stride: int
    before: int
    def __new__(
        cls,
        index: EpisodeIndex,
        *,
        rows: int,
        least: int,
        across: bool,
        stride: int,
        before: int = 0,
    ) -> Self: ...
    @property
    def nbytes(self) -> int: ...
    def tell(self, slots: NDArray[np.intp]) -> NDArray[np.int8]: ...
    @property
    def count(self) -> int: ...
    def slots(self) -> NDArray[np.intp]: ...
    def over(self, rows: TreeDraws) -> TreeDraws: ...
    def parts(
        self, rows: TreeDraws, n: int, rng: np.random.Generator
    ) -> list[tuple[Rows, TreeDraws, int, float]]: ...
    def draw_parts(
        self, rows: TreeDraws, n: int, rng: np.random.Generator, stratified: bool
    ) -> None: ...
    def is_exact(self, rows: TreeDraws) -> bool: ...
    @property
    def cuts_only(self) -> bool: ...
    def corrected(
        self, rows: TreeDraws, slots: NDArray[np.intp], weights: NDArray[np.float64]
    ) -> NDArray[np.float64]: ...
    def weigh(self, rows: TreeDraws) -> float: ...
    def draw(self, n: int, rng: np.random.Generator) -> NDArray[np.intp]: ...
    def draw_distinct(self, n: int, rng: np.random.Generator) -> NDArray[np.intp]: ...
    def refuse(self, distinct: int | None = None) -> NoReturn: ...

def draw_starts(
    parts: list[tuple[int, Starts]], bits: int, n: int, rng: np.random.Generator
) -> NDArray[np.intp] | None: ...
def distinct_of(starts: Rows, n: int, rng: np.random.Generator) -> NDArray[np.intp]: ...
