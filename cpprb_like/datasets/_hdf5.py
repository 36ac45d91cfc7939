"""Checked reading of HDF5 files, and new files, for the formats that use them.

A file is not trusted. Links to other files, data stored in other files, and sizes that the file has
no bytes for are refused before data is read. Only numbers and texts are read.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cpprb_like._machine.byte_order import native
from cpprb_like._machine.opening import expect_regular
from cpprb_like.datasets._files import need, reading
from cpprb_like.datasets._model import Array, Field, Place

HDF5 = "hdf5"
MOST_RATIO = 1100  # unpacked bytes for each stored byte; zlib's limit is about 1032


def opened(path: Path, format: str, mode: str) -> Any:  # noqa: A002 (the argument of the user)
    """Open an HDF5 file."""
    h5py = need("h5py", format)
    with reading(path):
        if mode == "r":
            expect_regular(path)
        return h5py.File(path, mode)


class NewFile:
    """A new HDF5 file, ``file``.

    HDF5 ends the process if it cannot write when it closes a file, as on a full disk. So after a
    write that fails, further writes are dropped, and ``check`` raises the error.
    """

    def __init__(self, path: Path, format: str) -> None:  # noqa: A002 (the argument of the user)
        h5py = need("h5py", format)
        self._output = _Output(path)
        self.file = h5py.File(self._output, "w")

    def check(self) -> None:
        """Raise the error of a write that failed."""
        if self._output.error is not None:
            raise self._output.error

    def close(self) -> None:
        """Write what is left, and close the file. Raises the error of a write that failed."""
        self.abandon()
        self.check()

    def abandon(self) -> None:
        """Close the file."""
        self.file.close()
        self._output.close()


class _Output(io.FileIO):
    """A new file that keeps its first error, and drops writes from then on."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "x+")
        self.error: OSError | None = None

    def write(self, data: Any, /) -> int:
        """Write all bytes of ``data``."""
        whole = memoryview(data).cast("B")

        def write_all() -> None:
            rest = whole
            while len(rest):  # a disk that is nearly full takes a part
                rest = rest[super(_Output, self).write(rest) :]

        self._try(write_all)
        return len(whole)

    def truncate(self, size: int | None = None, /) -> int:
        """Set the size."""
        self._try(lambda: super(_Output, self).truncate(size))
        return self.tell() if size is None else size

    def _try(self, call: Callable[[], object]) -> None:
        try:
            if self.error is None:
                call()
        except OSError as error:
            self.error = OSError(error.errno, os.strerror(error.errno or 0), str(self.name))


def is_group(found: Any) -> bool:
    """Whether the object is a group of HDF5."""
    return isinstance(found, need("h5py", HDF5).Group)


def member(group: Any, name: str) -> Any:
    """The member of a group with this name, or None. ``ValueError`` if its data is elsewhere."""
    h5py = need("h5py", HDF5)

    if name not in group.keys():  # noqa: SIM118 (the operator follows paths and links)
        return None
    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise ValueError(f"{group.name}/{name}: expected data in the file itself, got a link")
    found = group[name]
    if isinstance(found, h5py.Dataset) and (found.is_virtual or found.external):
        raise ValueError(f"{found.name}: expected data in the file itself, got that of others")
    return found


def members(
    group: Any, path: Place = (), seen: set[int] | None = None
) -> Iterator[tuple[Place, Any]]:
    """All data sets below a group, with their paths; ``ValueError`` if a group has two links.

    ``seen`` are the addresses of groups in the file, the same for all links to a group.
    """
    h5py = need("h5py", HDF5)
    seen = set() if seen is None else seen
    address = h5py.h5o.get_info(group.id).addr
    if len(path) > 32:
        raise ValueError(f"{group.name}: expected at most 32 groups in one another")
    if address in seen:  # with two links to each group there are 2 ** depth paths
        raise ValueError(f"{group.name}: expected one link to each group, got two")
    seen.add(address)
    for name in group.keys():  # noqa: SIM118 (a mapping of HDF5)
        found = member(group, name)
        if isinstance(found, h5py.Group):
            yield from members(found, (*path, name), seen)
        elif isinstance(found, h5py.Dataset):
            yield (*path, name), found


def check_dataset(found: Any, name: str) -> None:
    """Raise ``ValueError`` unless the object is a data set, all bytes of which are in the file."""
    h5py = need("h5py", HDF5)

    if not isinstance(found, h5py.Dataset):
        got = "none" if found is None else f"a {type(found).__name__.lower()}"
        raise ValueError(f"{name}: expected a data set, got {got}")
    stored = found.id.get_storage_size()
    is_packed = found.id.get_create_plist().get_nfilters() > 0
    most = stored * (MOST_RATIO if is_packed else 1)
    if found.nbytes > most:
        raise ValueError(
            f"{name}: expected data of {found.nbytes} bytes, as its shape {found.shape} says; the "
            f"file has {stored}"
        )


def check(found: Any, name: str, n: int, field: Field) -> None:
    """Raise ``ValueError`` unless a data set has n values of a field, numbers in any byte order."""
    check_dataset(found, name)
    shape = n, *field.shape
    if native(found.dtype) != field.dtype or found.shape != shape:
        raise ValueError(
            f"{name}: expected {field.dtype} of shape {shape}, got {found.dtype} of shape "
            f"{found.shape}"
        )


def field_of(found: Any, name: str, field: str) -> Field | str:
    """The field of a data set, or a description of a data set that holds no plain numbers."""
    if found.dtype.kind not in "biuf" or found.dtype.itemsize > 8 or found.ndim < 1:
        return f"{found.dtype} of shape {found.shape}"
    check_dataset(found, name)
    return Field(field, native(found.dtype), found.shape[1:])


def read(dataset: Any, start: int, stop: int, field: Field) -> Array:
    """The values of some rows; ``check`` has been called."""
    values: Array = dataset[start:stop]
    return values.astype(field.dtype, copy=False)


# ---------------------------------------------------------------------- texts of any length


def text_dtype() -> Any:
    """The dtype of texts in a new data set."""
    return need("h5py", HDF5).string_dtype()


def has_texts(found: Any) -> bool:
    """Whether a data set has a text of any length in each row."""
    kind = need("h5py", HDF5).check_string_dtype(found.dtype)
    return kind is not None and kind.length is None and found.ndim == 1


def texts(dataset: Any, start: int, stop: int) -> Array:
    """The texts of some rows; ``ValueError`` unless all rows are there, and in UTF-8."""
    check_dataset(dataset, dataset.name)
    if not has_texts(dataset) or len(dataset) < stop:
        raise ValueError(f"{dataset.name}: expected {stop} texts, got shape {dataset.shape}")
    try:
        return np.array([str(text, "utf-8") for text in dataset[start:stop]], object)
    except UnicodeDecodeError as error:
        raise ValueError(f"{dataset.name}: expected texts: {error}") from None
