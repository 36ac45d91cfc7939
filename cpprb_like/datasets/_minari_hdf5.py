"""Storage of Minari with HDF5: one file, with a group for each episode.

The layout is that of Minari 0.5. Images are not written as JPEG, which would change them. Numbered
parts of a nest are called ``_index_0`` and so on. Observations and infos have one row more than
there are steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cpprb_like.datasets import _hdf5
from cpprb_like.datasets._images import decoded
from cpprb_like.datasets._minari_metadata import INFOS, OF_RESET, Leaf, StoredEpisode, is_tuple
from cpprb_like.datasets._model import Array, Field, Place, nest, text_field

NAME = "minari"
FILE = "main_data.hdf5"
NUMBERED = "_index_"
EXTRA = {"observations": (1,), INFOS: (0, 1)}  # possible numbers of rows in addition to the steps


def _walk(node: Any, path: Place) -> Iterator[tuple[Place, str]]:
    """Yield each path in a nest, and its name in the file. Parts of a tuple are ``_index_<k>``."""
    if isinstance(node, tuple):
        yield node, "/".join(path)
        return
    mark = NUMBERED if path and path[0] != INFOS and is_tuple(node) else ""
    for key, part in node.items():
        yield from _walk(part, (*path, mark + key))


class Hdf5Output:
    """Writes the file of a data set."""

    kind = "hdf5"

    def __init__(self, folder: Path, columns: Mapping[Place, Field], numbers: set[Place]) -> None:
        self._path, self._columns = folder / FILE, columns
        self._names = dict(_walk(nest((path, path) for path in columns), ()))
        self._new = _hdf5.NewFile(self._path, NAME)

    def begin(self, number: int, n: int) -> None:
        self._group = group = self._new.file.create_group(f"episode_{number}")
        group.attrs["id"], group.attrs["total_steps"] = number, n
        group.create_group(INFOS)
        self._data = {
            path: group.create_dataset(
                self._names[path],
                (n + (path[0] in EXTRA), *field.declared_shape),
                _hdf5.text_dtype() if field.is_text else field.dtype,
            )
            for path, field in self._columns.items()
        }

    def put(self, path: Place, at: int, values: Array) -> None:
        if self._columns[path].is_text and any("\0" in text for text in values):
            raise ValueError(
                f"{self._names[path]}: expected texts without zero bytes, where HDF5 ends a text; "
                "format 'minari-arrow' holds them"
            )
        self._data[path][at : at + len(values)] = values

    def end(self) -> None:
        self._new.check()

    def close(self) -> int:
        self._new.close()
        return self._path.stat().st_size

    def abandon(self) -> None:
        """Close the file after an error."""
        self._new.abandon()


class Hdf5Storage:
    """Reads the file of a data set. ``count`` is an upper bound of the number of episodes."""

    def __init__(self, folder: Path, metadata: Mapping[str, Any]) -> None:
        self.place = folder / FILE
        self._has_jpeg = bool(metadata.get("jpeg_encoding", True))
        self._file = _hdf5.opened(self.place, NAME, "r")
        self.count = len(self._file)

    def episode(self, number: int) -> StoredEpisode:
        group = _hdf5.member(self._file, f"episode_{number}")
        if not _hdf5.is_group(group):
            raise ValueError(f"episode_{number}: expected a group, got {group!r}")
        rewards = _hdf5.member(group, "rewards")
        _hdf5.check_dataset(rewards, f"{group.name}/rewards")
        columns = {
            tuple(key.removeprefix(NUMBERED) for key in place): Hdf5Column(
                data, place, len(rewards), has_jpeg=self._has_jpeg
            )
            for place, data in _hdf5.members(group)
        }
        of_reset = OF_RESET.intersection(key.partition("/")[0] for key in group.attrs)
        return StoredEpisode(len(rewards), columns, of_reset)

    def close(self) -> None:
        self._file.close()


class Hdf5Column:
    """A data set of an episode of n steps. ``extra`` is its number of rows minus n."""

    def __init__(self, data: Any, place: Place, n: int, *, has_jpeg: bool) -> None:
        self._data, self._has_jpeg = data, has_jpeg
        self.extra = len(data) - n if data.ndim else -1
        self._fits = self.extra in EXTRA.get(place[0], (0,))
        self._rows = n + (self.extra if self._fits else 0)

    def field(self, name: str, leaf: Leaf | None) -> Field | str:
        """The field of the data set, or the reason why it makes none."""
        data = self._data
        if not self._fits:
            return f"{data.dtype} of shape {data.shape}"
        if _hdf5.has_texts(data):
            return text_field(name)
        is_flat = self._has_jpeg and data.ndim in (1, 2)
        if leaf is not None and leaf.is_image and is_flat and len(leaf.shape) + 1 != data.ndim:
            return Field(name, np.dtype(np.uint8), leaf.shape)
        return _hdf5.field_of(data, data.name, name)

    def read(self, start: int, stop: int, field: Field) -> Array:
        """Rows of the data set. Images stored as JPEG have fewer axes in the file."""
        data = self._data
        if field.is_text:
            return _hdf5.texts(data, start, stop)
        if self._has_jpeg and data.ndim in (1, 2) and len(field.shape) + 1 > data.ndim:
            if len(data) != self._rows:
                raise ValueError(f"{data.name}: expected {self._rows} images, got {len(data)}")
            files = [np.asarray(image, np.uint8).tobytes() for image in data[start:stop]]
            return decoded(files, field.shape, data.name, NAME, ("JPEG",))
        _hdf5.check(self._data, self._data.name, self._rows, field)
        return _hdf5.read(self._data, start, stop, field)
