from typing import final

from typing_extensions import Self

from cpprb_like._rows.slot_set import SlotSet

@final
class IncompleteRows:
    def __new__(cls, lookahead: int, size: int, n_envs: int, out: SlotSet) -> Self: ...
