from collections.abc import Callable
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from cpprb_like._core import Moment, Ring

HEAD: Final[np.dtype[Any]]

def state_of(state: bytes, kind: str) -> dict[str, Any] | None: ...

@final
class DrawLog:
    write: Callable[[Any], Any]
    def __new__(cls, write: Callable[[Any], Any], rng: np.random.Generator) -> Self: ...
    def state(self, rng: np.random.Generator) -> bytes: ...
    def append(
        self,
        ring: Ring,
        moment: Moment,
        base: int,
        slots: NDArray[np.intp],
        sampler: Any,
        weights: NDArray[Any] | None,
        number: int,
        before: bytes,
        after: bytes,
    ) -> None: ...
    def flush(self) -> None: ...
