"""Lists of other libraries, as NumPy arrays: nested tensors of PyTorch and lists of Arrow.

No library is imported: its objects are known by their attributes. Not here: arrays and tensors
(``foreign_arrays``), and shapes of fields (``_fields.entries``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cpprb_like._arguments.arrays import Array

__all__ = ["arrow_lists", "is_arrow", "is_nested", "jagged_axis", "list_levels", "without_nulls"]


def is_nested(value: Any) -> bool:
    """Whether a value is a nested tensor of PyTorch, of any layout."""
    return getattr(value, "is_nested", False) is True


def jagged_axis(tensor: Any) -> int | None:
    """The axis of a nested tensor that differs in length, if ``values()`` has no gaps.

    Otherwise None: ``unbind()`` gives the rows.
    """
    if "jagged" not in str(tensor.layout) or tensor.lengths() is not None:
        return None
    # Lengths that differ are of a type of PyTorch's own.
    return next(at for at, length in enumerate(tensor.shape) if not isinstance(length, int))


def is_arrow(value: Any) -> bool:
    """Whether a value is an array of Arrow, or of its chunks."""
    return type(value).__module__ == "pyarrow.lib" and hasattr(value, "null_count")


def list_levels(value: Any) -> int:
    """Levels of lists in an array of Arrow, such as 1 for lists of numbers; 0 for other values."""
    levels, kind = 0, value.type if is_arrow(value) else None
    while kind is not None and hasattr(kind, "value_field"):
        levels, kind = levels + 1, kind.value_type
    return levels


def without_nulls(array: Any) -> Any:
    """An array of Arrow; ``ValueError`` for nulls, which NumPy would turn into NaN."""
    if array.null_count:
        raise ValueError(f"{array.null_count} nulls")
    return array


def arrow_lists(array: Any) -> tuple[Any, list[Array]]:
    """The flat values of lists of Arrow, and the lengths of the lists of each level."""
    lengths = []
    levels = list_levels(array)
    if hasattr(array, "combine_chunks"):
        array = array.combine_chunks()
    for _ in range(levels):
        of_level = without_nulls(array).value_lengths().to_numpy(zero_copy_only=False)
        lengths.append(of_level.astype(np.int64))
        array = array.flatten()  # of a slice: its own values only
    return without_nulls(array), lengths
