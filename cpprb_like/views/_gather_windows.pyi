from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from cpprb_like._core import Ring
from cpprb_like._rows.column import Column
from cpprb_like._rows.rings import Rings
from cpprb_like.samplers._starts import Starts

COPIED_AT_ONCE: int

def take_stacks(
    ring: Ring | Rings,
    column: Column,
    slots: NDArray[np.intp],
    axis: int,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]: ...
def places_at(
    rows: NDArray[np.intp],
    counts: NDArray[np.intp],
    before: int,
    offsets: NDArray[np.intp],
    steps: NDArray[np.intp] | None,
    repeats: bool,
) -> tuple[NDArray[np.intp], NDArray[np.bool_]]: ...
def take_sequences(
    parts: list[tuple[Starts, NDArray[np.intp], NDArray[np.intp] | None]],
    n: int,
    single: frozenset[str],
    columns: tuple[Column, ...] | None = None,
    arrays: dict[str, NDArray[Any]] | None = None,
    located: bool = False,
) -> tuple[dict[str, NDArray[Any]], NDArray[np.bool_], NDArray[np.int64] | None] | None: ...

@final
class Sequences: ...
