"""A contender: a system that is measured, and what it can do.

Its module says for each operation how the work is done::

    cpprb = Contender("cpprb", "Its ReplayBuffer with the same fields and dtypes.")

    @cpprb.does("sample")
    def sample(kind: str, rows: int, n: int) -> Work:
        ...

An operation makes everything ready and returns the work; of sizes that are no times it returns the
number. What ``cases`` asks for is done, or has a reason in ``cannot``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Protocol, TypeVar

from measure import Work

__all__ = ["IMPORTS_MORE", "MEASURED_SMALL", "Cannot", "Contender", "Operation", "Shelf"]


# PyTorch, JAX or Numba alone take longer to import than both that are compared.
IMPORTS_MORE = "its import alone takes several times as long"
# Of gigabytes the disk is measured, and not the library.
MEASURED_SMALL = "its files are measured with small steps; these are compared with copying a file"


class Operation(Protocol):
    """Makes ready what a case measures: parameters are those of the case."""

    def __call__(self, **parameters: Any) -> Work | float:
        """The work, or a number that is no time."""
        ...


Function = TypeVar("Function", bound=Callable[..., Any])
Made = TypeVar("Made")


def _one_of(function: Callable[..., tuple[Work, ...]], place: int, **parameters: Any) -> Work:
    return function(**parameters)[place]


class Cannot(Exception):  # noqa: N818 (no error: the table has a dash, and this is its reason)
    """A contender cannot do what was asked; the message says why."""


class Contender:
    """A system, its operations, and why it lacks others."""

    def __init__(self, name: str, how: str) -> None:
        self.name = name
        self.how = how  # it is used, and why so
        self.operations: dict[str, Operation] = {}
        self.reasons: dict[str, str] = {}

    def does(self, operation: str) -> Callable[[Function], Function]:
        """The decorated function does this operation."""

        def register(function: Function) -> Function:
            self.operations[operation] = function
            return function

        return register

    def does_all(self, *operations: str) -> Callable[[Function], Function]:
        """The decorated function makes works of several operations ready, of which one is used."""

        def register(function: Function) -> Function:
            for place, operation in enumerate(operations):
                self.operations[operation] = partial(_one_of, function, place)
            return function

        return register

    def cannot(self, operations: str, why: str) -> None:
        """These operations, separated by spaces, cannot be done."""
        self.reasons |= dict.fromkeys(operations.split(), why)

    def prepare(self, operation: str, parameters: dict[str, Any]) -> Work | float:
        """Make an operation ready. Raises Cannot where there is none."""
        if operation not in self.operations:
            raise Cannot(self.reasons.get(operation, "no such operation"))
        return self.operations[operation](**parameters)


class Shelf:
    """What a system keeps from one case to the next, as making it takes longer than measuring.

    It holds one thing: the one before is dropped first, so memory never holds two of them.
    """

    def __init__(self) -> None:
        self._key: Hashable = None
        self._thing: Any = None

    def get(self, make: Callable[..., Made], *arguments: Hashable) -> Made:
        """What ``make`` returns for these arguments: what the shelf holds, or made anew."""
        key = make, arguments
        if key != self._key:
            self.clear()
            self._thing, self._key = make(*arguments), key
        thing: Made = self._thing
        return thing

    def clear(self) -> None:
        """Hold nothing."""
        self._key = self._thing = None
