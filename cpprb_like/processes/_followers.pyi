from collections.abc import Callable
from typing import Any, TypeVar, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from cpprb_like._core import Ring
from cpprb_like._machine.waiting import PATIENCE as PATIENCE
from cpprb_like._rows.rings import Rings
from cpprb_like.processes._followed import FollowedShards

_Found = TypeVar("_Found")

TOO_FAST: str

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
        gone: NDArray[np.int64],
    ) -> Self: ...
    def sync(self) -> int: ...
    @property
    def bound(self) -> int: ...
    @property
    def first(self) -> int: ...
    @property
    def is_behind(self) -> bool: ...
    @property
    def is_busy(self) -> bool: ...
    def leave_out(self, row: int) -> None: ...

@final
class Followers(Rings):
    follows: int
    first_counts: NDArray[np.int64] | None
    priorities_read: bytes | None
    is_settled: bool
    is_uniform: bool
    limits: dict[int, int] | None
    drawn: NDArray[np.intp] | None
    def put(self, number: int, follower: Follower) -> None: ...
    def follow(self) -> list[int]: ...
    def follow_all(self, shards: FollowedShards) -> None: ...
    @property
    def usable_rings(self) -> tuple[tuple[int, Ring], ...]: ...
    def draw_uniform(self, n: int, rng: np.random.Generator, replace: bool) -> NDArray[np.intp]: ...
    def draw_passing_over(
        self, n: int, rng: np.random.Generator, replace: bool
    ) -> NDArray[np.intp]: ...
    def draw_each(
        self,
        counts: list[int],
        draw: Callable[[int, int], NDArray[np.intp]],
        n: int,
        rng: np.random.Generator,
        replace: bool = True,
    ) -> NDArray[np.intp]: ...
    def without_row(self, handles: NDArray[np.int64]) -> NDArray[np.intp]: ...
    def counts(self) -> dict[str, float]: ...
    def __len__(self) -> int: ...
    def present_slots(self) -> NDArray[np.intp]: ...
    @property
    def stored(self) -> int: ...

def consistently(
    group: Followers,
    shards: FollowedShards,
    attempt: Callable[[], tuple[NDArray[np.intp], _Found] | None] | tuple[Any, ...],
) -> tuple[NDArray[np.intp], _Found]: ...
