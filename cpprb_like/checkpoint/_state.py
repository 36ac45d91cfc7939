"""A state of a checkpoint: the content of a manifest, as frozen dataclasses.

A manifest is the JSON of these classes (``_files.json_codec``), which check their values. Not
here: the bytes of a manifest (``_manifest``), and the JSON of objects in ``State.root``
(``_values``).
"""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from cpprb_like._fields.field import LEFT_OUT
from cpprb_like._files.json_codec import number
from cpprb_like.checkpoint._options import NAME_BESIDE
from cpprb_like.checkpoint._saved_layout import SavedLayout
from cpprb_like.errors import DamagedError

__all__ = [
    "ArrayFile",
    "BesideFile",
    "File",
    "ItemFiles",
    "NewestFiles",
    "ObjectFiles",
    "OverflowFiles",
    "PartFile",
    "Ring",
    "Segment",
    "State",
    "StoredFile",
    "files_of",
]

ARRAY_NAME = re.compile(r"s\d+-\d+\.npy(\.\w+)?")
BESIDE_NAME = re.compile(rf"s\d+-beside-({NAME_BESIDE})")


@dataclass(frozen=True)
class StoredFile:
    """A file of a state: its bytes on the disk."""

    name: str
    nbytes: int
    crc32: int


@dataclass(frozen=True)
class BesideFile(StoredFile):
    """A file of the caller beside the object."""

    def __post_init__(self) -> None:
        if not BESIDE_NAME.fullmatch(self.name):
            raise DamagedError(f"the manifest names a file {self.name!r}")

    @property
    def label(self) -> str:
        """The name that the caller chose."""
        return self.name.partition("-beside-")[2]


@dataclass(frozen=True)
class File(StoredFile):
    """A file with an array."""

    codec: Literal["zlib", "lzma"] | None
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if not ARRAY_NAME.fullmatch(self.name):
            raise DamagedError(f"the manifest names a file {self.name!r}")
        if self.dtype.hasobject:
            raise DamagedError(f"{self.name}: dtype: no file holds Python objects")

    @property
    def array_nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * self.dtype.itemsize

    def expect(self, dtype: np.dtype[Any], *shape: int) -> File:
        """Return the file; ``DamagedError`` unless its array has this dtype and shape."""
        if self.dtype != dtype or self.shape != shape:
            raise DamagedError(
                f"{self.name}: expected {dtype} of shape {shape}, got {self.dtype} of shape "
                f"{self.shape}"
            )
        return self


@dataclass(frozen=True)
class PartFile:
    """A part of the rows from ``first`` up to, but not including, ``stop``."""

    file: File
    first: int
    stop: int

    def __post_init__(self) -> None:
        number("first", self.first, 0, self.stop)


@dataclass(frozen=True)
class OverflowFiles:
    """Values of chained fields that no neighbouring row holds, and the ids of the rows."""

    ids: File
    values: File


@dataclass(frozen=True)
class ObjectFiles:
    """Python objects of the rows from ``first`` up to, but not including, ``stop``."""

    lengths: File
    data: File
    first: int
    stop: int

    def __post_init__(self) -> None:
        number("first", self.first, 0, self.stop)


@dataclass(frozen=True)
class ItemFiles:
    """Items of a named axis, of the rows from ``first`` up to, but not including, ``stop``.

    ``values`` has, for each field of the axis, the items of these rows one behind the other, and
    ``counts`` the number of items of each row: ``~n`` for n items that are the next ones of the row
    before in its stream.
    """

    axis: str
    counts: File
    values: dict[str, File]
    first: int
    stop: int

    def __post_init__(self) -> None:
        number("first", self.first, 0, self.stop)


@dataclass(frozen=True)
class NewestFiles:
    """The newest value of a chained field for each environment, and whether there is one."""

    values: File
    is_there: File


@dataclass(frozen=True)
class Segment:
    """The rows from ``number * segment_rows`` on."""

    number: int
    parts: dict[str, PartFile]
    overflow: dict[str, OverflowFiles]
    objects: dict[str, ObjectFiles]
    items: tuple[ItemFiles, ...] = dataclasses.field(default=(), metadata=LEFT_OUT)


@dataclass(frozen=True)
class Ring:
    """The rows of one buffer."""

    layout: SavedLayout
    written: int
    oldest: int
    first: int
    absent: int
    clears: int
    cleared: int
    handle_base: int
    edits: int
    episode_lens: tuple[int, ...]
    segment_rows: int
    segments: tuple[Segment, ...]
    newest: dict[str, NewestFiles]
    # Number of rows that left because an axis was full, by axis.
    left: tuple[int, ...] = dataclasses.field(default=(), metadata=LEFT_OUT)

    def __post_init__(self) -> None:
        number("oldest", self.oldest, 0, self.written)
        number("first", self.first, 0, self.written)
        number("absent", self.absent, 0, self.stored)
        number("segment_rows", self.segment_rows, 1)
        if self.written - self.oldest > self.layout.capacity:
            raise DamagedError("there are more rows than the capacity")
        if len(self.episode_lens) != self.layout.n_envs:
            raise DamagedError("episode_lens: expected one for each environment")
        if len(self.left) != len(self.layout.schema.axes):
            raise DamagedError("left: expected one for each axis")
        for segment in self.segments:
            stops = [part.stop for part in segment.parts.values()]
            stops += [objects.stop for objects in segment.objects.values()]
            stops += [items.stop for items in segment.items]
            for stop in stops:
                number("stop", stop, 0, self.written)

    @property
    def stored(self) -> int:
        """Number of slots in use."""
        return min(self.written, self.layout.capacity)


@dataclass(frozen=True)
class ArrayFile:
    """An array that is no part of a ring, and its path in the object."""

    path: str
    file: File


@dataclass(frozen=True)
class State:
    """A state of a checkpoint."""

    id: str  # unique among all states of all folders
    number: int
    synchronised: bool  # whether the state survives a crash of the machine
    rings: tuple[Ring, ...]
    arrays: tuple[ArrayFile, ...]
    objects: tuple[ObjectFiles, ...]
    root: Any  # JSON of the object: see ``_values``
    beside: tuple[BesideFile, ...] = dataclasses.field(default=(), metadata=LEFT_OUT)

    @cached_property
    def files(self) -> list[StoredFile]:
        """All files, each once."""
        found = files_of((self.rings, self.arrays, self.objects, self.beside))
        return list({file.name: file for file in found}.values())


def files_of(part: Any) -> list[StoredFile]:
    """All files of a part of a state."""
    if isinstance(part, StoredFile):
        return [part]
    if not isinstance(part, tuple):
        part = part.values() if isinstance(part, dict) else getattr(part, "__dict__", {}).values()
    return [file for entry in part for file in files_of(entry)]
