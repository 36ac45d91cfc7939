from typing import final

@final
class AbsentRuns:
    def __new__(cls, capacity: int, n_envs: int) -> AbsentRuns: ...
    @property
    def nbytes(self) -> int: ...
