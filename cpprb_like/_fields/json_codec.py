"""JSON <-> frozen dataclasses and dtypes: the one codec of every file of this package.

The annotations of a dataclass decide which JSON is valid, so a new word of a file is one line of a
dataclass. Every value that is read is checked; ``DamagedError`` names the place of the first wrong
one. Not here: which dataclasses a file holds (``saved_layout``, ``checkpoint._state``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import types
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from cpprb_like._arguments.narrow_dtypes import descr_of, named
from cpprb_like.errors import DamagedError

__all__ = ["MOST", "dtype_from_json", "dtype_to_json", "from_json", "number", "to_json"]

MOST = 1 << 61  # of every number: sums of several have room in 64 bits
DEEPEST = 60  # levels of a structured dtype
PLAIN = re.compile(r"[<>|=][?a-zA-Z]\d{0,10}(?:\[\w{1,12}\])?")  # NumPy would parse much more
OBJECT = "object"  # dtype of Python objects


def to_json(value: Any) -> Any:
    """The JSON of a dataclass, a dtype, or a container of them; other values stay as they are."""
    if dataclasses.is_dataclass(value):
        return {one.name: to_json(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, np.dtype):
        return OBJECT if value.hasobject else dtype_to_json(value)
    if isinstance(value, (list, tuple)):
        return [to_json(entry) for entry in value]
    if isinstance(value, dict):
        return {key: to_json(entry) for key, entry in value.items()}
    return value


def from_json(kind: Any, saved: Any, path: str = "") -> Any:
    """The value of type ``kind`` that some JSON at ``path`` of a file stands for.

    A kind is a frozen dataclass, ``numpy.dtype``, int, float, bool, str, ``Any``, or a ``tuple``,
    ``dict``, ``Literal`` or union of these. Integers are 0 to ``MOST``. Raises ``DamagedError`` for
    JSON of another form.
    """
    if kind is Any:
        return saved
    if kind is int:
        return number(path, saved)
    if kind is float:
        is_finite = type(saved) is float and math.isfinite(saved)
        return saved if is_finite else _refuse(path, "a finite float", saved)
    if kind in (bool, str):
        return saved if type(saved) is kind else _refuse(path, f"a {kind.__name__}", saved)
    if np.dtype in (kind, get_origin(kind)):
        return np.dtype(object) if saved == OBJECT else dtype_from_json(saved)
    if dataclasses.is_dataclass(kind):
        return _record(kind, saved, path)
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _union(inner, saved, path)
    if origin is Literal or kind is type(None):
        known = inner if origin is Literal else (None,)
        is_known = any(type(saved) is type(one) and saved == one for one in known)
        return saved if is_known else _refuse(path, f"one of {list(known)}", saved)
    if origin is dict:
        if type(saved) is not dict:
            _refuse(path, "an object", saved)
        return {key: from_json(inner[1], entry, _at(path, key)) for key, entry in saved.items()}
    if origin is not tuple:
        raise TypeError(f"{kind} has no JSON")
    many = inner[-1] is Ellipsis
    if type(saved) is not list or (not many and len(saved) != len(inner)):
        _refuse(path, "a list" if many else f"a list of {len(inner)}", saved)
    kinds = inner[:1] * len(saved) if many else inner
    entries = enumerate(zip(kinds, saved, strict=True))
    return tuple(from_json(one, entry, f"{path}[{k}]") for k, (one, entry) in entries)


def _record(kind: Any, saved: Any, path: str) -> Any:
    """A dataclass, of an object with a key for each of its fields."""
    kinds = _kinds(kind)
    if type(saved) is not dict or saved.keys() != kinds.keys():
        _refuse(path, f"an object with {list(kinds)}", saved)
    return kind(**{name: from_json(kinds[name], saved[name], _at(path, name)) for name in kinds})


@cache
def _kinds(kind: Any) -> dict[str, Any]:
    """The types of the fields of a dataclass, by name."""
    hints = get_type_hints(kind)
    return {one.name: hints[one.name] for one in dataclasses.fields(kind)}


def _union(kinds: tuple[Any, ...], saved: Any, path: str) -> Any:
    for kind in kinds[:-1]:  # no error is stored: its traceback would hold the caller's frames
        with contextlib.suppress(DamagedError):
            return from_json(kind, saved, path)
    return from_json(kinds[-1], saved, path)


def _at(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def number(path: str, value: Any, least: int = 0, most: int = MOST) -> int:
    """The number itself; ``DamagedError`` unless it is an integer in this range."""
    if type(value) is not int or not least <= value <= most:
        _refuse(path, f"a number from {least} to {most}", value)
    return int(value)


def _refuse(path: str, expected: str, value: Any) -> Any:
    try:
        got = repr(value)
    except RecursionError:  # the parser of JSON goes a few levels deeper
        got = f"a {type(value).__name__}, nested too deeply"
    got = got if len(got) < 100 else f"{got[:100]}..."
    raise DamagedError(f"{path}: expected {expected}, got {got}")


# ---------------------------------------------------------------------- dtypes


def dtype_to_json(dtype: np.dtype[Any]) -> Any:
    """A dtype as NumPy's format describes it, with lists in place of tuples."""
    return to_json(descr_of(dtype))


def dtype_from_json(descr: Any) -> np.dtype[Any]:
    """The dtype; ``DamagedError`` if there is none, or it holds Python objects.

    ``ImportError`` for a dtype of ml_dtypes where that is not installed.
    """
    try:
        dtype = np.lib.format.descr_to_dtype(_tuples(descr))
    except (AttributeError, LookupError, SyntaxError, TypeError, ValueError) as error:
        raise DamagedError(f"dtype: {error}") from None
    if dtype.hasobject:
        raise DamagedError(f"dtype: {descr!r}")
    return dtype


def _tuples(descr: Any, depth: int = 0) -> Any:
    """A description with tuples where NumPy expects them: JSON has lists."""
    if depth > DEEPEST:
        raise DamagedError("dtype: nested too deeply")
    if isinstance(descr, str) and not PLAIN.fullmatch(descr):
        narrow = named(descr)
        if narrow is None:
            raise DamagedError(f"dtype: {descr!r}")
        return narrow.name
    if isinstance(descr, list) and descr and all(isinstance(entry, list) for entry in descr):
        return [_field(entry, depth) for entry in descr]
    if isinstance(descr, list):
        return tuple(_tuples(entry, depth + 1) for entry in descr)
    return descr


def _field(entry: list[Any], depth: int) -> tuple[Any, ...]:
    name, inner, *shape = entry
    title = tuple(name) if isinstance(name, list) else name
    return (title, _tuples(inner, depth + 1), *(tuple(lengths) for lengths in shape))
