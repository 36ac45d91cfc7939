"""Casts of values to the declared dtype of a field, by NumPy; a cast that loses meaning is refused.

Rounding to a narrower float is allowed; overflow, fractions and NaN in integers, and cut strings
are errors. Not here: shapes and names (``schema``), and values on the fast path (``column``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cpprb_like._arguments.arrays import Array
from cpprb_like._arguments.foreign_arrays import read_array
from cpprb_like._arguments.narrow_dtypes import bounds, name_of, wide

__all__ = ["as_array", "cast"]


def as_array(value: object, dtype: np.dtype[Any], *, one_item: bool) -> Array:
    """A value as an array of the dtype that NumPy infers; ``dtype`` is the declared one.

    With ``one_item`` a row is a single item. For fields of Python objects a list then has several
    items, and any other value except an array is one item. Raises ``ValueError`` for masked entries
    and ragged values.
    """
    if _is_masked(value):
        raise ValueError("masked entries hold no value")
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    if dtype.kind == "O":
        if one_item:
            return _items(value if isinstance(value, list) else [value], isinstance(value, list))
        return np.array(value, dtype=object)
    if dtype.names is not None:
        return np.array(value, dtype=_with_object_leaves(dtype))
    array = read_array(value)
    if hasattr(value, "__array__") or hasattr(value, "__dlpack__"):
        return array  # the value has a dtype of its own
    if (array.dtype.kind == "f" and dtype.kind in "iu") or array.dtype.kind in "SU":
        return np.array(
            value, dtype=object
        )  # first: NumPy would turn ints into floats, or values into texts
    return array


def cast(array: Array, dtype: np.dtype[Any]) -> Array:
    """The same values in another dtype; the array itself if it has this dtype already.

    Raises ``ValueError`` if a value would change its meaning: it is out of range, not an integer,
    NaN, a string that is too long, or of another kind.
    """
    if array.dtype == dtype:
        return array
    if array.size == 0:  # NumPy makes floats of an empty list
        return np.empty(array.shape, dtype)
    if name_of(array.dtype) is not None:
        array = array.astype(wide(array.dtype))
    if name_of(dtype) is not None:
        return _cast_narrow(cast(array, wide(dtype)), dtype)
    if dtype.names is not None:
        return _cast_structured(array, dtype)
    if dtype.kind == "O":
        return array.astype(object)
    if array.dtype == object:
        array = _from_objects(array, dtype)
    with np.errstate(all="ignore"):
        if dtype.kind in "biufc" and array.dtype.kind in "biufc":
            return _cast_numbers(array, dtype)
        if dtype.kind == array.dtype.kind or (dtype.kind in "SU" and array.dtype.kind in "SU"):
            return _cast_and_compare(array, dtype)
    raise ValueError(f"{array.dtype} values are not of kind {dtype}")


def _is_masked(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_is_masked, value))
    return isinstance(value, np.ma.MaskedArray) and bool(np.ma.is_masked(value))


def _items(values: list[object], several: bool) -> Array:
    array = np.empty(len(values), dtype=object)
    for place, value in enumerate(values):
        array[place] = value
    return array if several else array.reshape(())


def _with_object_leaves(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The structured dtype with the same names, and with Python objects as leaves."""
    if dtype.names is None:
        return np.dtype(object)
    leaves = []
    for name in dtype.names:
        leaf = dtype[name]
        leaves.append((name, _with_object_leaves(leaf.base), leaf.shape))
    return np.dtype(leaves)


def _from_objects(array: Array, dtype: np.dtype[Any]) -> Array:
    """Convert Python objects to an array, before the cast to ``dtype``.

    Integer fields get ``dtype``. Other fields get the dtype that NumPy finds for the objects.
    """
    items = array.ravel().tolist()
    if dtype.kind in "iu":  # one by one: in an array with floats, a wide int would become a float
        integers = np.array([_exact_int(item) for item in items], dtype=object)
        limits = np.iinfo(dtype)
        _require([limits.min <= item <= limits.max for item in integers], integers, dtype)
        return integers.astype(dtype).reshape(array.shape)
    if dtype.kind in "SU" and not all(isinstance(item, (str, bytes)) for item in items):
        raise ValueError("numbers are no texts")
    if dtype.kind in "SU" and any(item[-1:] in ("\0", b"\0") for item in items):
        raise ValueError("NumPy drops the NUL at the end of a text")
    found = np.array(items)
    if found.ndim != 1:
        raise ValueError(f"sequences are not of kind {dtype}")
    if found.dtype != object:
        return found.reshape(array.shape)
    if dtype.kind in "Mm":
        return array.astype(f"{dtype.kind}8[us]")
    if dtype.kind in "biufc" and not any(isinstance(item, (str, bytes)) for item in items):
        number = complex if dtype.kind == "c" else float
        wide = np.longdouble if dtype == np.longdouble else number
        numbers = [wide(item) if isinstance(item, int) else number(item) for item in items]
        return np.array(numbers).reshape(array.shape)
    raise ValueError(f"{sorted({type(item).__name__ for item in items})} are not of kind {dtype}")


