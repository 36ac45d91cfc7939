"""What our fronts stand for: the rules of other systems, written plainly, as a contender.

A front and the original's rule have the same steps and, where the calls are the same, do the same
statement.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from contender import Contender

__all__ = ["original", "side_by_side"]

Function = TypeVar("Function", bound=Callable[..., Any])

original = Contender(
    "original",
    "The rule of the system that a front stands for, in NumPy and Python as it has it.",
)


def side_by_side(operation: str, *contenders: Contender) -> Callable[[Function], Function]:
    """Each contender does the decorated function, given its place among them."""

    def register(function: Function) -> Function:
        for place, contender in enumerate(contenders):
            contender.does(operation)(partial(function, place))
        return function

    return register
