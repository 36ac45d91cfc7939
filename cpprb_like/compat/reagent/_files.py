"""Files that ReAgent's own ``save`` wrote: read, never written.

ReAgent writes a gzip file for each attribute: arrays as ``np.save`` does, and a pickle of the sum
tree. ReAgent does not write which slots are valid. Not here, but in the room ``checkpoint``: the
files that this package writes, and the reader of pickles, which runs no code of theirs.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Array
from cpprb_like.checkpoint._restricted_pickle import PickledObject, plain
from cpprb_like.checkpoint._restricted_pickle import load as load_pickle
from cpprb_like.compat.reagent._elements import NUMBERS, REQUIRED_KEYS, InputError

Found = TypeVar("Found")

STORE_FILENAME_PREFIX = "$store$_"
MOST_BESIDE = 1 << 20  # bytes of the pickle of a tree besides its sums
# What a file raises that was cut, changed, or written by another program.
DAMAGE = (
    *(EOFError, OSError, zlib.error, ValueError, LookupError, TypeError, ArithmeticError),
    MemoryError,
)


class Contents(NamedTuple):
    """What the files of one suffix hold."""

    columns: dict[str, Array]  #: each field, by slot
    add_count: int
    priorities: tuple[NDArray[np.float64], float] | None  #: by slot, and the greatest so far


def read_files(folder: Path, suffix: object, capacity: int, has_tree: bool) -> Contents:
    """Read the files of a suffix, whose arrays have ``capacity`` slots.

    Raises ``FileNotFoundError`` before the first file is read, and ``InputError`` if a file is
    damaged or was written by a buffer of another capacity.
    """
    end = f"_ckpt.{suffix}.gz"

    def read(name: str, reader: Callable[[Any], Found]) -> Found:
        try:
            with gzip.open(folder / f"{name}{end}") as file:
                found = reader(file)
                if file.read(1):
                    raise InputError("there are more bytes than expected")
        except DAMAGE as error:
            raise InputError(
                f"{folder / name}{end}: {str(error) or type(error).__name__}"
            ) from error
        return found

    there = {path.name[: -len(end)] for path in folder.glob("*") if path.name.endswith(end)}
    stored = {name.removeprefix(STORE_FILENAME_PREFIX) for name in there} - there
    # ReAgent's buffer by priority writes a field of priorities, which it never fills.
    others = stored - {*REQUIRED_KEYS, *["priority"] * ("sum_tree" in there)}
    names = {x: STORE_FILENAME_PREFIX + x for x in [*REQUIRED_KEYS, *sorted(others)]}
    for name in [*names.values(), "add_count", *["sum_tree"] * has_tree]:
        if name not in there:
            raise FileNotFoundError(f"Missing file: {folder / name}{end}")
    count = int(read("add_count", lambda file: _read_array(file, "iu", ())))
    if count < 0:
        raise InputError(f"{folder / 'add_count'}{end}: expected at least 0, got {count}")
    columns = {
        field: read(name, lambda file: _read_array(file, NUMBERS, (capacity,)))
        for field, name in names.items()
    }
    tree = read("sum_tree", lambda file: _read_sum_tree(file, capacity)) if has_tree else None
    return Contents(columns, count, tree)


def _read_array(file: Any, kinds: str, shape: tuple[int, ...]) -> Array:
    """An array of numbers whose shape begins with ``shape``; just a number if it is ``()``."""
    array: Array = np.lib.format.read_array(file, allow_pickle=False)
    expected = shape + array.shape[1:] if shape else shape
    if array.shape != expected or array.dtype.kind not in kinds:
        raise InputError(f"expected numbers of shape {shape}, got {array.dtype} of {array.shape}")
    return array


def _read_sum_tree(file: Any, capacity: int) -> tuple[NDArray[np.float64], float]:
    """The priorities of all slots, and the greatest one that was ever set."""
    data = file.read(64 * capacity + MOST_BESIDE)
    tree = load_pickle(data, objects=("sum_tree.SumTree",))
    if not isinstance(tree, PickledObject):
        raise InputError("expected the pickle of a sum tree")
    leaves = np.asarray(plain(tree.state["nodes"][-1]))
    shape = (1 << (capacity - 1).bit_length(),)
    if leaves.dtype != np.float64 or leaves.shape != shape:
        raise InputError(f"expected priorities of {capacity} slots, got shape {leaves.shape}")
    return leaves[:capacity], float(plain(tree.state["max_recorded_priority"]))
