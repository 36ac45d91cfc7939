from typing import final

import numpy as np
from numpy.typing import NDArray

@final
class Tracker:
    capacity: int
    def __init__(self, capacity: int) -> None: ...
    def slots(self) -> NDArray[np.intp]: ...
