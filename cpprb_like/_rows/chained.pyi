from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self, disjoint_base

from cpprb_like._rows.column import Column
from cpprb_like._rows.overflow import Overflow

@disjoint_base
class Chain:
    name: str
    nbytes: int
    asides: tuple[Overflow, ...]
    compared: int
    apart: int
    @property
    def overflow_nbytes(self) -> int: ...
    def newest(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]: ...
    def save(self) -> tuple[Any, ...]: ...

def find_values(chain: Chain, base: int, written: int, seen: NDArray[np.bool_]) -> None: ...
def load(chain: Chain, base: int, written: int, saved: tuple[Any, ...]) -> None: ...

@final
class FrameStack(Chain):
    depth: int
    shape: tuple[int, ...]
    axis: int
    def __new__(
        cls,
        name: str,
        nbytes: int,
        capacity: int,
        n_envs: int,
        newest: NDArray[np.uint8],
        shape: tuple[int, ...],
        axis: int,
        frames: NDArray[np.uint8],
        runs: NDArray[np.uint8],
        older: Overflow,
    ) -> Self: ...

@final
class NextOf(Chain):
    def __new__(
        cls,
        name: str,
        nbytes: int,
        capacity: int,
        n_envs: int,
        newest: NDArray[np.uint8],
        source: Column | FrameStack,
        arena: NDArray[np.uint8],
        marks: NDArray[np.uint8],
        whole: Overflow,
        newest_frames: Overflow | None = None,
    ) -> Self: ...
