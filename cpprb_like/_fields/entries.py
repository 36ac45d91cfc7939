"""Values of ragged fields in a call of ``add`` or ``update``: items, and their number in each row.

A value is one row, several rows, or a block of time steps. Not here: casts (``casting``), fields of
fixed shape (``schema``), and the memory of the items (``_rows.item_ring``).
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Array
from cpprb_like._arguments.foreign_arrays import read_array
from cpprb_like._arguments.foreign_lists import (
    arrow_lists,
    is_arrow,
    is_nested,
    jagged_axis,
    list_levels,
    without_nulls,
)
from cpprb_like._fields.axes import Axis
from cpprb_like._fields.casting import as_array, cast
from cpprb_like._fields.field import Field

__all__ = ["Entries", "check_counts", "check_ranges", "read_entries"]

INT64 = np.dtype(np.int64)


class Entries(NamedTuple):
    """The items of rows, row after row, and the number of items of each row."""

    values: Array  # (total, *item_shape), C-contiguous; may share memory with the given value
    counts: NDArray[np.int64]  # (rows,)

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays."""
        return self.values.nbytes + self.counts.nbytes

    def rows(self, start: int, stop: int) -> Entries:
        """The entries of some rows, without a copy of the values."""
        first, counts = int(self.counts[:start].sum()), self.counts[start:stop]
        return Entries(self.values[first : first + int(counts.sum())], counts)


def read_entries(field: Field, value: object, n_envs: int) -> Entries:
    """Read the value of a ragged field, of declared shape such as ``("N", 11)``.

    Parameters
    ----------
    field
        The field.
    value
        With one environment one row, or several. With several environments one row of each, or a
        block of time steps, each with one row of each environment. The forms are:

        - One row: an array, a tensor, or lists of numbers, of the declared number of axes, with any
          length at the named one. ``[]`` and arrays of shape ``(0,)`` are a row without items.
        - Several rows: a list of rows, an array of objects that holds rows, an array with one axis
          more (rows of equal lengths), a nested tensor of PyTorch, lists of Arrow, or a tuple
          ``(values, offsets)`` of two arrays, where row ``k`` has the items from ``offsets[k]`` to
          ``offsets[k + 1]``.
        - A block: a list of steps, each of them several rows; or an array with two axes more.

        A tuple of two arrays is always ``(values, offsets)`` if the first has the axes of a row,
        and the second one axis. So two rows of a field of one axis come in a list. The meaning
        follows from the numbers of axes, never from values.

        A text is a str. Several are a list or an array, and a block is a list of those.

        ``Entries`` were read before, in another process, and stay as they are.
    n_envs
        Number of environments.

    Returns
    -------
    Entries
        Values of the field's dtype. Rows of a block are in the order of time, then of environments.

    Raises
    ------
    ValueError
        The value has no such form, or the dtype cannot represent it. The message names the field.
    """
    if isinstance(value, Entries):
        return value
    try:
        return _read_texts(value, n_envs) if field.is_text else _read(field, value, n_envs)
    except MemoryError:
        raise
    except Exception as error:
        row = "a str" if field.is_text else f"{field.dtype} of shape {field.declared_shape}"
        forms = f"{row}, or a list of such rows"
        if n_envs > 1:
            forms = f"{n_envs} rows, one for each environment, each {row}; or a list of such steps"
        detail = f": {error}" if str(error) else ""
        raise ValueError(
            f"field {field.name!r}: expected {forms}, got {_description(value)}{detail}"
        ) from error


def check_counts(
    entries: Mapping[str, Entries], axes: Sequence[Axis]
) -> dict[str, NDArray[np.int64]]:
    """The number of items of each row, by axis; ``ValueError`` if fields of one axis disagree.

    ``entries`` are by field. An axis without any of these fields is left out.
    """
    found: dict[str, NDArray[np.int64]] = {}
    for axis in axes:
        names = [name for name in axis.fields if name in entries]
        for name in names:
            counts = entries[name].counts
            first = found.setdefault(axis.name, counts)
            if len(counts) != len(first):
                raise ValueError(
                    f"fields disagree on the number of steps: {names[0]!r} has {len(first)}, "
                    f"{name!r} has {len(counts)}"
                )
            if not np.array_equal(counts, first):
                row = int(np.flatnonzero(counts != first)[0])
                raise ValueError(
                    f"fields of axis {axis.name!r} disagree on the number of items: in row {row} "
                    f"{names[0]!r} has {first[row]}, {name!r} has {counts[row]}"
                )
    return found


