from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from cpprb_like._core import Ring

_Slots: TypeAlias = NDArray[np.intp]

@final
class EpisodeIndex:
    ring: Ring
    def __new__(cls, ring: Ring) -> EpisodeIndex: ...
    @property
    def nbytes(self) -> int: ...
    def __len__(self) -> int: ...
    def version(self) -> tuple[int, ...]: ...
    def slots(self, number: int) -> tuple[_Slots, int]: ...
    def complete(self, numbers: _Slots) -> NDArray[np.bool_]: ...
    def describe(
        self, with_slots: bool
    ) -> tuple[
        NDArray[np.int64],
        NDArray[np.int64],
        NDArray[np.uint8],
        NDArray[np.bool_],
        _Slots | None,
    ]: ...
    def hide(self, number: int) -> int | None: ...
