"""Members of ``.npz`` files of other programs, read with ``zipfile`` and ``numpy.lib.format``.

Errors name the member. Arrays are views of the bytes that were read. Pickled objects are refused,
or read by the restricted unpickler if the caller allows it. Not here: the meaning of members.
"""

from __future__ import annotations

import math
import zipfile
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from cpprb_like._machine.machine_memory import require
from cpprb_like.checkpoint._restricted_pickle import load, plain

MOST_HEADER = 1000  # bytes of a header, which NumPy evaluates as a Python literal
MOST_RATIO = 1100  # size of a member over its compressed size; zlib's limit is 1032


class Archive:
    """The members of an ``.npz`` file, by name. Raises ``ValueError`` for any other file."""

    def __init__(self, file: IO[bytes]) -> None:
        try:
            self._zip = zipfile.ZipFile(file)
        except Exception as error:  # zipfile raises anything for a damaged directory
            raise ValueError(f"no zip file: {error}") from error

    @property
    def names(self) -> list[str]:
        """Names of the members, in the order of the file."""
        return self._zip.namelist()

    def read(self, name: str, *, allow_object: bool = False) -> Any:
        """The read-only array of a member, whose name ends in ``.npy``.

        With ``allow_object`` an array of one Python object gives that object: see
        ``_restricted_pickle.load``. Raises ``ValueError`` for a member that is absent, damaged, or
        made of other Python objects, and ``MemoryError`` if its bytes exceed the free memory.
        """
        if name not in self._zip.NameToInfo:
            raise ValueError(f"it has no {name!r}, but {self.names}")
        info = self._zip.getinfo(name)
        if info.file_size > MOST_RATIO * info.compress_size:
            raise ValueError(
                f"{name!r}: {info.compress_size} bytes cannot unpack to {info.file_size}"
            )
        require(info.file_size, repr(name))
        try:
            with self._zip.open(info) as member:
                if npy.read_magic(member) != (1, 0):
                    raise ValueError("expected a .npy file of version 1.0")
                header = npy.read_array_header_1_0(member, max_header_size=MOST_HEADER)
                data = member.read()
            return _value(data, *header, allow_object)
        except MemoryError:
            raise
        except Exception as error:  # zipfile and zlib raise anything for damaged members
            raise ValueError(f"{name!r}: {error}") from error


def _value(
    data: bytes, shape: tuple[int, ...], is_fortran: bool, dtype: np.dtype[Any], allow_object: bool
) -> Any:
    """The array of these bytes, or the object of a pickle."""
    if allow_object and dtype.kind == "O" and shape == ():
        return plain(load(data))
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are not read")
    expected = math.prod(shape) * dtype.itemsize
    if len(data) != expected:
        raise ValueError(f"expected {expected} bytes of {dtype}, shape {shape}, got {len(data)}")
    return np.ndarray(shape, dtype, data, order="F" if is_fortran else "C")
