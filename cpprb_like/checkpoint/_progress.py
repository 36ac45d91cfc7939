"""Progress of a save or a load: reported to a function, or shown by a bar of tqdm."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["CancelledError", "Progress", "Tell", "shown"]

SHOWN_NBYTES = 1 << 28  # less takes no time that anybody would want to see pass

Tell = Callable[[int, int], None] | bool | None


class CancelledError(RuntimeError):
    """A save was cancelled; the folder has its old state."""


class Progress:
    """How far a save or a load is.

    Attributes
    ----------
    done, total : int
        Bytes that were written or read so far, and about how many there will be.
    """

    def __init__(self, tell: Callable[[int, int], None] | None = None) -> None:
        self.done = 0
        self.total = 0
        self.cancelled = False
        self._tell = tell

    def __call__(self, nbytes: int) -> None:
        """So many bytes more. Raises ``CancelledError`` if it is to end."""
        if self.cancelled:
            raise CancelledError("the save was cancelled; the folder has its old state")
        self.done += nbytes
        if self._tell is not None:
            self._tell(self.done, self.total)


@contextlib.contextmanager
def shown(progress: Tell) -> Iterator[Callable[[int, int], None] | None]:
    """Receiver of the progress: the caller's function, a bar, or None."""
    if callable(progress):
        yield progress
        return
    wanted = sys.stderr.isatty() if progress is None else progress
    if not wanted:
        yield None
        return
    try:
        from tqdm import tqdm  # noqa: PLC0415 (optional)
    except ImportError:
        if progress:
            raise ImportError("progress=True shows a bar of tqdm: pip install tqdm") from None
        yield None
        return
    bar: Any = None

    def tell(done: int, total: int) -> None:
        nonlocal bar
        if bar is None and (progress or total >= SHOWN_NBYTES):
            bar = tqdm(total=total, unit="B", unit_scale=True)
        if bar is not None:
            bar.update(done - bar.n)

    try:
        yield tell
    finally:
        if bar is not None:
            bar.close()
