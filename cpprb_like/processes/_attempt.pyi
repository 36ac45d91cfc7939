from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._rows.column import Column
from cpprb_like.processes._draws import Draws
from cpprb_like.processes._followers import Followers
from cpprb_like.schedules import Schedule

def attempt(
    group: Followers,
    look: Callable[[list[int]], None],
    choose: Callable[[np.random.Generator, bool, float | Schedule | None, int], Any],
    rng: np.random.Generator,
    replace: bool,
    beta: float | Schedule | None,
    n: int,
    columns: tuple[Column, ...],
    arrays: list[NDArray[Any]] | None,
    named: bool,
    draws: Draws | None,
) -> dict[str, NDArray[Any]] | None: ...
