from threading import RLock
from typing import Any

from numpy.typing import ArrayLike
from typing_extensions import disjoint_base

from cpprb_like._core import Ring

@disjoint_base
class BufferBase:
    ring: Ring
    _gate: RLock
    _paused: bool
    def _attach(self, ring: Ring, gate: RLock) -> None: ...
    def add_where(self, present: ArrayLike, /, **fields: Any) -> int: ...

def fast_add(self: BufferBase, /, **fields: Any) -> int: ...
