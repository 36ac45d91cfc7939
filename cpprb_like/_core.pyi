from collections.abc import Callable, Iterable
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self, disjoint_base

from cpprb_like._rows.chained import Chain
from cpprb_like._rows.column import Column
from cpprb_like._rows.edits import Tracker, Undo
from cpprb_like._rows.item_ring import ItemRing

N_STATE_WORDS: Final[int]
WORD_WRITTEN: Final[int]
WORD_ABSENT_ROWS: Final[int]
WORD_CLEARED: Final[int]
WORD_CLEARS: Final[int]
WORD_EDITS: Final[int]
WORD_HANDLE_BASE: Final[int]
WORD_RESERVED: Final[int]
WORD_EPISODES: Final[int]
FLAG_TERMINATED: Final[int]
FLAG_TRUNCATED: Final[int]
FLAG_END: Final[int]
FLAG_ABSENT: Final[int]
STOPS: Final[dict[str, int]]

@final
class Moment:
    written: int
    clears: int
    edits: int

@final
class Ring:
    capacity: int
    size: int
    span: int
    n_envs: int
    columns: tuple[Column, ...]
    stored_columns: tuple[Column, ...]
    chains: tuple[Chain, ...]
    items: tuple[ItemRing, ...]
    lookahead: int
    row_nbytes: int
    def __new__(
        cls,
        columns: Iterable[Column],
        arena: NDArray[np.uint8],
        state: NDArray[np.int64],
        record: tuple[int, int, int],
        ends: Iterable[tuple[int, int, int, int]],
        *,
        capacity: int,
        n_envs: int,
        chains: Iterable[Chain] = (),
        items: Iterable[ItemRing] = (),
        lookahead: int = 0,
        undo: Undo | None = None,
        frozen: str | None = None,
        flags: NDArray[np.uint8] | None = None,
    ) -> Self: ...
    left_before: int
    rereads: int
    @property
    def written(self) -> int: ...
    @property
    def stored(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def cleared(self) -> int: ...
    @property
    def clears(self) -> int: ...
    @property
    def handle_base(self) -> int: ...
    @property
    def absent(self) -> int: ...
    @property
    def first(self) -> int: ...
    @property
    def stop(self) -> int: ...
    @property
    def index_nbytes(self) -> int: ...
    def __len__(self) -> int: ...
    def episode_len(self, stream: int) -> int: ...
    def flags(self) -> NDArray[np.uint8]: ...
    def flags_at(self, slots: NDArray[np.intp]) -> NDArray[np.uint8]: ...
    def absent_at(self, slots: NDArray[np.intp]) -> NDArray[np.bool_]: ...
    def present_slots(self) -> NDArray[np.intp]: ...
    def newest_slots(self, n: int) -> NDArray[np.intp]: ...
    def now(self) -> Moment: ...
    def is_now(self, moment: Moment) -> bool: ...
    def holds(self, moment: Moment, slots: NDArray[np.intp]) -> bool: ...
    def windows(
        self,
        slots: NDArray[np.intp],
        before: int,
        after: int,
        *,
        starts: str | None = None,
        repeat: bool = True,
    ) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.uint8]]: ...
    def row_ids(self, slots: NDArray[np.intp]) -> NDArray[np.int64]: ...

@disjoint_base
class DerivedState:
    ring: Ring

@disjoint_base
class Beside:
    ring: Ring | None
    n: int
    def __init__(self, n: int, publish: Callable[[int, int], object]) -> None: ...

def keep_to_header(ring: Ring, header: NDArray[np.int64]) -> None: ...
def entries_of(ring: Ring, entry: Column) -> NDArray[Any]: ...
def rebuild(ring: Ring) -> None: ...
def tell_followers(ring: Ring, changes: NDArray[np.int64], gone: NDArray[np.int64]) -> None: ...
def stop_at(place: str | None, signal: int, visits: int = 1) -> None: ...
def track(ring: Ring, trackers: tuple[Tracker, ...]) -> None: ...
