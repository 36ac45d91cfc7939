from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from cpprb_like._store.column import Column
from cpprb_like._store.followers import Followers
from cpprb_like.processes._draws import Draws

def attempt(
    group: Followers,
    look: Callable[[dict[int, int]], None],
    check: Callable[[Any, Any, int], None],
    draw: Callable[[int], Any],
    n: int,
    columns: tuple[Column, ...],
    arrays: list[NDArray[Any]] | None,
    named: bool,
    draws: Draws | None,
) -> dict[str, NDArray[Any]] | None: ...
