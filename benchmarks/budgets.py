"""What was promised of a case, as a question to its results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = [
    "BEFORE",
    "FLOOR",
    "OURS",
    "PLAIN",
    "Ahead",
    "AtMost",
    "Budget",
    "Limit",
    "Numbers",
    "is_peer",
]

OURS = "cpprb_like"
FLOOR = "floor"  # the same work in C, or a call that does nothing; of a cliff, the usual work
PLAIN = "cpprb_like, uniform"  # our own buffer without what the case is about
BEFORE = "before: "  # begins the names of contenders of another checkout

Numbers = dict[str, float]  # of those that did the case: seconds, or whatever its unit is


def is_peer(name: str) -> bool:
    """A contender that is another system."""
    return name.removeprefix(BEFORE) not in (OURS, FLOOR, PLAIN)


class Budget(Protocol):
    """A promise; ``str()`` of it is for people."""

    def held(self, numbers: Numbers) -> bool | None:
        """Whether the numbers hold it; None where those that it speaks of are not there."""
        ...


@dataclass(frozen=True)
class AtMost:
    """Ours takes so many times what another takes, and some seconds, at most."""

    times: float
    than: str = FLOOR
    plus: float = 0.0

    def held(self, numbers: Numbers) -> bool | None:
        """Whether it does."""
        if OURS not in numbers or self.than not in numbers:
            return None
        return numbers[OURS] <= self.times * numbers[self.than] + self.plus

    def __str__(self) -> str:
        plus = f" + {1e6 * self.plus:g} us" if self.plus else ""
        return f"<= {self.times:g} x {self.than}{plus}"


@dataclass(frozen=True)
class Ahead:
    """Ours is so many times ahead of another, or of the best of all peers."""

    times: float = 1.0
    than: str | None = None

    def held(self, numbers: Numbers) -> bool | None:
        """Whether it is."""
        others = [number for name, number in numbers.items() if is_peer(name)]
        if self.than is not None:
            others = [numbers[self.than]] if self.than in numbers else []
        if OURS not in numbers or not others:
            return None
        return numbers[OURS] * self.times <= min(others)

    def __str__(self) -> str:
        whom = self.than or "every peer"
        return (
            f"not slower than {whom}" if self.times == 1 else f">= {self.times:g} x ahead of {whom}"
        )


@dataclass(frozen=True)
class Limit:
    """Ours takes no more than this, in the unit of the case."""

    most: float

    def held(self, numbers: Numbers) -> bool | None:
        """Whether it does."""
        return numbers[OURS] <= self.most if OURS in numbers else None

    def __str__(self) -> str:
        return f"<= {self.most:g}"
