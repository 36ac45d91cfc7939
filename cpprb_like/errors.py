"""Exceptions of this package, besides ``TypeError``, ``ValueError`` and ``IndexError``."""

__all__ = [
    "DamagedError",
    "DataLossWarning",
    "FieldNameError",
    "NotEnoughDataError",
    "RateLimitTimeoutError",
]


class DamagedError(ValueError):
    """A file is missing, or is not what was written."""


class DataLossWarning(UserWarning):
    """A data set cannot hold some values of a buffer, or a buffer some values of a data set.

    The message says which values are lost, and how many. With ``strict=True`` a ``ValueError`` is
    raised instead, before anything is written.
    """


class NotEnoughDataError(ValueError, RuntimeError):
    """The buffer holds too few rows for this draw.

    It is a ``ValueError`` and a ``RuntimeError``, which other replay buffers raise here, so that
    their callers' ``except`` clauses work.
    """


class RateLimitTimeoutError(TimeoutError):
    """A rate limiter did not allow a call within its time-out.

    The message says how long it waited and for whom, and what is there. Nothing was added or drawn.
    """


class FieldNameError(TypeError, KeyError):
    """A field is missing or unknown.

    It is a ``TypeError``, as for any call with wrong names, and a ``KeyError``, as in cpprb.
    """

    def __str__(self) -> str:
        """The message itself; ``KeyError`` would put the message into quotes."""
        return str(self.args[0]) if self.args else ""
