"""Reader of the files that ReAgent's own ``save`` wrote.

ReAgent writes a gzip file for each attribute: arrays in the format of ``np.save``, and a pickle of
the sum tree. Its files lack the flags of valid slots. Not here: files that this package writes, and
the reader of pickles, which runs no code (``checkpoint``).
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Array
from cpprb_like._machine.opening import open_regular
from cpprb_like.checkpoint._restricted_pickle import PickledObject, plain
from cpprb_like.checkpoint._restricted_pickle import load as load_pickle
from cpprb_like.compat.reagent._elements import (
    NUMBERS,
    REQUIRED_KEYS,
    DenseMetadata,
    ElementMetadata,
    InputError,
)

Found = TypeVar("Found")

STORE_FILENAME_PREFIX = "$store$_"
MOST_BESIDE = 1 << 20  # bytes of the pickle of a tree, without its sums
# Errors of reading a file that is truncated, changed, or of another program.
DAMAGE = (EOFError, OSError, zlib.error, ValueError, LookupError, TypeError, OverflowError)


class Contents(NamedTuple):
    """Contents of the files of one suffix."""

    columns: dict[str, Array]  #: values of each field, by slot
    add_count: int
    priorities: tuple[NDArray[np.float64], float] | None  #: priorities by slot; the greatest so far

    @property
    def elements(self) -> dict[str, ElementMetadata]:
        """Shape and dtype of each field."""
        return {
            name: DenseMetadata(values.shape[1:], values.dtype.newbyteorder("="))
            for name, values in self.columns.items()
        }


def read_files(
    folder: Path, suffix: object, capacity: int, known: Mapping[str, Any] | None, has_tree: bool
) -> Contents:
    """Read the files of a suffix, whose arrays have ``capacity`` slots.

    ``known`` are names of the fields, by default the names in the files. Raises
    ``FileNotFoundError`` before the first file is read. Raises ``InputError`` if a file is damaged
    or its buffer has another capacity.
    """
    end = f"_ckpt.{suffix}.gz"

    def read(name: str, reader: Callable[[Any], Found]) -> Found:
        path = folder / f"{name}{end}"
        try:
            with open_regular(path) as opened, gzip.open(opened) as file:
                found = reader(file)
                if file.read(1):
                    raise InputError("there are more bytes than expected")
        except DAMAGE as error:
            raise InputError(f"{path}: {str(error) or type(error).__name__}") from error
        return found

    paths = [path.name for path in folder.glob("*") if path.name.endswith(end)]
    present = {name[: -len(end)] for name in paths}
    fields = list(known or REQUIRED_KEYS)
    if not known:
        # ReAgent's prioritized buffer writes a field of priorities, which it never fills.
        left_out = {*REQUIRED_KEYS, *["priority"] * ("sum_tree" in present)}
        stored = {name.removeprefix(STORE_FILENAME_PREFIX) for name in present}
        fields += sorted(x for x in stored - left_out if STORE_FILENAME_PREFIX + x in present)
    names = [STORE_FILENAME_PREFIX + field for field in fields]
    for name in [*names, "add_count", *["sum_tree"] * has_tree]:
        if name not in present:
            raise FileNotFoundError(f"Missing file: {folder / name}{end}")
    count = int(read("add_count", lambda file: _read_array(file, "iu", ())))
    if count < 0:
        raise InputError(f"{folder / 'add_count'}{end}: expected at least 0, got {count}")
    columns = {
        field: read(name, lambda file: _read_array(file, NUMBERS, (capacity,)))
        for field, name in zip(fields, names, strict=True)
    }
    tree = read("sum_tree", lambda file: _read_sum_tree(file, capacity)) if has_tree else None
    return Contents(columns, count, tree)


def _read_array(file: Any, kinds: str, shape: tuple[int, ...]) -> Array:
    """An array of numbers whose shape begins with ``shape``."""
    version = npy.read_magic(file)
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    lengths, is_fortran, dtype = read_header(file)
    if lengths[: len(shape)] != shape or (not shape and lengths) or dtype.kind not in kinds:
        raise InputError(f"expected numbers of shape {shape}, got {dtype} of shape {lengths}")
    data = file.read()
    if len(data) != int(np.prod(lengths, dtype=object)) * dtype.itemsize:
        raise InputError(f"expected {dtype} of shape {lengths}, got {len(data)} bytes")
    return np.frombuffer(data, dtype).reshape(lengths, order="F" if is_fortran else "C")


def _read_sum_tree(file: Any, capacity: int) -> tuple[NDArray[np.float64], float]:
    """The priorities of all slots, and the greatest one that was ever set."""
    data = file.read(64 * capacity + MOST_BESIDE)
    tree = load_pickle(data, objects=("sum_tree.SumTree",))
    if not isinstance(tree, PickledObject):
        raise InputError("expected the pickle of a sum tree")
    leaves = np.asarray(plain(tree.state["nodes"][-1]))
    shape = (1 << (capacity - 1).bit_length(),)
    if leaves.dtype != np.float64 or leaves.shape != shape:
        raise InputError(
            f"expected priorities of {capacity} slots, got {leaves.dtype} of shape {leaves.shape}"
        )
    return leaves[:capacity], float(plain(tree.state["max_recorded_priority"]))
