"""JSON <-> frozen dataclasses and dtypes: the one codec of every file of this package.

The annotations of a dataclass decide which JSON is valid, so a new key of a file is one line of a
dataclass. An attribute whose metadata has ``left_out`` is not written while it has its default, so
files that do not need it stay as they were. Every value that is read is checked; ``DamagedError``
names the place of the first wrong value. Not here: the dataclasses of each file
(``checkpoint._saved_layout``, ``checkpoint._state``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
import types
from collections.abc import Callable
from functools import cache, lru_cache, partial
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from cpprb_like._arguments.narrow_dtypes import descr_of, named
from cpprb_like.errors import DamagedError

__all__ = ["MOST", "dtype_from_json", "dtype_to_json", "from_json", "number", "to_json"]

MOST = 1 << 61  # greatest number: sums of several fit into 64 bits
DEEPEST = 60  # most levels of a structured dtype or a saved object
PLAIN = re.compile(r"[<>|=][?a-zA-Z]\d{0,10}(?:\[\w{1,12}\])?")  # np.dtype accepts more strings
OBJECT = "object"  # stands for the dtype of Python objects

Reader = Callable[[Any, str], Any]


def to_json(value: Any) -> Any:
    """The JSON of a dataclass, a dtype, or a container of them; other values stay as they are."""
    kind = type(value)
    if kind in (bool, float, int, str):
        return value
    if kind in (list, tuple):
        return [to_json(entry) for entry in value]
    if kind is dict:
        return {key: to_json(entry) for key, entry in value.items()}
    if isinstance(value, np.dtype):
        return OBJECT if value.hasobject else dtype_to_json(value)
    if dataclasses.is_dataclass(kind):
        left_out = _left_out(kind)
        values = {name: getattr(value, name) for name in _readers(kind)}
        return {
            name: to_json(one)
            for name, one in values.items()
            if name not in left_out or one != left_out[name]
        }
    return value


def from_json(kind: Any, saved: Any, path: str = "") -> Any:
    """Read a value of type ``kind`` from the JSON at ``path`` in a file.

    A kind is a frozen dataclass, ``numpy.dtype``, int, float, bool, str, ``Any``, or a ``tuple``,
    ``dict``, ``Literal`` or union of these. Integers are 0 to ``MOST``. Raises ``DamagedError`` for
    JSON of another form.
    """
    return _reader(kind)(saved, path)


@cache
def _reader(kind: Any) -> Reader:
    """Function of JSON, and of its path in the file, that reads a value of type ``kind``."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda saved, _: saved
    if kind is int:
        return lambda saved, path: number(path, saved)
    if kind is float or kind in (bool, str):
        return partial(_plain, kind)
    if np.dtype in (kind, origin):
        return lambda saved, _: np.dtype(object) if saved == OBJECT else dtype_from_json(saved)
    if dataclasses.is_dataclass(kind):
        record: Any = kind
        return partial(_record, record, _readers(record), _left_out(record))
    if origin in (Union, types.UnionType):
        none_first = sorted(inner, key=lambda one: one is not type(None))
        return partial(_union, [_reader(one) for one in none_first])
    if origin is Literal or kind is type(None):
        return partial(_one_of, inner if origin is Literal else (None,))
    if origin is dict:
        return partial(_dict, _reader(inner[1]))
    if origin is not tuple:
        raise TypeError(f"{kind} has no JSON")
    if inner[-1] is Ellipsis:
        return partial(_list, _reader(inner[0]))
    return partial(_tuple, [_reader(one) for one in inner])


@cache
def _readers(kind: Any) -> dict[str, Reader]:
    """The readers of the fields of a dataclass, by name."""
    hints = get_type_hints(kind)
    return {one.name: _reader(hints[one.name]) for one in dataclasses.fields(kind)}


@cache
def _left_out(kind: Any) -> dict[str, Any]:
    """The defaults of the attributes that JSON leaves out, by name."""
    return {one.name: one.default for one in dataclasses.fields(kind) if "left_out" in one.metadata}


