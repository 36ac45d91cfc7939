"""The frame axis of a frame stack: inferred from its shape, and checked against the stacks.

Batches are right with any axis; but with the wrong one no stack is the previous one shifted, and
each is stored whole. Not here: how frames are stored (``chained``).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from cpprb_like._store.chained import COMPARED_STACKS, FrameStack

__all__ = ["AxisCheck", "likely_axis"]

PLAUSIBLE = range(2, 17)  # frames of a stack, where there is another axis that may have them
COLOURS = 3  # values of a pixel


def likely_axis(shape: tuple[int, ...]) -> int:
    """The axis of the frames of a stack, by its shape, which has a length: the last or the first.

    Gymnasium has the frames first, as in ``(4, 84, 84)``, and most others last, as in
    ``(84, 84, 4)``. It is the first axis if that has a plausible number of frames and the last one
    has not, or has the colours of a pixel.
    """
    first, last = shape[0], shape[-1]
    if first not in PLAUSIBLE or len(shape) == 1:
        return len(shape) - 1
    has_colours = len(shape) > COLOURS and last == COLOURS != first
    return 0 if last not in PLAUSIBLE or has_colours else len(shape) - 1


class AxisCheck:
    """Reads rows, and warns once of each frame stack whose axis of frames seems to be wrong.

    Parameters
    ----------
    read : callable
        What reads the rows.
    stacks : iterable of FrameStack
        The stacks of the ring.
    """

    def __init__(self, read: Callable[..., Any], stacks: Iterable[FrameStack]) -> None:
        self._read = read
        self._open = list(stacks)  # of which too few rows came so far

    def __call__(self, *arguments: Any) -> Any:
        """Read rows."""
        if self._open:
            self._look()
        return self._read(*arguments)

    def _look(self) -> None:
        settled = [stack for stack in self._open if stack.compared >= COMPARED_STACKS]
        self._open = [stack for stack in self._open if stack not in settled]
        for stack in settled:
            if stack.follows[stack.axis] == 0:
                warnings.warn(_complaint(stack), UserWarning, stacklevel=_level_of_caller())


def _complaint(stack: FrameStack) -> str:
    depth = stack.shape[stack.axis]
    others = [axis for axis, count in enumerate(stack.follows) if count > 0]
    found = (
        f"along axis {others[0]} they are: give it, as in stack_compress={{{stack.name!r}: "
        f"{others[0]}}}"
        if others
        else "nor are they along another axis: without stack_compress the field takes no more"
    )
    return (
        f"stack_compress: field {stack.name!r} of shape {stack.shape}: none of the first "
        f"{stack.compared} stacks is the one before it moved on by a frame along axis "
        f"{stack.axis}, which has {depth}, so each is stored whole; {found}"
    )


def _level_of_caller() -> int:
    """How far above ``_look`` the caller of the package is."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("cpprb_like."):
        level, frame = level + 1, frame.f_back
    return level