def _exact_int(item: Any) -> int:
    if isinstance(item, (int, np.integer)):
        return int(item)
    if isinstance(item, (complex, np.complexfloating)) and item.imag == 0:
        item = item.real
    if isinstance(item, (str, bytes)) or not float(item).is_integer():
        raise ValueError(f"{item!r} is no integer")
    return int(item)


def _cast_numbers(array: Array, dtype: np.dtype[Any]) -> Array:
    if np.can_cast(array.dtype, dtype, "safe"):
        return array.astype(dtype)
    if array.dtype.kind == "c" and dtype.kind != "c":
        _require(array.imag == 0, array, dtype)
        array = array.real
    if dtype.kind == "b":
        _require((array == 0) | (array == 1), array, dtype)
    elif dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if array.dtype.kind == "f":
            array = array.astype(np.promote_types(array.dtype, np.float64))  # exact limits
            in_range = (array >= float(limits.min)) & (array < float(limits.max + 1))
            _require(in_range & (np.trunc(array) == array), array, dtype)
        else:
            _require((array >= limits.min) & (array <= limits.max), array, dtype)
    result: Array = array.astype(dtype)
    if dtype.kind in "fc":
        _require(np.isfinite(result) | ~np.isfinite(array), array, dtype)
    return result


def _cast_narrow(array: Array, dtype: np.dtype[Any]) -> Array:
    """Cast numbers to a narrow dtype from the dtype ``wide(dtype)``."""
    least, most = bounds(dtype)
    if array.dtype.kind != "f":
        _require((array >= least) & (array <= most), array, dtype)
        return array.astype(dtype)
    with np.errstate(all="ignore"):
        result: Array = array.astype(dtype)
        back = result.astype(array.dtype)
        # Some of these dtypes lack infinity, NaN, signs or 0, and store other values instead.
        same = np.where(
            np.isfinite(array),
            np.isfinite(back) & (np.abs(array) <= most),
            (back == array) | (np.isnan(back) & np.isnan(array)),
        )
    _require(same, array, dtype)
    return result


def _cast_and_compare(array: Array, dtype: np.dtype[Any]) -> Array:
    """Cast strings and times; raise unless a cast back gives the same values."""
    if dtype.kind == "V" and array.dtype.itemsize != dtype.itemsize:
        raise ValueError(f"{array.dtype} values are not of kind {dtype}")
    try:
        result: Array = array.astype(dtype)
        back = result.astype(array.dtype)
    except (UnicodeError, TypeError) as error:
        raise ValueError(f"{array.dtype} values are not of kind {dtype}: {error}") from error
    same = back == array
    if dtype.kind in "Mm":
        same |= np.isnat(back) & np.isnat(array)
    _require(same, array, dtype)
    return result


def _cast_structured(array: Array, dtype: np.dtype[Any]) -> Array:
    assert dtype.names is not None
    if array.dtype.names != dtype.names:
        raise ValueError(f"{array.dtype} values are not of kind {dtype}")
    result: Array = np.zeros(array.shape, dtype)
    for name in dtype.names:
        if array[name].shape != result[name].shape:
            raise ValueError(f"{array.dtype} values are not of kind {dtype}")
        result[name] = cast(array[name], dtype[name].base)
    return result


def _require(faithful: Any, array: Array, dtype: np.dtype[Any]) -> None:
    if not np.all(faithful):
        culprit = array[~np.asarray(faithful)].flat[0]
        raise ValueError(f"{dtype} cannot hold {culprit!r} without changing it")