def _plain(kind: Any, saved: Any, path: str) -> Any:
    if type(saved) is not kind or (kind is float and not math.isfinite(saved)):
        _refuse(path, "a finite float" if kind is float else f"a {kind.__name__}", saved)
    return saved


def _record(
    kind: Any, readers: dict[str, Reader], left_out: dict[str, Any], saved: Any, path: str
) -> Any:
    """Read a dataclass from a JSON object with a key for each field."""
    if type(saved) is not dict or saved.keys() | left_out.keys() != readers.keys():
        _refuse(path, f"an object with {[name for name in readers if name not in left_out]}", saved)
    return kind(**{name: readers[name](one, _at(path, name)) for name, one in saved.items()})


def _union(readers: list[Reader], saved: Any, path: str) -> Any:
    for read in readers[:-1]:  # a stored error would keep frames alive
        with contextlib.suppress(DamagedError):
            return read(saved, path)
    return readers[-1](saved, path)


def _one_of(known: tuple[Any, ...], saved: Any, path: str) -> Any:
    is_known = any(type(saved) is type(one) and saved == one for one in known)
    return saved if is_known else _refuse(path, f"one of {list(known)}", saved)


def _dict(read: Reader, saved: Any, path: str) -> Any:
    if type(saved) is not dict:
        _refuse(path, "an object", saved)
    return {key: read(entry, _at(path, key)) for key, entry in saved.items()}


def _list(read: Reader, saved: Any, path: str) -> Any:
    if type(saved) is not list:
        _refuse(path, "a list", saved)
    return tuple([read(entry, f"{path}[{k}]") for k, entry in enumerate(saved)])


def _tuple(readers: list[Reader], saved: Any, path: str) -> Any:
    if type(saved) is not list or len(saved) != len(readers):
        _refuse(path, f"a list of {len(readers)}", saved)
    entries = enumerate(zip(readers, saved, strict=True))
    return tuple(read(entry, f"{path}[{k}]") for k, (read, entry) in entries)


def _at(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def number(path: str, value: Any, least: int = 0, most: int = MOST) -> int:
    """Return the number; ``DamagedError`` unless it is an integer from ``least`` to ``most``."""
    if type(value) is not int or not least <= value <= most:
        _refuse(path, f"a number from {least} to {most}", value)
    return int(value)


def _refuse(path: str, expected: str, value: Any) -> Any:
    try:
        got = repr(value)
    except RecursionError:  # the parser of JSON allows more levels
        got = f"a {type(value).__name__}, nested too deeply"
    got = got if len(got) < 100 else f"{got[:100]}..."
    raise DamagedError(f"{path}: expected {expected}, got {got}")


# ---------------------------------------------------------------------- dtypes


@lru_cache(256)
def dtype_to_json(dtype: np.dtype[Any]) -> Any:
    """A dtype as NumPy's format describes it, with lists in place of tuples."""
    return to_json(descr_of(dtype))


def dtype_from_json(descr: Any) -> np.dtype[Any]:
    """Read a dtype; ``DamagedError`` if the JSON is no dtype, or a dtype with Python objects.

    Raises ``ImportError`` for a dtype of ml_dtypes if ml_dtypes is not installed.
    """
    try:
        return _parsed(json.dumps(descr))
    except RecursionError:
        raise DamagedError("dtype: nested too deeply") from None


@lru_cache(256)
def _parsed(text: str) -> np.dtype[Any]:
    """The dtype of a description as JSON; cached, as files use few dtypes."""
    descr = json.loads(text)
    try:
        dtype = np.lib.format.descr_to_dtype(_tuples(descr))
    except (AttributeError, LookupError, SyntaxError, TypeError, ValueError) as error:
        raise DamagedError(f"dtype: {error}") from None
    if dtype.hasobject:
        raise DamagedError(f"dtype: {descr!r}")
    return dtype


def _tuples(descr: Any, depth: int = 0) -> Any:
    """A description with tuples for NumPy in place of the lists of JSON."""
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
