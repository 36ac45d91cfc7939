"""Files that ReAgent's own ``save`` wrote: read, never written.

ReAgent writes a gzip file for each attribute: arrays as ``np.save`` does, and a pickle of the sum
tree. It does not write which slots are valid. Not here, but in the room ``checkpoint``: the files
that this package writes, and the reader of pickles, which runs no code of theirs.
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
from cpprb_like.checkpoint._restricted_pickle import PickledObject, plain
from cpprb_like.checkpoint._restricted_pickle import load as load_pickle
from cpprb_like.compat.reagent._elements import (
    REQUIRED_KEYS,
    DenseMetadata,
    ElementMetadata,
    InputError,
)

__all__ = ["STORE_FILENAME_PREFIX", "Contents", "read_files"]

Found = TypeVar("Found")

STORE_FILENAME_PREFIX = "$store$_"
MOST_BESIDE = 1 << 20  # bytes of the pickle of a tree besides its sums
# What a file raises that was cut, changed, or written by another program.
DAMAGE = (EOFError, OSError, zlib.error, ValueError, LookupError, TypeError, OverflowError)


class Contents(NamedTuple):
    """What the files of one suffix hold."""

    columns: dict[str, Array]  #: each field, by slot
    add_count: int
    priorities: tuple[NDArray[np.float64], float] | None  #: by slot, and the greatest so far

    @property
    def elements(self) -> dict[str, ElementMetadata]:
        """The kinds of the fields."""
        return {
            name: DenseMetadata(values.shape[1:], values.dtype.newbyteorder("="))
            for name, values in self.columns.items()
        }


def read_files(
    folder: Path, suffix: object, capacity: int, known: Mapping[str, Any] | None, has_tree: bool
) -> Contents:
    """Read the files of a suffix.

    Parameters
    ----------
    folder, suffix
        The arguments of ``load``.
    capacity : int
        Slots that each array must have.
    known : mapping, optional
        Names of the fields; by default those that there are files of.
    has_tree : bool
        Whether priorities are read.

    Raises
    ------
    FileNotFoundError
        A file is missing. All are looked for before the first is read.
    InputError
        A file is damaged, or was written by a buffer of another capacity.
    """

    def path(name: str) -> Path:
        return folder / f"{name}_ckpt.{suffix}.gz"

    def read(name: str, reader: Callable[[Any], Found]) -> Found:
        try:
            with gzip.open(path(name)) as file:
                found = reader(file)
                if file.read(1):
                    raise InputError("there are more bytes than expected")
        except DAMAGE as error:
            raise InputError(f"{path(name)}: {str(error) or type(error).__name__}") from error
        return found

    fields = list(known or (REQUIRED_KEYS + _extras(folder, suffix, path("sum_tree").is_file())))
    names = [STORE_FILENAME_PREFIX + field for field in fields]
    for name in [*names, "add_count", *["sum_tree"] * has_tree]:
        if not path(name).is_file():
            raise FileNotFoundError(f"Missing file: {path(name)}")
    count = read("add_count", lambda file: _read_array(file, "iu", ()))
    if count < 0:
        raise InputError(f"{path('add_count')}: expected at least 0, got {count}")
    columns = {
        field: read(name, lambda file: _read_array(file, "biufc", (capacity,)))
        for field, name in zip(fields, names, strict=True)
    }
    tree = read("sum_tree", lambda file: _read_sum_tree(file, capacity)) if has_tree else None
    return Contents(columns, int(count), tree)


def _extras(folder: Path, suffix: object, has_priorities: bool) -> list[str]:
    """Names of the fields that there are files of, besides those that are required.

    ReAgent's buffer by priority writes a field of priorities, which it never fills.
    """
    left_out = [*REQUIRED_KEYS, *["priority"] * has_priorities]
    end = f"_ckpt.{suffix}.gz"
    paths = folder.iterdir() if folder.is_dir() else iter(())
    found = (
        path.name[len(STORE_FILENAME_PREFIX) : -len(end)]
        for path in paths
        if path.name.startswith(STORE_FILENAME_PREFIX) and path.name.endswith(end)
    )
    return sorted(name for name in found if name not in left_out)


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
    greatest = plain(tree.state["max_recorded_priority"])
    return leaves[:capacity].astype(np.float64), float(greatest)
