from collections.abc import Callable
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from cpprb_like._core import Ring
from cpprb_like._rows.column import Column
from cpprb_like._rows.rings import Rings
from cpprb_like.buffers._entry import SampleOptions
from cpprb_like.processes._draws import Draws

def read_header(state: NDArray[np.int64]) -> NDArray[np.int64] | None: ...

@final
class Follower:
    ring: Ring
    def __new__(
        cls,
        ring: Ring,
        state: NDArray[np.int64],
        flags: NDArray[np.uint8],
        changes: NDArray[np.int64],
        reopen: Callable[[int, int, int], None],
    ) -> Self: ...
    @property
    def reopen(self) -> Callable[[int, int, int], None]: ...
    def sync(self) -> int: ...
    @property
    def written(self) -> int: ...
    @property
    def bound(self) -> int: ...
    @property
    def first(self) -> int: ...
    @property
    def is_busy(self) -> bool: ...
    def leave_out(self, row: int) -> None: ...

@final
class Followers(Rings):
    def put(self, number: int, follower: Follower) -> None: ...
    def follow(self) -> list[int]: ...
    def leave_out(self, number: int) -> None: ...
    @property
    def usable_rings(self) -> list[tuple[int, Ring]]: ...
    def __len__(self) -> int: ...
    @property
    def stored(self) -> int: ...

def attempt(
    group: Followers,
    follow: Callable[[], None] | None,
    look: Callable[[list[int]], None],
    choose: Callable[[np.random.Generator, SampleOptions, int], Any],
    rng: np.random.Generator,
    options: SampleOptions,
    n: int,
    columns: tuple[Column, ...],
    take: Callable[..., dict[str, NDArray[Any]]] | None,
    arrays: list[NDArray[Any]] | None,
    draws: Draws | None,
) -> dict[str, NDArray[Any]] | None: ...
