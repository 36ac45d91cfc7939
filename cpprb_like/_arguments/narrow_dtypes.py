"""Dtypes of ml_dtypes: bfloat16, floats of 8 bits and less, integers of 4 bits and less.

NumPy describes most of them as bytes: their ``str`` is ``"<V2"`` or so, and only the names differ.
So files store the values as bytes, and the name of the dtype. Not here: casts, which ml_dtypes
does.
"""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any

import numpy as np

__all__ = ["HERE", "bounds", "descr_of", "kind_of", "name_of", "named", "wide"]

PACKAGE = "ml_dtypes"
NAME = re.compile(r"[<>|](bfloat16|float[468]_\w{1,20}|u?int[124])")
HERE = "<" if sys.byteorder == "little" else ">"


def name_of(dtype: np.dtype[Any]) -> str | None:
    """Byte order and name of a dtype, such as ``"<bfloat16"``; None for NumPy's own dtypes."""
    if dtype.isbuiltin != 2 or dtype.type.__module__ != PACKAGE:
        return None
    return (HERE if dtype.itemsize > 1 else "|") + dtype.name


def named(name: str) -> np.dtype[Any] | None:
    """The dtype of ml_dtypes of this name; None for other names.

    Raises ``ImportError`` without ml_dtypes, ``ValueError`` for an unknown dtype or byte order.
    """
    found = NAME.fullmatch(name)
    if found is None:
        return None
    try:
        package = importlib.import_module(PACKAGE)
    except ImportError as error:
        raise ImportError(f"values of {found[1]} need ml_dtypes (pip install ml_dtypes)") from error
    scalar = getattr(package, found[1], None)
    dtype = np.dtype(scalar) if isinstance(scalar, type) else np.dtype(np.void)
    if name_of(dtype) != name:
        raise ValueError(f"ml_dtypes of this machine has no dtype {name!r}")
    return dtype


def kind_of(dtype: np.dtype[Any]) -> str:
    """``dtype.kind``, but ``"V"`` for all dtypes of ml_dtypes, one of which has ``"f"``."""
    return "V" if name_of(dtype) is not None else dtype.kind


def wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """NumPy's dtype that represents all values of a narrow dtype: float64, int8 or uint8."""
    if "float" in dtype.name:
        return np.dtype(np.float64)
    return np.dtype(np.uint8 if dtype.name.startswith("u") else np.int8)


def bounds(dtype: np.dtype[Any]) -> tuple[float, float]:
    """The least and the greatest finite value of a dtype of ml_dtypes."""
    package = importlib.import_module(PACKAGE)
    limits = (package.finfo if "float" in dtype.name else package.iinfo)(dtype)
    return float(limits.min), float(limits.max)


def descr_of(dtype: np.dtype[Any], *, as_bytes: bool = False) -> Any:
    """``numpy.lib.format.dtype_to_descr`` with names of ml_dtypes, or with bytes for them.

    Raises ``TypeError`` for a dtype of another package, which no file can name.
    """
    name = name_of(dtype)
    if name is not None:
        return f"|V{dtype.itemsize}" if as_bytes else name
    if dtype.isbuiltin == 2:
        raise TypeError(f"{dtype} is a dtype of {dtype.type.__module__}, which no file can name")
    found = np.lib.format.dtype_to_descr(dtype)
    if dtype.names is None:
        return found
    return [
        (given, descr_of(dtype[_name(given)].base, as_bytes=as_bytes), *shape)
        if given
        else (given, padding, *shape)
        for given, padding, *shape in found
    ]


def _name(given: Any) -> str:
    """Name of a field of a structured dtype. ``given`` is the name, or (title, name)."""
    return str(given[1] if isinstance(given, tuple) else given)
