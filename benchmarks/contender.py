"""A contender: a system that is measured, and its operations.

Its module says for each operation how the work is done::

    theirs = Peer("cpprb", "Its ReplayBuffer with the same fields and dtypes.")

    def filled(rows: int, kind: str = "small") -> Any: ...
    def drawing(rb: Any, n: int = 256) -> Work: ...

    theirs.works_on(filled, sample=drawing)

An operation returns work that is ready, or a number that is no time. Each operation of ``cases``
is done or has a reason in ``cannot``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from inspect import signature
from typing import Any, TypeVar

from measure import Work

# Of a peer that does not do these operations. PyTorch, JAX or Numba take longer to import than both
# programs that the first case compares; with gigabytes the disk is measured, and not the library.
OF_MOST_PEERS = {
    "first_batch_time": "its import alone takes several times as long",
    "save_large load_large save_again": (
        "its files are measured with small steps; these are compared with copying a file"
    ),
    "record": "it does not remember the observation before a step; the caller passes it",
    "item_add_graph item_add_answer item_packed item_padded item_memory": (
        "it has no values of any length"
    ),
}

Function = TypeVar("Function", bound=Callable[..., Any])
Made = TypeVar("Made")


class Cannot(Exception):  # noqa: N818 (it is an answer and not an error)
    """A contender lacks an operation; the message says why."""


class Shelf:
    """The one object that a system holds from case to case, as making it outlasts measuring.

    The former object is dropped before the next is made, so memory never holds both.
    """

    def __init__(self) -> None:
        self._key: Hashable = None
        self._thing: Any = None

    def get(self, make: Callable[..., Made], *arguments: Hashable) -> Made:
        """The object that ``make`` returns for these arguments, new if need be."""
        key = make, arguments
        if key != self._key:
            self.clear()
            self._thing, self._key = make(*arguments), key
        thing: Made = self._thing
        return thing

    def clear(self) -> None:
        """Hold nothing."""
        self._key = self._thing = None


class Contender:
    """A system, its operations, and the reasons for those that it lacks."""

    def __init__(self, name: str, how: str, shelf: Shelf | None = None) -> None:
        self.name = name
        self.how = how  # use of the system, and the reason for it
        self.shelf = shelf or Shelf()
        self.operations: dict[str, Callable[..., Work | float]] = {}
        self.reasons: dict[str, str] = {}

    def does(self, operation: str) -> Callable[[Function], Function]:
        """The decorated function does this operation."""

        def register(function: Function) -> Function:
            self.operations[operation] = function
            self.reasons.pop(operation, None)
            return function

        return register

    def works_on(self, make: Callable[..., Any], **works: Callable[..., Work | float]) -> None:
        """Operations on the object that ``make`` returns, which the shelf holds.

        Both functions get those parameters of the case that they name; ``works`` get the object
        first.
        """
        for operation, work in works.items():
            self.does(operation)(self._on_held(make, work))

    def _on_held(
        self, make: Callable[..., Any], work: Callable[..., Work | float]
    ) -> Callable[..., Work | float]:
        def operation(**parameters: Any) -> Work | float:
            made = self.shelf.get(make, *named(make, parameters).values())
            return work(made, **named(work, parameters))

        return operation

    def cannot(self, operations: str, why: str) -> None:
        """These operations, separated by spaces, cannot be done."""
        self.reasons |= dict.fromkeys(operations.split(), why)

    def prepare(self, operation: str, parameters: dict[str, Any]) -> Work | float:
        """The work of an operation. Raises Cannot where there is none."""
        if operation not in self.operations:
            raise Cannot(self.reasons.get(operation, "no such operation"))
        return self.operations[operation](**parameters)


class Peer(Contender):
    """Another system. What most of them lack has its reason until the module does it."""

    def __init__(self, name: str, how: str) -> None:
        super().__init__(name, how)
        for operations, why in OF_MOST_PEERS.items():
            self.cannot(operations, why)


def named(function: Callable[..., Any], parameters: dict[str, Any]) -> dict[str, Any]:
    """The parameters that a function names, in its order."""
    names = signature(function).parameters
    return {name: parameters[name] for name in names if name in parameters}
