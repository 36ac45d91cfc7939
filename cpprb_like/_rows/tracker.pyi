from typing import final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

@final
class Tracker:
    capacity: int
    def __new__(cls, capacity: int) -> Self: ...
    def mark(self, slots: NDArray[np.intp]) -> None: ...
    def slots(self) -> NDArray[np.intp]: ...
