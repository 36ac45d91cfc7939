"""What was promised of a case, as a question to its results."""

from __future__ import annotations

from dataclasses import dataclass

OURS = "cpprb_like"
FLOOR = "floor"  # the same work in C, or a call that does nothing; of a cliff, the usual work
PLAIN = "cpprb_like, uniform"  # our own buffer without what the case is about
CALL = "cpprb_like, no rows"  # our own call for a batch without rows
HAND = "NumPy by hand"  # a draw that a program without a buffer writes: arrays, indexed
BEFORE = "before: "  # begins the names of contenders of another checkout

Numbers = dict[str, float]  # of those that did the case: seconds, or whatever its unit is


def is_peer(name: str) -> bool:
    """A contender that is another system."""
    return name.removeprefix(BEFORE) not in (OURS, FLOOR, PLAIN, CALL, HAND)


class Budget:
    """A promise; ``str()`` of it is for people."""

    def bound(self, numbers: Numbers) -> float | None:
        """What ours takes at most; None where the numbers that it speaks of are not there."""
        raise NotImplementedError

    def held(self, numbers: Numbers) -> bool | None:
        """Whether the numbers hold it; None where those that it speaks of are not there."""
        bound = self.bound(numbers)
        return None if bound is None or OURS not in numbers else numbers[OURS] <= bound


@dataclass(frozen=True)
class AtMost(Budget):
    """Ours takes so many times what another takes, and what a third takes, at most."""

    times: float
    than: str = FLOOR
    plus: str | None = None

    def bound(self, numbers: Numbers) -> float | None:
        """So many times the number of the other, and the number of the third."""
        if self.than not in numbers or self.plus not in (None, *numbers):
            return None
        return self.times * numbers[self.than] + (0 if self.plus is None else numbers[self.plus])

    def __str__(self) -> str:
        plus = f" + {self.plus}" if self.plus else ""
        return f"<= {self.times:g} x {self.than}{plus}"


@dataclass(frozen=True)
class Above(Budget):
    """Ours takes no more than another and so many seconds."""

    seconds: float
    than: str = FLOOR

    def bound(self, numbers: Numbers) -> float | None:
        """The number of the other, and the seconds."""
        return numbers[self.than] + self.seconds if self.than in numbers else None

    def __str__(self) -> str:
        return f"<= {self.than} + {1e6 * self.seconds:g} us"


@dataclass(frozen=True)
class Ahead(Budget):
    """Ours is so many times ahead of another, or of the best of all peers."""

    times: float = 1.0
    than: str | None = None

    def bound(self, numbers: Numbers) -> float | None:
        """The least number of the others, divided."""
        those = [name for name in numbers if is_peer(name) and self.than in (None, name)]
        return min(numbers[name] for name in those) / self.times if those else None

    def __str__(self) -> str:
        whom = self.than or "every peer"
        return (
            f"not slower than {whom}" if self.times == 1 else f">= {self.times:g} x ahead of {whom}"
        )


@dataclass(frozen=True)
class Limit(Budget):
    """Ours takes no more than this, in the unit of the case."""

    most: float

    def bound(self, numbers: Numbers) -> float:
        """The same, whatever others take."""
        del numbers
        return self.most

    def __str__(self) -> str:
        return f"<= {self.most:g}"
