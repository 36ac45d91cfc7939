from collections.abc import Callable
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

def shape_for(lines: int) -> tuple[int, int]: ...

class Totals(NamedTuple):
    inserts: int
    samples: int
    rows: int
    inserts_at_work: int
    samples_at_work: int
    balance: float

class Waits(NamedTuple):
    calls: int
    nanoseconds: int
    items: int
    last: int
    rows: int

@final
class Counters:
    memory: Any
    lines: int
    writers: int
    def __new__(
        cls,
        words: NDArray[np.int64],
        writers: int,
        readers: int,
        samples_per_insert: float,
        min_size: float,
        min_diff: float,
        max_diff: float,
    ) -> Self: ...
    def use(self, line: int) -> None: ...
    def set_rows(self, line: int, rows: int) -> None: ...
    def void(self, line: int) -> None: ...
    def renew(self) -> None: ...
    def set_base(self, inserts: int, samples: int, down: int = 0, up: int = 0) -> None: ...
    def settle(self, sample: bool) -> bool: ...
    def totals(self) -> Totals: ...
    def is_busy(self, line: int) -> bool: ...
    def waits(self, line: int, now: int) -> Waits: ...

@final
class Turn:
    n: int
    behind: int
    def __new__(cls, counters: Counters, line: int, n: int) -> Self: ...
    def begin(self, now: int = 0) -> bool: ...
    def wait(self, now: int, wanted: bool) -> None: ...
    def end(self, now: int, held: Callable[[], Any] | None = None) -> None: ...
    def close(self, held: Callable[[], Any] | None = None) -> None: ...
