"""Checks of arguments: integers, discount factors, paths; and warnings of the caller.

Not here: numbers that may be a schedule (``schedules``), values of fields (``_fields.casting``).
"""

from __future__ import annotations

import math
import numbers
import operator
import os
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # one slash: ``Path`` drops the second


def as_int(name: str, value: object, least: float = -math.inf, most: float = math.inf) -> int:
    """``value`` as an int from ``least`` to ``most``; else ``TypeError`` or ``ValueError``."""
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name}: expected an integer, got {value!r}")
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # raises without an index
    except TypeError:
        raise TypeError(f"{name}: expected an integer, got {value!r}") from None
    if number < least:
        raise ValueError(f"{name}: expected at least {least}, got {number}")
    if number > most:
        raise ValueError(f"{name}: expected at most {most}, got {number}")
    return number


def as_whole(name: str, value: object, least: float = -math.inf) -> int:
    """As ``as_int``; a float of integral value, such as ``1e6``, counts as its integer."""
    is_whole = isinstance(value, (float, np.floating)) and float(value).is_integer()
    return as_int(name, int(value) if is_whole else value, least)  # type: ignore[call-overload]


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn the caller of the package."""
    level, frame = 1, sys._getframe()
    ours = "cpprb_like", "contextlib"  # context managers add frames of contextlib
    while frame.f_back is not None and frame.f_globals["__name__"].startswith(ours):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def as_path(name: str, value: str | os.PathLike[str], suffix: str = "") -> Path:
    """An absolute path of this machine, which names the same file after ``os.chdir``.

    ``suffix`` is appended to its last name.
    ``TypeError`` for anything else, ``ValueError`` for a URL.
    """
    try:
        text = os.fsdecode(value)
    except TypeError:
        raise TypeError(f"{name}: expected a path, got {value!r}") from None
    if URL.match(text):  # or a folder of this name would be made
        raise ValueError(f"{name}: expected a path of this machine, got the URL {text!r}")
    return Path(f"{Path(text)}{suffix}").absolute()


def as_ints(name: str, values: NDArray[Any]) -> NDArray[np.int64]:
    """An array of floats as integers; ``TypeError`` if one of them is not a whole number."""
    sound = (np.trunc(values) == values) & (np.abs(values) < 2.0**63)
    if not sound.all():
        raise TypeError(f"{name}: expected integers, got {values[~sound].flat[0]}")
    return values.astype(np.int64)


def as_discount(name: str, gamma: object) -> float:
    """A discount factor: a number from 0 to 1."""
    if isinstance(gamma, (bool, np.bool_)) or not isinstance(gamma, numbers.Real):
        raise TypeError(f"{name}: expected a number, got {gamma!r}")
    number: Any = gamma  # may be an int that is too large for a float
    if not 0.0 <= number <= 1.0:
        raise ValueError(f"{name}: expected 0 to 1, got {gamma}")
    return float(gamma)


def expect(sound: bool, what: str, expected: object, got: object) -> None:
    """Raise ``AssertionError`` that names ``what``, unless ``sound``."""
    if not sound:
        raise AssertionError(f"{what}: expected {expected}, got {got}")