def check_ranges(field: Field, entries: Entries, counts_of_axis: NDArray[np.int64]) -> None:
    """Raise ``ValueError`` unless the values of each row number its items of axis ``field.counts``.

    ``counts_of_axis`` has the number of these items in each row. The first axis of the values is
    that of ``entries.counts``.
    """
    values, counts = entries
    limits = np.repeat(counts_of_axis, counts).reshape(-1, *[1] * (values.ndim - 1))
    # A negative number becomes greater than any limit.
    outside = values.astype(np.uint64) >= limits.astype(np.uint64)
    if outside.any():
        item = int(np.argwhere(outside)[0][0])
        row = int(np.searchsorted(np.cumsum(counts), item, side="right"))
        n = int(counts_of_axis[row])
        expected = f"values of 0 to {n - 1}" if n else "no values"
        raise ValueError(
            f"field {field.name!r}: expected {expected}, as row {row} has {n} items of axis "
            f"{field.counts!r}, got {values[outside][0]}"
        )


def _read(field: Field, value: Any, n_envs: int) -> Entries:
    """``read_entries`` of numbers; its exceptions do not name the field."""
    if is_nested(value):
        return _read_nested(field, value, n_envs)
    if list_levels(value):
        return _read_arrow(field, value, n_envs)
    if _is_packed(field, value):
        return _read_packed(field, value[0], value[1], n_envs)
    plain = _as_plain(field, value)
    if isinstance(plain, np.ndarray):
        return _read_dense(field, plain, n_envs)
    lead = _lead(field, plain, n_envs)
    if lead == 2:
        return _read_steps(field, plain, n_envs)
    rows = [plain] if lead == 0 else plain
    _check_rows(len(rows), n_envs)
    return _join(field, rows)


def _as_plain(field: Field, value: Any) -> Array | Sequence[Any]:
    """A value as an array of numbers, or as a list or tuple."""
    if isinstance(value, (list, tuple)):
        return value
    if type(value) is np.ndarray and value.dtype != object:
        return value
    read = without_nulls(value) if is_arrow(value) else value
    array = as_array(read, field.dtype, one_item=False)
    if array.dtype == object and array.ndim and array.size:
        return list(array.tolist())
    return array


def _check_rows(n: int, n_envs: int) -> None:
    if n_envs > 1 and n != n_envs:
        raise ValueError(f"it has {n} rows")


