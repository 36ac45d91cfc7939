from collections.abc import Iterable
from typing import Final, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from cpprb_like._chain import Chain
from cpprb_like._column import Column

N_STATE_WORDS: Final[int]
FLAG_TERMINATED: Final[int]
FLAG_TRUNCATED: Final[int]
FLAG_DONE: Final[int]
FLAG_END: Final[int]
FLAG_ABSENT: Final[int]

@final
class Moment:
    written: int
    clears: int
    edits: int

@final
class Ring:
    capacity: int
    n_envs: int
    columns: tuple[Column, ...]
    stored_columns: tuple[Column, ...]
    chains: tuple[Chain, ...]
    ahead: int
    row_nbytes: int
    def __new__(
        cls,
        columns: Iterable[Column],
        arena: NDArray[np.uint8],
        state: NDArray[np.int64],
        record: tuple[int, int],
        ends: Iterable[tuple[int, int, int]],
        *,
        capacity: int,
        n_envs: int,
        chains: Iterable[Chain] = (),
        ahead: int = 0,
    ) -> Self: ...
    @property
    def written(self) -> int: ...
    @property
    def stored(self) -> int: ...
    @property
    def revision(self) -> int: ...
    @property
    def absent(self) -> int: ...
    def __len__(self) -> int: ...
    def end_episode(self, stream: int) -> None: ...
    def hide(self, slots: NDArray[np.intp], moment: Moment) -> bool: ...
    def episode_len(self, stream: int) -> int: ...
    def clear(self) -> None: ...
    def flags(self) -> NDArray[np.uint8]: ...
    def flags_at(self, slots: NDArray[np.intp]) -> NDArray[np.uint8]: ...
    def absent_at(self, slots: NDArray[np.intp]) -> NDArray[np.bool_]: ...
    def present_slots(self) -> NDArray[np.intp]: ...
    def newest_slots(self, n: int) -> NDArray[np.intp]: ...
    def now(self) -> Moment: ...
    def is_now(self, moment: Moment) -> bool: ...
    def holds(self, moment: Moment, slots: NDArray[np.intp]) -> bool: ...
    def row_ids(self, slots: NDArray[np.intp]) -> NDArray[np.int64]: ...
