"""Progress of a save in a thread, of an export, and of an import."""

from __future__ import annotations

from collections.abc import Callable


class CancelledError(RuntimeError):
    """A save was cancelled; the folder has its old state."""


class Progress:
    """Number of bytes that were moved.

    Attributes
    ----------
    done, total : int
        Bytes written or read so far, and the approximate total.
    """

    def __init__(self, on_progress: Callable[[int, int], None] | None = None) -> None:
        if on_progress is not None and not callable(on_progress):
            raise TypeError(f"progress: expected a function or None, got {on_progress!r}")
        self.done = self.total = 0
        self.cancelled = False
        self._on_progress = on_progress

    def __call__(self, nbytes: int) -> None:
        """Add a number of bytes to ``done``; ``CancelledError`` after a cancellation."""
        if self.cancelled:
            raise CancelledError("the save was cancelled; the folder has its old state")
        self.done += nbytes
        if self._on_progress is not None:
            self._on_progress(self.done, self.total)
