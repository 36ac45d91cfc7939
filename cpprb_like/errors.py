"""Exceptions of our own, beside Python's ``TypeError``, ``ValueError`` and ``IndexError``."""

__all__ = ["NotEnoughDataError"]


class NotEnoughDataError(ValueError, RuntimeError):
    """The buffer holds too few rows for what was asked.

    It derives from the classes that older replay buffers raise here, so that their callers'
    ``except`` clauses work.
    """