def _without_axis(field: Field, shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape[: field.axis_at] + shape[field.axis_at + 1 :]


def _is_empty_row(field: Field, shape: tuple[int, ...]) -> bool:
    """Whether a shape is ``(0,)``, or that of a row without items, or of its first axes.

    NumPy cannot know the further axes of an empty list.
    """
    return shape == (0,) or (len(shape) > field.axis_at and shape == field.shape[: len(shape)])


# ------------------------------------------------------------------ rows of equal length


def _read_dense(field: Field, array: Array, n_envs: int) -> Entries:
    """One row, or an array of several, or of steps."""
    shape, lead = array.shape, array.ndim - len(field.shape)
    is_whole = lead >= 0 and _without_axis(field, shape[lead:]) == field.item_shape
    if not is_whole and n_envs == 1 and _is_empty_row(field, shape):
        return _join(field, [array])
    if not is_whole or not (
        (lead == 0 and n_envs == 1)
        or (lead == 1 and n_envs in (1, shape[0]))
        or (lead == 2 and n_envs == shape[1])
    ):
        raise ValueError
    n, count = math.prod(shape[:lead]), shape[lead + field.axis_at]
    if field.axis_at:
        array = np.moveaxis(array, lead + field.axis_at, lead)
    items = array.reshape(n * count, *field.item_shape)
    values = np.ascontiguousarray(cast(items, field.dtype))
    return Entries(values, np.full(n, count, np.int64))


# ------------------------------------------------------------------ lists


def _lead(field: Field, value: Sequence[Any], n_envs: int) -> int:
    """Number of axes of nested lists before those of a row: 0 for one row, 1 for several, or 2.

    The first value decides. Lists without values have the fewest such axes that fit.
    """
    depth, is_known = _depth(field, value)
    for lead in range(int(n_envs > 1), 3):
        if depth - len(field.shape) == lead if is_known else _fits(field, value, lead):
            return lead
    raise ValueError(_wrong_axes(field, depth, n_envs))


def _wrong_axes(field: Field, depth: int, n_envs: int) -> str:
    least = len(field.shape) + int(n_envs > 1)
    return f"expected {least} to {len(field.shape) + 2} axes, got {depth}"


def _depth(field: Field, value: Any) -> tuple[int, bool]:
    """Number of axes of a value, and true; where it has no values the least number, and false."""
    if isinstance(value, np.ndarray) and value.dtype == object and value.ndim and value.size:
        value = value.tolist()
    if is_nested(value) or _is_packed(field, value):
        return len(field.shape) + 1, True
    if list_levels(value):
        return list_levels(value) + 1, True
    if not isinstance(value, (list, tuple)):
        shape = _shape(value)
        return len(shape), 0 not in shape
    least = 0
    for item in value:
        depth, is_known = _depth(field, item)
        if is_known:
            return depth + 1, True
        least = max(least, depth)
    return least + 1, False


def _fits(field: Field, value: Any, lead: int) -> bool:
    """Whether lists and arrays without values are rows without items, behind ``lead`` axes."""
    if isinstance(value, np.ndarray) and value.dtype == object and value.ndim:
        value = list(value)
    if lead and isinstance(value, (list, tuple)):
        return all(_fits(field, item, lead - 1) for item in value)
    shape = _shape(value)
    return len(shape) > lead and _is_empty_row(field, shape[lead:])


def _shape(value: Any) -> tuple[int, ...]:
    """Shape of an array, a tensor or a scalar, or of lists without values."""
    if isinstance(value, (list, tuple)):
        return (len(value), *(_shape(value[0]) if value else ()))
    return read_array(value).shape if _ndim(value) is None else tuple(value.shape)


def _read_steps(field: Field, steps: Sequence[Any], n_envs: int) -> Entries:
    """A block: each step has one row of each environment."""
    found = []
    for place, step in enumerate(steps):
        try:
            entries = _read(field, step, n_envs)
            if len(entries.counts) != n_envs:
                raise ValueError(f"it has {len(entries.counts)} rows")
        except ValueError as error:
            raise ValueError(f"step {place}, {_description(step)}: {error}") from error
        found.append(entries)
    values, counts = zip(*found, strict=True)
    return Entries(np.concatenate(values), np.concatenate(counts))


def _join(field: Field, rows: Sequence[Any]) -> Entries:
    """Rows of different lengths."""
    kinds = set(map(type, rows))
    if len(field.shape) == 1 and len(rows) > 1 and kinds <= {list, tuple}:
        with contextlib.suppress(ValueError):  # below the error says which row it is
            return _join_lists(field, rows)
    order = (field.axis_at, *(axis for axis in range(len(field.shape)) if axis != field.axis_at))
    if kinds == {np.ndarray} and _are_alike(field, rows):
        rows = [row.transpose(order) for row in rows] if field.axis_at else rows
    else:
        rows = [_as_row(field, row, place).transpose(order) for place, row in enumerate(rows)]
    counts = np.fromiter(map(len, rows), np.int64, len(rows))
    shape = (int(counts.sum()), *field.item_shape)
    rows = [row for row in rows if row.size]
    if len({row.dtype for row in rows}) > 1:  # NumPy's common dtype may change values
        rows = [cast(row, field.dtype) for row in rows]
    if not rows:
        return Entries(np.empty(shape, field.dtype), counts)
    # With ``out`` the values are in C order, whatever the order of the rows.
    values = np.concatenate(rows, out=np.empty(shape, rows[0].dtype)) if rows[1:] else rows[0]
    return Entries(np.ascontiguousarray(cast(values, field.dtype)), counts)


def _join_lists(field: Field, rows: Sequence[Any]) -> Entries:
    """Rows of one axis as lists. One conversion of 256 takes a fifth of the time of 256."""
    counts = np.fromiter(map(len, rows), np.int64, len(rows))
    values = as_array([*itertools.chain.from_iterable(rows)], field.dtype, one_item=False)
    if values.ndim != 1:
        raise ValueError
    return Entries(cast(values, field.dtype), counts)


def _are_alike(field: Field, rows: Sequence[Array]) -> bool:
    """Whether arrays have the shape of a row, and one dtype, so that none needs reading."""
    dtype = rows[0].dtype
    kinds = {(row.dtype, row.ndim, _without_axis(field, row.shape)) for row in rows}
    return kinds == {(dtype, len(field.shape), field.item_shape)} and dtype.kind != "O"


def _as_row(field: Field, value: Any, place: int) -> Array:
    """One row in the dtype that it came with."""
    array = _as_plain(field, value)
    if not isinstance(array, np.ndarray):
        try:
            array = as_array(array, field.dtype, one_item=False)
        except ValueError as error:
            raise ValueError(f"row {place}: {error}") from error
    if array.size == 0 and _is_empty_row(field, array.shape):
        return np.empty(field.shape, field.dtype)
    is_whole = array.ndim == len(field.shape)
    if not is_whole or _without_axis(field, array.shape) != field.item_shape:
        raise ValueError(f"row {place} is {_description(array if array.ndim else value)}")
    return array


# ------------------------------------------------------------------ values and offsets


def _ndim(value: Any) -> int | None:
    """Number of axes of an array or tensor; None for other values."""
    if not (hasattr(value, "__array__") or hasattr(value, "__dlpack__")):
        return None
    ndim = getattr(value, "ndim", None)
    return ndim if isinstance(ndim, int) else None


def _is_packed(field: Field, value: Any) -> bool:
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    return (_ndim(value[0]), _ndim(value[1])) == (len(field.shape), 1)


def _read_packed(field: Field, values: Any, offsets: Any, n_envs: int) -> Entries:
    """Values with the axis in its place, and where along it each row begins and the last ends."""
    items = np.moveaxis(_as_row(field, values, 0), field.axis_at, 0)
    ends = as_array(offsets, INT64, one_item=False)
    counts = np.diff(cast(ends, INT64)) if ends.dtype.kind in "iu" and len(ends) else None
    if counts is None or ends[0] != 0 or ends[-1] != len(items) or np.any(counts < 0):
        raise ValueError(
            "a tuple of two arrays is (values, offsets): expected integer offsets that start at "
            f"0, never descend and end at {len(items)}, got {_description(ends)}; two rows come "
            "in a list"
        )
    _check_rows(len(counts), n_envs)
    return Entries(np.ascontiguousarray(cast(items, field.dtype)), counts)


def _read_nested(field: Field, tensor: Any, n_envs: int) -> Entries:
    axis = jagged_axis(tensor)
    if axis is None:
        return _read(field, list(tensor.unbind()), n_envs)
    if axis != field.axis_at + 1:
        raise ValueError(f"its lengths differ along axis {axis}")
    return _read_packed(field, tensor.values(), tensor.offsets(), n_envs)


def _read_arrow(field: Field, array: Any, n_envs: int) -> Entries:
    """Lists of Arrow, in as many levels as a row has axes, or in one less or more."""
    rank, lead = len(field.shape), list_levels(array) + 1 - len(field.shape)
    if not int(n_envs > 1) <= lead <= 2:
        raise ValueError(_wrong_axes(field, rank + lead, n_envs))
    flat, lengths = arrow_lists(array)
    numbers = cast(as_array(flat, field.dtype, one_item=False), field.dtype)
    if lead == 0:
        lengths.insert(0, np.array([len(array)], np.int64))
    if lead == 2 and np.any(lengths.pop(0) != n_envs):
        raise ValueError(f"expected {n_envs} rows in each step")
    n = len(lengths[0])
    _check_rows(n, n_envs if lead == 1 else 1)
    lists = math.prod(field.shape[: field.axis_at])  # of a row, at the level of the axis
    counts = lengths[field.axis_at][::lists].copy()
    for axis, of_level in enumerate(lengths):
        expected: Any = field.shape[axis]
        if axis == field.axis_at:
            expected = np.repeat(counts, lists)
        if np.any(of_level != expected):
            raise ValueError(f"its lists differ from the declared length of axis {axis}")
    if field.axis_at == 0:
        return Entries(numbers.reshape(counts.sum(), *field.item_shape), counts)
    shape = [-1 if axis == field.axis_at else length for axis, length in enumerate(field.shape)]
    parts = np.split(numbers, np.cumsum(counts) * math.prod(field.item_shape))[:-1]
    return _join(field, [part.reshape(shape) for part in parts])


# ------------------------------------------------------------------ texts


def _read_texts(value: Any, n_envs: int) -> Entries:
    """A str, several, or steps of several; their items are the bytes of UTF-8."""
    texts = _as_texts(value)
    if texts == [] and getattr(value, "shape", ()) == (0, n_envs):
        return Entries(np.empty(0, np.uint8), np.empty(0, np.int64))
    if not isinstance(texts, (list, tuple)):
        if n_envs > 1:
            raise ValueError
        texts = [texts]
    texts = [_as_texts(text) for text in texts]
    if texts and all(isinstance(step, (list, tuple)) for step in texts):
        if any(len(step) != n_envs for step in texts):
            raise ValueError(f"expected {n_envs} rows in each step")
        texts = [text for step in texts for text in step]
    else:
        _check_rows(len(texts), n_envs)
    encoded = []
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            how = "; bytes.decode makes a str of it" if isinstance(text, bytes) else ""
            raise ValueError(f"row {place} is {type(text).__name__}{how}")
        encoded.append(text.encode())
    counts = np.fromiter(map(len, encoded), np.int64, len(encoded))
    return Entries(np.frombuffer(b"".join(encoded), np.uint8), counts)


def _as_texts(value: Any) -> Any:
    """A str, or a list or tuple, or a value that is refused."""
    if isinstance(value, (str, list, tuple)):
        return value
    return value.to_pylist() if is_arrow(value) else read_array(value).tolist()


def _description(value: Any) -> str:
    """Type of a value with its shape, for errors; of an array its dtype and shape."""
    if is_nested(value):
        return "a nested tensor"
    kind = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
    shape = getattr(value, "shape", None)
    return f"{kind} of shape {tuple(shape)}" if isinstance(shape, tuple) else f"{kind}"
