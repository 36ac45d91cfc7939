from typing import final

from typing_extensions import Self

@final
class Shuffle:
    def __new__(cls, n: int, most: int) -> Self: ...
